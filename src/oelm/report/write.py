"""Write a report: into the study's folder, each file beside its place and then moved there."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from oelm.errors import ReportError, did_you_mean
from oelm.records.store import write_text, writing
from oelm.report.content import Content, content_of
from oelm.words.text import LANGS, Lang

if TYPE_CHECKING:
    from oelm.analysis.results import Results

Format = Literal["html", "md", "pdf"]
FORMATS: tuple[Format, ...] = get_args(Format)


def write_report(
    results: Results, *, formats: Sequence[Format] = ("html",), lang: Lang = "en", out: Path | None = None
) -> list[Path]:
    """Write the report of a study, and return its files.

    The page has both languages and opens in `lang`; Markdown and PDF are in that one. `out` is a folder, the study's
    own if none is said.
    """
    check_choices(formats, lang)
    return write_content(content_of(results), results.folder, formats=formats, lang=lang, out=out)


def write_content(
    content: Content, folder: Path, *, formats: Sequence[Format], lang: Lang, out: Path | None = None
) -> list[Path]:
    """Write what a report says about the study in `folder`."""
    from oelm.report.page import page, relative

    out = out or folder
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
    records = relative(folder, to=out)
    own = "" if lang == "en" else f".{lang}"
    written = []
    for form in dict.fromkeys(formats):
        path = out / (f"report{own}.{form}" if form != "html" else "report.html")
        if form == "html":
            write_text(path, page(content, lang=lang, records=records))
        elif form == "md":
            _write_markdown(content, path, lang=lang, records=records)
        else:
            from oelm.report.pdf import pdf

            _write_bytes(path, pdf(content, lang=lang))
        written.append(path)
    return written


def check_choices(formats: Sequence[str], lang: str) -> None:
    """Refuse what there is no such format or language of."""
    for form in formats:
        if form not in FORMATS:
            raise ReportError(
                f"there is no report format '{form}'{did_you_mean(form, FORMATS)}",
                hint=f"--format {','.join(FORMATS)}, or some of them",
            )
    if not formats:
        raise ReportError("no report format is named", hint=f"--format {','.join(FORMATS)}, or some of them")
    if lang not in LANGS:
        raise ReportError(
            f"there is no report in the language '{lang}'{did_you_mean(lang, LANGS)}", hint="--lang en or --lang zh"
        )


def _write_markdown(content: Content, path: Path, *, lang: Lang, records: str) -> None:
    from oelm.report.markdown import FIGURES, figure_files, markdown

    folder = path.parent / FIGURES
    with writing(folder):
        folder.mkdir(exist_ok=True)
        for name, svg in figure_files(content, lang=lang).items():
            if svg is not None:
                write_text(folder / name, svg)
            else:
                (folder / name).unlink(missing_ok=True)  # of an earlier report
    write_text(path, markdown(content, lang=lang, records=records))


def _write_bytes(path: Path, data: bytes) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with writing(path.parent):
        try:
            beside.write_bytes(data)
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)
