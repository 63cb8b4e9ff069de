"""Content: everything a report says, in its order, as data. Nothing in it depends on when or where it is made."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from oelm.analysis.as_run import design_of_results
from oelm.analysis.claims import Ledger, load_ledger
from oelm.analysis.paired import from_seeds
from oelm.analysis.timed import rounds_told
from oelm.analysis.verdicts import Comparison
from oelm.report.figures import plots
from oelm.report.plot import DASH
from oelm.report.plot import shown as measured
from oelm.report.practice import practice
from oelm.report.sections import Block, Bullets, Folded, Prose, Row, Section, Table, Verdict, number, table, words
from oelm.report.shown import finite, interval_cell, listed, named, seconds, setting
from oelm.report.sources import claims, left_out, provenance, record_path
from oelm.report.svg import Style, styles
from oelm.report.times import times
from oelm.study.plan import Cell, differences
from oelm.words.text import Text, plain, say

if TYPE_CHECKING:
    from oelm.analysis.results import Results
    from oelm.records.record import Record

_SPELLED_OUT = 4  # arms that the verdict names with their numbers; more are named alone


@dataclass(frozen=True, kw_only=True)
class Content:
    study: str
    verdict: Verdict
    sections: tuple[Section, ...]
    styles: dict[str, Style]
    """Of the arms that have results, in the study's order."""
    made_from: Text


def content_of(results: Results, *, ledger: Ledger | None = None) -> Content:
    """The report of a study. `ledger` holds the published claims it re-tests: those shipped, unless told otherwise."""
    study = results.study
    verdict = overall(results)
    parts: dict[str, Iterable[Block]] = {
        "question": _question(results),
        "verdict": [verdict, *_sentences(results)],
        "checks": _checks(results),
        "results": _results(results),
        "times": times(results),
        "figures": plots(results),
        "differences": _differences(results),
        "hypotheses": _hypotheses(results),
        "practice": practice(results),
        "claims": claims(results, ledger or load_ledger()),
        "provenance": provenance(results),
        "left-out": left_out(results),
    }
    looks = styles(list(study.arms), study.compare.against)
    return Content(
        study=study.name,
        verdict=verdict,
        sections=tuple(Section(name=k, title=say(f"section-{k}"), blocks=tuple(v)) for k, v in parts.items()),
        styles={arm: looks[arm] for arm in results.arms},
        made_from=say("made-from", records=len(results.records) + len(results.tuning), left_out=len(results.left_out)),
    )


# -- question and verdict ------------------------------------------------------------------------------------------


def _question(results: Results) -> list[Block]:
    study = results.study
    primary = study.compare.primary
    others = [arm for arm in study.arms if arm != study.compare.against]
    margin = primary.smallest_interesting
    asked = say(
        "question",
        arms=named(others),
        against=study.compare.against,
        metric=primary.metric,
        better=say(f"better-{primary.better}"),
        task=study.recipe.data.task,
        model=study.recipe.model.name or study.recipe.model.preset or "?",
        seeds=len(study.seeds),
    )
    told = say("question-margin", margin=margin) if margin is not None else say("question-no-margin")
    notes = [plain(note) for note in study.notes]
    return [Prose(text=asked), Prose(text=told), *([Bullets(items=tuple(notes))] if notes else [])]


def overall(results: Results) -> Verdict:
    """The one sentence: every arm's verdict, or what stands in the way of all of them."""
    found = list(results.comparisons.values())
    compare_ = results.study.compare
    if not found:
        key = "overall-none" if compare_.against in results.arms else "overall-no-baseline"
        return Verdict(kind="undecided", text=say(key, against=compare_.against))
    kinds = list(dict.fromkeys(one.verdict for one in found))
    if kinds == ["invalid"]:
        codes = dict.fromkeys(f.code for one in found for f in one.flags if f.severity == "invalid")
        return Verdict(kind="invalid", text=say("overall-invalid", codes=", ".join(codes)))
    if len(found) <= _SPELLED_OUT:
        told = [_told(one) for one in found]
    else:
        told = []
        for kind in ("better", "worse", "equivalent", "undecided", "invalid"):
            arms = [one.arm for one in found if one.verdict == kind]
            if arms:
                told.append(say("overall-group", arms=named(arms), verdict=say(f"word-{kind}")))
    sentence = say("overall", against=compare_.against, metric=compare_.primary.metric, told=listed(told))
    return Verdict(kind=kinds[0] if len(kinds) == 1 else "mixed", text=sentence)


def _told(one: Comparison) -> Text:
    verdict = say(f"is-{one.verdict}")
    if one.verdict == "invalid":
        codes = dict.fromkeys(found.code for found in one.flags if found.severity == "invalid")
        return say("overall-arm-invalid", arm=one.arm, verdict=verdict, codes=", ".join(codes))
    if not one.differences:
        return say("overall-arm-nothing", arm=one.arm, verdict=verdict)
    if not math.isfinite(one.interval.low):
        return say("overall-arm-mean", arm=one.arm, verdict=verdict, mean=one.estimate.mean)
    values = {"mean": one.estimate.mean, "low": one.interval.low, "high": one.interval.high}
    return say("overall-arm", arm=one.arm, verdict=verdict, **values)


def _sentences(results: Results) -> list[Block]:
    found = tuple(_without_gaps(one) for one in results.comparisons.values())
    return [Folded(summary=say("each-comparison"), blocks=(Bullets(items=found),))] if found else []


def _without_gaps(one: Comparison) -> Text:
    """Its sentence; numbers that there are none of are dashes."""
    return Text(*(re.sub(r"[+-](inf|nan)\b", DASH, told) for told in (one.sentence.en, one.sentence.zh)))


def _checks(results: Results) -> list[Block]:
    """What is said of several places alike is said once."""
    places: dict[tuple[str, str, Text], list[str]] = {}
    for one in results.checks:
        places.setdefault((one.severity, one.code, one.message), []).append(one.where)
    if not places:
        return [Prose(text=say("checks-none"))]
    rows = [
        Row(
            cells=(
                words(say(f"word-{severity}"), badge=severity),
                words(code),
                words(named([place for place in where if place])),
                words(message),
            )
        )
        for (severity, code, message), where in places.items()
    ]
    columns = [(say(f"column-{name}"), False) for name in ("severity", "check", "where", "message")]
    return [Prose(text=say("checks-how")), table(columns, rows)]


# -- results -------------------------------------------------------------------------------------------------------


def _results(results: Results) -> list[Block]:
    metric, against = results.study.compare.primary.metric, results.study.compare.against
    columns = [
        (say("column-arm"), False),
        (say("column-mean", metric=metric), True),
        (say("column-interval"), True),
        (say("column-n"), True),
        (say("column-difference", against=against), True),
        (say("column-interval"), True),
        (say("column-verdict"), False),
        (say("column-trainable"), True),
        (say("column-step-time"), True),
        (say("column-memory"), True),
    ]
    blocks: list[Block] = [
        Prose(text=say("results-how", metric=metric, against=against)),
        table(columns, [_arm_row(results, arm) for arm in results.arms]),
        Folded(summary=say("results-cells", n=len(results.records)), blocks=(_cells(results),), name="cells"),
    ]
    if results.comparisons:
        blocks.append(Folded(summary=say("statistics"), blocks=tuple(_statistics(results))))
    return blocks


def _arm_row(results: Results, arm: str) -> Row:
    metric, against = results.study.compare.primary.metric, results.study.compare.against
    values = list(results.values(arm, metric).values())
    estimate = from_seeds(values) if values else None
    interval = estimate.interval() if estimate is not None else None
    one = results.comparisons.get(arm)
    told = one if one is not None and one.differences else None
    return Row(
        arm=arm,
        cells=(
            words(arm),
            number(estimate.mean if estimate else None, measured(estimate.mean) if estimate else "", href="#cells"),
            interval_cell(interval),
            number(len(values), f"{len(values)}"),
            number(told.estimate.mean if told else None, f"{told.estimate.mean:+.4f}" if told else "", href="#cells"),
            interval_cell(told.interval if told else None, sign=True),
            words(say("word-against"))
            if arm == against
            else words(say(f"word-{one.verdict}"), badge=one.verdict)
            if one is not None
            else words(DASH),
            _mean(results, arm, "trainable", lambda value: f"{value:,.0f}"),
            _mean(results, arm, "step_seconds", seconds),
            _mean(results, arm, "peak_memory", lambda value: f"{value / 1e9:.2f} GB"),
        ),
    )


def _mean(results: Results, arm: str, metric: str, show: Any) -> Any:
    values = list(results.values(arm, metric).values())
    mean = fmean(values) if values else None
    return number(mean, show(mean) if mean is not None else "")


def _cells(results: Results) -> Table:
    """Every cell, with a link to its record."""
    metric = results.study.compare.primary.metric
    columns = [
        (say("column-arm"), False),
        (say("column-seed"), True),
        (say("column-status"), False),
        (say("column-final", metric=metric), True),
        (say("column-chosen", metric=metric), True),
        (say("column-lr"), True),
        (say("column-step-time"), True),
        (say("column-training"), True),
        (say("column-memory"), True),
    ]
    by_metric = {
        (arm, name): results.values(arm, name)
        for arm in results.arms
        for name in (metric, "step_seconds", "training_seconds", "peak_memory")
    }
    chosen = {arm: results.values(arm, metric, model="chosen") for arm in results.arms}
    rows = []
    for arm in results.arms:
        for seed, record in results.of(arm).items():
            final, best = by_metric[arm, metric].get(seed), chosen[arm].get(seed)
            step, training = by_metric[arm, "step_seconds"].get(seed), by_metric[arm, "training_seconds"].get(seed)
            memory, lr = by_metric[arm, "peak_memory"].get(seed), _peak_lr(record)
            href = record_path(Cell(arm=arm, seed=seed))
            cells = (
                words(arm),
                number(seed, str(seed), href=href),
                words(say(f"status-{record.status}")),
                number(final, measured(final) if final is not None else "", href=href),
                number(best, measured(best) if best is not None else "", href=href),
                number(lr, f"{lr:g}" if lr is not None else ""),
                number(step, seconds(step) if step is not None else ""),
                number(training, f"{training:,.0f} s" if training is not None else ""),
                number(memory, f"{memory / 1e9:.2f} GB" if memory is not None else ""),
            )
            rows.append(Row(arm=arm, cells=cells))
    return table(columns, rows)


def _peak_lr(record: Record) -> float | None:
    recipe = record.made_with.get("recipe")
    optimizer = recipe.get("optimizer") if isinstance(recipe, Mapping) else None
    lr = optimizer.get("lr") if isinstance(optimizer, Mapping) else None
    return float(lr) if isinstance(lr, int | float) else None


def _statistics(results: Results) -> list[Block]:
    found = list(results.comparisons.values())
    columns = [(say("column-arm"), False), (say("column-n"), True), (say("column-mean-difference"), True)]
    columns += [(say(f"column-{name}"), True) for name in ("over-seeds", "bootstrap", "over-examples", "over-both")]
    columns += [(say(f"column-{name}"), True) for name in ("se-seeds", "se-examples", "p-differs", "p-equivalent")]
    columns += [(say(f"column-{name}"), True) for name in ("detectable", "seeds-needed")]
    rows = []
    for one in found:
        told = one.differences
        both = one.examples
        needed = one.seeds_needed
        rows.append(
            Row(
                arm=one.arm,
                cells=(
                    words(one.arm),
                    number(one.n, str(one.n)),
                    number(one.estimate.mean if told else None, f"{one.estimate.mean:+.4f}"),
                    interval_cell(one.over_seeds if told else None, sign=True),
                    interval_cell(one.bootstrap, sign=True),
                    interval_cell(one.over_examples, sign=True),
                    interval_cell(one.interval if both is not None else None, sign=True),
                    finite(both.seed_se if both is not None else one.estimate.seeds.se, ".4f"),
                    finite(one.estimate.examples.se if one.estimate.examples is not None else None, ".4f"),
                    finite(one.p_differs if told else None, ".3g"),
                    finite(one.p_equivalent if told else None, ".3g"),
                    finite(one.detectable, ".4f"),
                    number(needed, str(needed)),
                ),
            )
        )
    blocks: list[Block] = [Prose(text=say("statistics-how")), table(columns, rows)]
    tests = [
        Row(
            arm=one.arm,
            cells=(
                words(one.arm),
                number(seed, str(seed)),
                *(number(count, f"{count:,}") for count in (test.both, test.only_a, test.only_b, test.neither)),
                number(test.p, f"{test.p:.3g}"),
            ),
        )
        for one in found
        for seed, test in one.mcnemar.items()
    ]
    if tests:
        against = results.study.compare.against
        columns = [(say("column-arm"), False), (say("column-seed"), True), (say("column-both-right"), True)]
        columns += [(say("column-only-arm"), True), (say("column-only-against", against=against), True)]
        columns += [(say("column-neither"), True), (plain("p"), True)]
        blocks += [Prose(text=say("mcnemar-how")), table(columns, tests)]
    return blocks


# -- design --------------------------------------------------------------------------------------------------------


def _differences(results: Results) -> list[Block]:
    declared = differences(results.study)
    sides = design_of_results(results).sides
    tuned = {path: {arm: results.tuned(arm).get(path) for arm in sides} for path in _tuned_paths(results)}
    paths = dict.fromkeys(path for side in sides.values() for path in side.settings)
    found = {}
    for path in paths:
        row = {arm: side.settings.get(path) for arm, side in sides.items()}
        if path not in declared and path not in tuned and len({repr(value) for value in row.values()}) > 1:
            found[path] = row
    if not sides:
        return [Prose(text=say("differences-none"))]
    groups = [(declared, plain), (tuned, lambda p: say("column-tuned", path=p))]
    groups.append((found, lambda p: say("column-found", path=p)))
    columns = [(say("column-arm"), False)]
    columns += [(title(path), False) for group, title in groups for path in group]
    rows = [
        Row(arm=arm, cells=(words(arm), *(words(setting(r.get(arm))) for group, _ in groups for r in group.values())))
        for arm in sides
    ]
    key = "differences-how" if not found else "differences-found"
    return [Prose(text=say(key, n=len(found))), table(columns, rows)]


def _tuned_paths(results: Results) -> list[str]:
    return list(results.study.tune.grid) if results.study.tune is not None else []


def _hypotheses(results: Results) -> list[Block]:
    if not results.hypotheses:
        return [Prose(text=say("hypotheses-none"))]
    columns = [(say(f"column-{name}"), False) for name in ("hypothesis", "statement", "rule")]
    columns += [(say("column-measured"), True), (say("column-interval"), True), (say("column-n"), True)]
    columns += [(say("column-standing"), False)]
    rows = []
    for one in results.hypotheses:
        codes = dict.fromkeys(found.code for found in one.flags if found.severity == "invalid")
        told = say(f"word-{one.standing}")
        rows.append(
            Row(
                cells=(
                    words(one.hypothesis.name),
                    words(one.hypothesis.statement),
                    words(str(one.hypothesis)),
                    finite(one.value, ",.4g" if one.value is None or abs(one.value) < 1e4 else ",.0f"),
                    interval_cell(one.interval),
                    words(rounds_told(one.n)) if one.timed else number(one.n, str(one.n)),
                    words(
                        say("standing-blocked", standing=told, codes=", ".join(codes)) if codes else told,
                        badge=one.standing,
                    ),
                )
            )
        )
    return [Prose(text=say("hypotheses-how")), table(columns, rows)]
