"""Recommendations: which arms to take, by what is wanted. Each row names its evidence, or that there is none."""

from __future__ import annotations

from statistics import fmean

from oelm.analysis.results import Results
from oelm.analysis.stats.estimate import holm
from oelm.analysis.stats.power import ALPHA
from oelm.analysis.stats.timed_pairs import count_rounds, timed_pair
from oelm.analysis.verdicts import Comparison, compare_arms, corrected
from oelm.message import MessageValue, Text
from oelm.report.blocks import Block, Prose, TableCell, TableRow, make_table, text_cell
from oelm.runs.bench import Bench
from oelm.text.messages import join_names, say


def recommendations_section(results: Results) -> list[Block]:
    wanted = {"quality": results.study.compare.metric, "memory": "peak_memory", "fastest": "step_seconds"}
    rows = [TableRow(cells=(text_cell(say(f"recommend-{k}")), *_best(results, metric))) for k, metric in wanted.items()]
    rows.append(TableRow(cells=(text_cell(say("recommend-fewest")), *_fewest(results))))
    columns = [(say("column-wish"), False), (say("column-arm"), False), (say("column-evidence"), False)]
    return [Prose(text=say("recommend-how", against=results.study.compare.baseline)), make_table(columns, rows)]


def _best(results: Results, metric: str) -> tuple[TableCell, TableCell]:
    """Of step times, by what was measured in turns, where it was."""
    if metric == "step_seconds" and results.bench is not None:
        return _fastest(results.bench)
    return _winner(results, metric)


def _fastest(bench: Bench) -> tuple[TableCell, TableCell]:
    """The arms whose steps are shown to be faster, the fastest first; the one compared with if all are slower."""
    found = [timed_pair(bench, arm, bench.against) for arm in bench.arms]
    pairs = {pair.arm: pair for pair in found if pair is not None}
    valid = {arm: pair for arm, pair in pairs.items() if not pair.issues}
    if not valid:
        codes = dict.fromkeys(issue.code for pair in pairs.values() for issue in pair.issues)
        return text_cell(say("recommend-nobody")), text_cell(say("recommend-blocked", codes=", ".join(codes)))
    p_values = holm({arm: pair.p_differs for arm, pair in valid.items()})
    clear = {arm: pair for arm, pair in valid.items() if p_values[arm] < ALPHA}
    faster = sorted((pair for pair in clear.values() if pair.is_faster), key=lambda pair: pair.ratio)
    if faster:
        first = faster[0]
        assert first.interval is not None
        mean, low, high = (f"{x - 1:+.1%}" for x in (first.ratio, first.interval.low, first.interval.high))
        named: dict[str, MessageValue] = {
            "arm": first.arm,
            "against": first.against,
            "rounds": count_rounds(first.rounds),
        }
        evidence = say("recommend-timed", mean=mean, low=low, high=high, **named)
        return text_cell(join_names([pair.arm for pair in faster])), text_cell(evidence)
    if len(clear) == len(pairs):
        return text_cell(bench.against), text_cell(say("recommend-all-worse"))
    return text_cell(say("recommend-nobody")), text_cell(say("recommend-no-evidence"))


def _winner(results: Results, metric: str) -> tuple[TableCell, TableCell]:
    """The arms that are shown to be better than the one compared with, furthest first; that one if all are worse."""
    study, against = results.study, results.study.compare.baseline
    nothing = text_cell(say("recommend-nobody"))
    if against not in results.arms or len(results.arms) < 2:
        return nothing, text_cell(say("recommend-no-evidence"))
    found = results.comparisons
    if metric != study.compare.metric:
        others = [arm for arm in results.arms if arm != against]
        family = len(others)
        found = {arm: compare_arms(results, arm, against=against, metric=metric, family=family) for arm in others}
        found = corrected(found, family=family)
    valid = {arm: one for arm, one in found.items() if one.verdict != "invalid" and one.n > 1}
    if not valid:
        codes = dict.fromkeys(f.code for one in found.values() for f in one.issues if f.severity == "invalid")
        key = "recommend-blocked" if codes else "recommend-no-evidence"
        return nothing, text_cell(say(key, codes=", ".join(codes)))
    better = [one for one in valid.values() if one.verdict == "better"]
    if better:
        better.sort(key=lambda one: -abs(one.estimate.mean))
        return text_cell(join_names([one.arm for one in better])), text_cell(_evidence(results, better[0]))
    if all(one.verdict == "worse" for one in found.values()):
        return text_cell(against), text_cell(say("recommend-all-worse"))
    if len(valid) == len(found) and all(one.verdict == "equivalent" for one in valid.values()):
        return nothing, text_cell(say("recommend-all-equivalent"))
    return nothing, text_cell(say("recommend-no-evidence"))


def _evidence(results: Results, one: Comparison) -> Text:
    base = fmean(results.values(one.against, one.metric).values())
    numbers = [one.shown(value) for value in (one.estimate.mean, one.interval.low, one.interval.high)]
    if one.metric == results.study.compare.metric or base == 0:
        mean, low, high = (f"{value:+.4f}" for value in numbers)
    else:
        mean, low, high = (f"{value / base:+.1%}" for value in numbers)
    named: dict[str, MessageValue] = {"arm": one.arm, "against": one.against, "metric": one.metric, "n": one.n}
    return say("recommend-evidence", mean=mean, low=low, high=high, **named)


def _fewest(results: Results) -> tuple[TableCell, TableCell]:
    """A count is exact: no test is needed, only that it can be trusted."""
    counts = {arm: set(results.values(arm, "trainable").values()) for arm in results.arms}
    known = {arm: next(iter(values)) for arm, values in counts.items() if len(values) == 1}
    wrong = [f.code for f in results.checks if f.code in ("COUNT-MISSES-BUFFERS", "AUDIT-FAILED")]
    if len(known) < len(results.arms) or len(known) < 2 or wrong:
        codes = ", ".join(dict.fromkeys(wrong))
        key = "recommend-blocked" if wrong else "recommend-no-evidence"
        return text_cell(say("recommend-nobody")), text_cell(say(key, codes=codes))
    least, most = min(known.values()), max(known.values())
    arms = [arm for arm, count in known.items() if count == least]
    if least == most:
        return text_cell(say("recommend-nobody")), text_cell(say("recommend-same-count", count=f"{least:,.0f}"))
    share = f"{1 - least / most:.1%}"
    return text_cell(join_names(arms)), text_cell(
        say("recommend-count", count=f"{least:,.0f}", most=f"{most:,.0f}", share=share)
    )
