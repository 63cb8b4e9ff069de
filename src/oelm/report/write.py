"""Write a report: its content is built from the records, and each file replaces the one before at once."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, get_args

from oelm.analysis.results import Results
from oelm.claims.load import load_ledger
from oelm.claims.schema import Ledger
from oelm.errors import ReportError, did_you_mean, is_installed, require
from oelm.message import LANGS, Lang
from oelm.report.blocks import Block, Content, Prose, Section
from oelm.report.figures.palette import styles
from oelm.report.sections.claims import claims_section
from oelm.report.sections.design import differences_section, hypotheses_section
from oelm.report.sections.provenance import excluded_section, provenance_section
from oelm.report.sections.recommendations import recommendations_section
from oelm.report.sections.results import results_section
from oelm.report.sections.summary import (
    change_section,
    checks_section,
    lock_blocks,
    overall_verdict,
    question_section,
    verdict_section,
)
from oelm.report.sections.times import times_section
from oelm.runs.files import write_bytes, write_text, writing
from oelm.text.messages import say

Format = Literal["html", "md", "pdf"]
FORMATS: tuple[Format, ...] = get_args(Format)


def write_report(
    results: Results, *, formats: Sequence[Format] = ("html",), lang: Lang = "en", out: Path | None = None
) -> list[Path]:
    """Write the report of a study, and return its files.

    The page has both languages and opens in `lang`; Markdown and PDF are in that one. `out` is a folder, the study's
    own by default.
    """
    check_choices(formats, lang)
    return write_content(build_content(results), results.folder, formats=formats, lang=lang, out=out)


def build_content(results: Results, *, ledger: Ledger | None = None) -> Content:
    """The report of a study as data. `ledger` holds the published claims it tests, by default those shipped."""
    study = results.study
    parts: dict[str, Iterable[Block]] = {
        "question": [*lock_blocks(results), *question_section(results)],
        "verdict": verdict_section(results),
        "change": change_section(results),
        "checks": checks_section(results),
        "results": results_section(results),
        "times": times_section(results),
        "figures": _figures(results),
        "differences": differences_section(results),
        "hypotheses": hypotheses_section(results),
        "recommendations": recommendations_section(results),
        "claims": claims_section([results], ledger or load_ledger()),
        "provenance": provenance_section(results),
        "excluded": excluded_section(results),
    }
    looks = styles(list(study.arms), study.compare.baseline)
    return Content(
        study=study.name,
        verdict=overall_verdict(results),
        sections=tuple(Section(name=k, title=say(f"section-{k}"), blocks=tuple(v)) for k, v in parts.items()),
        styles={arm: looks[arm] for arm in results.arms},
        made_from=say("made-from", records=len(results.records) + len(results.tuning), excluded=len(results.excluded)),
    )


def _figures(results: Results) -> Sequence[Block]:
    """All figures; without matplotlib a sentence in their place."""
    if not is_installed("matplotlib"):
        return [Prose(text=say("figures-no-matplotlib"))]
    from oelm.report.sections.figures import figures_section

    return figures_section(results)


def write_content(
    content: Content, folder: Path, *, formats: Sequence[Format], lang: Lang, out: Path | None = None
) -> list[Path]:
    """Write what a report says about the study in `folder`."""
    from oelm.report.render.html import relative, render_html

    out = out or folder
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
    records = relative(folder, to=out)
    own = "" if lang == "en" else f".{lang}"
    written = []
    for form in dict.fromkeys(formats):
        path = out / (f"report{own}.{form}" if form != "html" else "report.html")
        if form == "html":
            write_text(path, render_html(content, lang=lang, records=records))
        elif form == "md":
            _write_markdown(content, path, lang=lang, records=records)
        else:
            from oelm.report.render.pdf import render_pdf

            write_bytes(path, render_pdf(content, lang=lang))
        written.append(path)
    return written


def check_choices(formats: Sequence[str], lang: str) -> None:
    """Refuse a format or language that does not exist, or that cannot be written here."""
    for form in formats:
        if form not in FORMATS:
            raise ReportError(
                f"unknown report format '{form}'{did_you_mean(form, FORMATS)}",
                hint=f"--format {','.join(FORMATS)}, or some of them",
            )
    if not formats:
        raise ReportError("no report format is given", hint=f"--format {','.join(FORMATS)}, or some of them")
    if lang not in LANGS:
        raise ReportError(f"unknown report language '{lang}'{did_you_mean(lang, LANGS)}", hint="--lang en or --lang zh")
    if "pdf" in formats:
        require("report", needed_by="a report as PDF")


def _write_markdown(content: Content, path: Path, *, lang: Lang, records: str) -> None:
    from oelm.report.render.markdown import FIGURES, figure_files, render_markdown

    folder = path.parent / FIGURES
    with writing(folder):
        folder.mkdir(exist_ok=True)
        for name, svg in figure_files(content, lang=lang).items():
            if svg is not None:
                write_text(folder / name, svg)
            else:
                (folder / name).unlink(missing_ok=True)  # of an earlier report
    write_text(path, render_markdown(content, lang=lang, records=records))
