"""Several studies in one report: every arm in every data set and on average, and how studies differ."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from oelm.analysis.across import Combined
from oelm.analysis.across_tables import AcrossStudies, ArmTable
from oelm.analysis.results import Results
from oelm.analysis.stats.estimate import Interval
from oelm.analysis.verdicts import describe_failures
from oelm.claims.load import load_ledger
from oelm.errors import is_installed
from oelm.format import DASH, format_number
from oelm.message import Message, Text
from oelm.metrics import find_metric
from oelm.report.blocks import (
    Block,
    Content,
    Folded,
    Prose,
    Section,
    Table,
    TableCell,
    VerdictBox,
    bullets,
    make_row,
    make_table,
    named_columns,
    number_cell,
    number_columns,
    text_cell,
    text_columns,
    verdict_cell,
)
from oelm.report.figures.palette import styles
from oelm.report.figures.plot import FigureContext, Plot
from oelm.report.sections.claims import claims_section
from oelm.text.messages import join_names, list_texts, say, translate, untranslated


def build_across_content(tables: AcrossStudies, folder: Path) -> Content:
    """The report over several studies as data; their folders are linked to as seen from `folder`."""
    verdict = across_verdict(tables)
    parts: dict[str, Iterable[Block]] = {
        "question": _studies_section(tables, folder),
        "verdict": [verdict, *_own_verdicts(tables)],
        "results": _arms_section(tables),
        "interactions": _interactions_section(tables),
        "figures": _figures(tables),
        "claims": claims_section(tables.studies, load_ledger()),
    }
    arms = [one.arm for one in tables.arms]
    records = sum(len(results.records) + len(results.tuning) for results in tables.studies)
    return Content(
        study=", ".join(results.study.name for results in tables.studies),
        verdict=verdict,
        sections=tuple(Section(name=k, title=say(f"section-{k}"), blocks=tuple(v)) for k, v in parts.items()),
        styles=styles(arms, tables.baseline),
        made_from=say("made-from", records=records, excluded=sum(len(results.excluded) for results in tables.studies)),
    )


def across_verdict(tables: AcrossStudies) -> VerdictBox:
    """Every arm's mean in one sentence."""
    said = []
    for one in tables.arms:
        gap, verdict = one.gap, say(f"is-{one.verdict}")
        if gap.value is None or gap.interval is None:
            said.append(say("across-arm-none", arm=one.arm, verdict=verdict))
        else:
            low, high = (_gap(tables, end) for end in (gap.interval.low, gap.interval.high))
            mean = untranslated(_gap(tables, gap.value))
            mean = say("in-points", gap=mean) if _is_share(tables) else mean
            said.append(say("across-arm", arm=one.arm, verdict=verdict, mean=mean, low=low, high=high))
    kinds = list(dict.fromkeys(one.verdict for one in tables.arms))
    text = say(
        "across-verdict",
        n=len(tables.studies),
        against=tables.baseline,
        metric=tables.metric,
        verdicts=list_texts(said) if said else untranslated(DASH),
    )
    return VerdictBox(kind=kinds[0] if len(kinds) == 1 else "mixed" if kinds else "inconclusive", text=text)


def _studies_section(tables: AcrossStudies, folder: Path) -> list[Block]:
    columns = [*text_columns("study", "task", "model"), *number_columns("n", "examples")]
    rows = [
        make_row(
            text_cell(results.study.name, href=Path(os.path.relpath(results.folder, folder)).as_posix()),
            results.study.recipe.data.task,
            results.study.recipe.model.size or results.study.recipe.model.label,
            number_cell(len(results.study.seeds), str(len(results.study.seeds))),
            _examples(results),
        )
        for results in tables.studies
    ]
    better = say(f"better-{find_metric(tables.metric).direction}")
    asked = say("across-question", against=tables.baseline, metric=tables.metric, better=better)
    return [Prose(text=asked), make_table(columns, rows)]


def _examples(results: Results) -> TableCell:
    for record in results.records.values():
        size = record.data.sizes.get(f"test-{record.first_split}") if record.data is not None else None
        if size is not None:
            return number_cell(size, f"{size:,}")
    return number_cell(None, "")


def _own_verdicts(tables: AcrossStudies) -> list[Block]:
    """What each study says by itself, as in its own report."""
    columns = text_columns("study", "arm", "verdict", "message")
    rows = [
        make_row(results.study.name, arm, verdict_cell(one.verdict, None), one.message, arm=arm)
        for results in tables.studies
        for arm, one in results.comparisons.items()
    ]
    return [Folded(summary=say("across-own"), blocks=(make_table(columns, rows),))] if rows else []


# -- data set x arm ------------------------------------------------------------------------------------------------


def _arms_section(tables: AcrossStudies) -> list[Block]:
    blocks: list[Block] = [Prose(text=say("across-how"))]
    for one in tables.arms:
        blocks.append(_arm_table(tables, one))
        blocks += bullets([*_reasons(one.gap), *_other_treatments(tables, one.arm)])
    return blocks


def _arm_table(tables: AcrossStudies, one: ArmTable) -> Table:
    """The columns that are published, with the interval and the verdict beside them."""
    is_relative = find_metric(tables.metric).relative
    columns = [*text_columns("study", "task"), *named_columns(tables.baseline, one.arm)]
    columns += [] if is_relative else number_columns("gap" if _is_share(tables) else "gap-plain")
    columns += [*number_columns("interval", "relative-gap", "quality-kept", "time-change"), *text_columns("verdict")]
    rows = []
    parts = zip(tables.studies, one.gap.parts, one.share.parts, one.time.parts, strict=True)
    for results, gap, share, time in parts:
        own = results.comparisons.get(one.arm)
        row = make_row(
            results.study.name,
            results.study.recipe.data.task,
            *(_value_cell(tables, results, arm) for arm in (tables.baseline, one.arm)),
            *_gap_cells(tables, gap.value, gap.measured.interval, share.value),
            _change_cell(None if time.measured.blocked_by else time.value),
            verdict_cell(own.verdict, None) if own is not None else DASH,
            arm=one.arm,
        )
        rows.append(row)
    mean = make_row(
        say("across-mean"),
        *(DASH, DASH, DASH),
        *_gap_cells(tables, one.gap.value, one.gap.interval, one.share.value),
        _change_cell(None if one.time.status == "invalid" else one.time.value),
        verdict_cell(one.verdict, None),
        arm=one.arm,
        is_total=True,
    )
    return make_table(columns, [*rows, mean])


def _gap_cells(
    tables: AcrossStudies, gap: float | None, interval: Interval | None, share: float | None
) -> list[TableCell]:
    """Gap, interval, relative gap, and how much of the baseline is reached."""
    ends = (_gap(tables, interval.low), _gap(tables, interval.high)) if interval is not None else ()
    is_known = bool(ends) and DASH not in ends
    shown = [] if find_metric(tables.metric).relative else [number_cell(gap, _gap(tables, gap))]
    bounds = number_cell(interval.low if is_known and interval else None, f"[{', '.join(ends)}]")
    reached = number_cell(share, f"{100 * share:.1f} %" if share is not None else "")
    return [*shown, bounds, _change_cell(share), reached]


def _value_cell(tables: AcrossStudies, results: Results, arm: str) -> TableCell:
    found = results.mean(arm, tables.metric)
    if found is None:
        return number_cell(None, "")
    return number_cell(found.mean, f"{100 * found.mean:.2f} %" if _is_share(tables) else format_number(found.mean))


def _change_cell(ratio: float | None) -> TableCell:
    return number_cell(ratio - 1 if ratio is not None else None, _percent(ratio) if ratio is not None else "")


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %"


def _gap(tables: AcrossStudies, value: float | None) -> str:
    """In points of a share, in percent of a perplexity, else in the unit of the metric."""
    if value is None or not abs(value) < float("inf"):
        return DASH
    if find_metric(tables.metric).relative:
        return _percent(value)
    return f"{100 * value:+.2f}" if _is_share(tables) else f"{value:+.4f}"


def _is_share(tables: AcrossStudies) -> bool:
    return find_metric(tables.metric).is_share


def _reasons(one: Combined) -> list[Text]:
    """What leaves a mean open, and which seeds failed."""
    failed = [
        Message("part-open", study=part.study, why=why)
        for part in one.parts
        for why in describe_failures(part.measured.outcomes)
    ]
    return [translate(why) for why in (*one.why, *failed)]


def _other_treatments(tables: AcrossStudies, arm: str) -> list[Text]:
    """One name for two treatments, as where one model is pretrained and another is not."""
    found: dict[str, list[str]] = {}
    for results in tables.studies:
        if arm in results.study.arms:
            found.setdefault(str(results.study.arms[arm]), []).append(results.study.name)
    if len(found) < 2:
        return []
    named = [
        say("across-treatment", treatment=treatment, studies=join_names(names)) for treatment, names in found.items()
    ]
    return [say("across-treatments", arm=arm, treatments=list_texts(named))]


# -- between studies -----------------------------------------------------------------------------------------------


def _interactions_section(tables: AcrossStudies) -> list[Block]:
    if not tables.interactions:
        return [Prose(text=say("interactions-none"))]
    columns = text_columns("arm", "one-study", "other-study", "varied")
    columns += [*number_columns("one-gap", "other-gap", "gap-difference", "interval"), *text_columns("status")]
    rows = []
    for one in tables.interactions:
        gap, (first, second) = one.gap, one.gap.parts
        interval, badge = gap.interval, None if gap.status == "estimated" else gap.status
        ends = (_gap(tables, interval.low), _gap(tables, interval.high)) if interval is not None else (DASH,)
        row = make_row(
            one.arm,
            first.study,
            second.study,
            say(f"varied-{one.varied}"),
            number_cell(first.value, _gap(tables, first.value)),
            number_cell(second.value, _gap(tables, second.value)),
            number_cell(gap.value, _gap(tables, gap.value)),
            number_cell(None if DASH in ends or interval is None else interval.low, f"[{', '.join(ends)}]"),
            text_cell(DASH if gap.status == "estimated" else say(f"word-{gap.status}"), badge=badge),
            arm=one.arm,
        )
        rows.append(row)
    return [Prose(text=say("interactions-how")), make_table(columns, rows)]


def _figures(tables: AcrossStudies) -> Sequence[Block]:
    """The four corners of every study, side by side where the page has room."""
    if not is_installed("matplotlib"):
        return [Prose(text=say("figures-no-matplotlib"))]
    from oelm.report.figures.arms import plot_four_corners

    looks = styles([one.arm for one in tables.arms], tables.baseline)
    plots = []
    for number, results in enumerate(tables.studies, 1):
        svg, caption = plot_four_corners(FigureContext(results=results, styles=looks))
        title = say("figure-corners-of", study=results.study.name)
        plots.append(Plot(name=f"corners-{number}", title=title, caption=caption, svg=svg))
    return plots
