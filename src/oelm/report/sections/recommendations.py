"""Recommendations: which arms to take, by what is wanted. Each row names its evidence, or that there is none."""

from statistics import fmean

from oelm.analysis.results import Results
from oelm.analysis.stats.estimate import holm
from oelm.analysis.stats.power import ALPHA
from oelm.analysis.stats.timed_pairs import count_rounds, timed_pair
from oelm.analysis.verdicts import Comparison, compare_arms, corrected
from oelm.message import MessageValue, Text
from oelm.report.blocks import Block, Prose, make_row, make_table, text_columns
from oelm.runs.bench import Bench
from oelm.text.messages import join_names, say


def recommendations_section(results: Results) -> list[Block]:
    bench = results.bench
    best = {
        "quality": _winner(results, results.study.compare.metric),
        "memory": _winner(results, "peak_memory"),
        "fastest": _fastest(bench, _family(results)) if bench is not None else _winner(results, "step_seconds"),
        "fewest": _fewest(results),
    }
    rows = [make_row(say(f"recommend-{wish}"), *found) for wish, found in best.items()]
    table = make_table(text_columns("wish", "arm", "evidence"), rows)
    return [Prose(text=say("recommend-how", against=results.study.compare.baseline)), table]


def _family(results: Results) -> int:
    """All comparisons that were planned, whichever are shown."""
    return len(results.planned.arms) - 1


def _fastest(bench: Bench, family: int) -> tuple[Text | str, Text]:
    """By what was measured in turns: the arms whose steps are shown to be faster, the fastest first; the one compared
    with if all are slower."""
    found = [timed_pair(bench, arm, bench.against) for arm in bench.arms]
    pairs = {pair.arm: pair for pair in found if pair is not None}
    valid = {arm: pair for arm, pair in pairs.items() if not pair.issues}
    if not valid:
        codes = dict.fromkeys(issue.code for pair in pairs.values() for issue in pair.issues)
        return say("recommend-nobody"), say("recommend-blocked", codes=", ".join(codes))
    p_values = holm({arm: pair.p_differs for arm, pair in valid.items()}, family)
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
        return join_names([pair.arm for pair in faster]), evidence
    if len(clear) == len(pairs):
        return bench.against, say("recommend-all-worse")
    return say("recommend-nobody"), say("recommend-no-evidence")


def _winner(results: Results, metric: str) -> tuple[Text | str, Text]:
    """The arms that are shown to be better than the one compared with, furthest first; that one if all are worse."""
    study, against = results.study, results.study.compare.baseline
    nothing = say("recommend-nobody")
    if against not in results.arms or len(results.arms) < 2:
        return nothing, say("recommend-no-evidence")
    found = results.comparisons
    if metric != study.compare.metric:
        others = [arm for arm in results.arms if arm != against]
        family = _family(results)
        found = {arm: compare_arms(results, arm, against=against, metric=metric, family=family) for arm in others}
        found = corrected(found, family=family)
    valid = {arm: one for arm, one in found.items() if one.verdict != "invalid" and one.n > 1}
    if not valid:
        codes = dict.fromkeys(f.code for one in found.values() for f in one.issues if f.severity == "invalid")
        key = "recommend-blocked" if codes else "recommend-no-evidence"
        return nothing, say(key, codes=", ".join(codes))
    better = [one for one in valid.values() if one.verdict == "better"]
    if better:
        better.sort(key=lambda one: -abs(one.estimate.mean))
        return join_names([one.arm for one in better]), _evidence(results, better[0])
    if all(one.verdict == "worse" for one in found.values()):
        return against, say("recommend-all-worse")
    if len(valid) == len(found) and all(one.verdict == "equivalent" for one in valid.values()):
        return nothing, say("recommend-all-equivalent")
    return nothing, say("recommend-no-evidence")


def _evidence(results: Results, one: Comparison) -> Text:
    base = fmean(results.values(one.against, one.metric).values())
    numbers = [one.shown(value) for value in (one.estimate.mean, one.interval.low, one.interval.high)]
    if one.metric == results.study.compare.metric or base == 0:
        mean, low, high = (f"{value:+.4f}" for value in numbers)
    else:
        mean, low, high = (f"{value / base:+.1%}" for value in numbers)
    named: dict[str, MessageValue] = {"arm": one.arm, "against": one.against, "metric": one.metric, "n": one.n}
    return say("recommend-evidence", mean=mean, low=low, high=high, **named)


def _fewest(results: Results) -> tuple[Text | str, Text]:
    """A count is exact: no test is needed, only that it can be trusted."""
    counts = {arm: set(results.values(arm, "trainable").values()) for arm in results.arms}
    known = {arm: next(iter(values)) for arm, values in counts.items() if len(values) == 1}
    wrong = [f.code for f in results.checks if f.code in ("COUNT-MISSES-BUFFERS", "AUDIT-FAILED")]
    if len(known) < len(results.arms) or len(known) < 2 or wrong:
        codes = ", ".join(dict.fromkeys(wrong))
        key = "recommend-blocked" if wrong else "recommend-no-evidence"
        return say("recommend-nobody"), say(key, codes=codes)
    least, most = min(known.values()), max(known.values())
    arms = [arm for arm, count in known.items() if count == least]
    if least == most:
        return say("recommend-nobody"), say("recommend-same-count", count=f"{least:,.0f}")
    share = f"{1 - least / most:.1%}"
    return join_names(arms), say("recommend-count", count=f"{least:,.0f}", most=f"{most:,.0f}", share=share)
