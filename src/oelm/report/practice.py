"""Practice: which arms to take, by what is wanted. Each row rests on a comparison, or says that there is none."""

from __future__ import annotations

from statistics import fmean

from oelm.analysis.paired import holm
from oelm.analysis.results import Results
from oelm.analysis.timed import Timed, rounds_told, timed_pair
from oelm.analysis.verdicts import ALPHA, Comparison, compare
from oelm.report.sections import Block, Cell, Prose, Row, table, words
from oelm.report.shown import named
from oelm.words.text import Text, say


def practice(results: Results) -> list[Block]:
    primary = results.study.compare.primary.metric
    wanted = {"quality": primary, "memory": "peak_memory", "fastest": "step_seconds"}
    rows = [Row(cells=(words(say(f"practice-{k}")), *_best(results, metric))) for k, metric in wanted.items()]
    rows.append(Row(cells=(words(say("practice-fewest")), *_fewest(results))))
    columns = [(say("column-wish"), False), (say("column-arm"), False), (say("column-evidence"), False)]
    return [Prose(text=say("practice-how", against=results.study.compare.against)), table(columns, rows)]


def _best(results: Results, metric: str) -> tuple[Cell, Cell]:
    """Of step times, by what was measured in turns, where it was."""
    if metric == "step_seconds" and results.bench is not None:
        return _fastest(results.bench)
    return _winner(results, metric)


def _fastest(bench: Timed) -> tuple[Cell, Cell]:
    """The arms whose steps are shown to be faster, the fastest first; the one compared with if all are slower."""
    found = [timed_pair(bench, arm, bench.against) for arm in bench.arms]
    pairs = {pair.arm: pair for pair in found if pair is not None}
    valid = {arm: pair for arm, pair in pairs.items() if not pair.flags}
    if not valid:
        codes = dict.fromkeys(flag.code for pair in pairs.values() for flag in pair.flags)
        return words(say("practice-nobody")), words(say("practice-blocked", codes=", ".join(codes)))
    corrected = holm({arm: pair.p_differs for arm, pair in valid.items()})
    clear = {arm: pair for arm, pair in valid.items() if corrected[arm] < ALPHA}
    faster = sorted((pair for pair in clear.values() if pair.is_faster), key=lambda pair: pair.ratio)
    if faster:
        first = faster[0]
        assert first.interval is not None
        mean, low, high = (f"{x - 1:+.1%}" for x in (first.ratio, first.interval.low, first.interval.high))
        named_: dict[str, object] = {"arm": first.arm, "against": first.against, "rounds": rounds_told(first.rounds)}
        evidence = say("practice-timed", mean=mean, low=low, high=high, **named_)
        return words(named([pair.arm for pair in faster])), words(evidence)
    if len(clear) == len(pairs):
        return words(bench.against), words(say("practice-all-worse"))
    return words(say("practice-nobody")), words(say("practice-no-evidence"))


def _winner(results: Results, metric: str) -> tuple[Cell, Cell]:
    """The arms that are shown to be better than the one compared with, furthest first; that one if all are worse."""
    study, against = results.study, results.study.compare.against
    nothing = words(say("practice-nobody"))
    if against not in results.arms or len(results.arms) < 2:
        return nothing, words(say("practice-no-evidence"))
    if metric == study.compare.primary.metric:
        found = dict(results.comparisons)
    else:
        found = {arm: compare(results, arm, against=against, metric=metric) for arm in results.arms if arm != against}
    valid = {arm: one for arm, one in found.items() if one.verdict != "invalid" and one.n > 1}
    if not valid:
        codes = dict.fromkeys(f.code for one in found.values() for f in one.flags if f.severity == "invalid")
        key = "practice-blocked" if codes else "practice-no-evidence"
        return nothing, words(say(key, codes=", ".join(codes)))
    corrected = holm({arm: one.p_differs for arm, one in valid.items()})
    if metric == study.compare.primary.metric:  # those are corrected already
        corrected = dict.fromkeys(valid, 0.0)
    clear = {arm: one for arm, one in valid.items() if corrected[arm] < ALPHA}
    better = [one for one in clear.values() if one.verdict == "better"]
    if better:
        better.sort(key=lambda one: -abs(one.estimate.mean))
        return words(named([one.arm for one in better])), words(_evidence(results, better[0]))
    if len(clear) == len(found) and all(one.verdict == "worse" for one in clear.values()):
        return words(against), words(say("practice-all-worse"))
    if len(valid) == len(found) and all(one.verdict == "equivalent" for one in valid.values()):
        return nothing, words(say("practice-all-equivalent"))
    return nothing, words(say("practice-no-evidence"))


def _evidence(results: Results, one: Comparison) -> Text:
    base = fmean(results.values(one.against, one.metric).values())
    if one.metric == results.study.compare.primary.metric or base == 0:
        told = [f"{value:+.4f}" for value in (one.estimate.mean, one.interval.low, one.interval.high)]
    else:
        told = [f"{value / base:+.1%}" for value in (one.estimate.mean, one.interval.low, one.interval.high)]
    mean, low, high = told
    values = {
        "arm": one.arm,
        "against": one.against,
        "metric": one.metric,
        "mean": mean,
        "low": low,
        "high": high,
        "n": one.n,
    }
    return say("practice-evidence", **values)


def _fewest(results: Results) -> tuple[Cell, Cell]:
    """A count is exact: no test is needed, only that it can be trusted."""
    counts = {arm: set(results.values(arm, "trainable").values()) for arm in results.arms}
    known = {arm: next(iter(values)) for arm, values in counts.items() if len(values) == 1}
    wrong = [f.code for f in results.checks if f.code in ("COUNT-MISSES-BUFFERS", "AUDIT-FAILED")]
    if len(known) < len(results.arms) or len(known) < 2 or wrong:
        codes = ", ".join(dict.fromkeys(wrong))
        key = "practice-blocked" if wrong else "practice-no-evidence"
        return words(say("practice-nobody")), words(say(key, codes=codes))
    least, most = min(known.values()), max(known.values())
    arms = [arm for arm, count in known.items() if count == least]
    if least == most:
        return words(say("practice-nobody")), words(say("practice-same-count", count=f"{least:,.0f}"))
    share = f"{1 - least / most:.1%}"
    return words(named(arms)), words(say("practice-count", count=f"{least:,.0f}", most=f"{most:,.0f}", share=share))
