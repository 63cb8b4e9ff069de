"""The first screen of a report: the question, the verdict, and what would change it; and what the checks found."""

import math

from oelm.analysis.change import what_would_change
from oelm.analysis.hypotheses import JudgedHypothesis
from oelm.analysis.results import Results
from oelm.analysis.text_table import lock_issues
from oelm.analysis.verdicts import Comparison, exploratory_arms
from oelm.message import Text
from oelm.metrics import find_metric
from oelm.report.blocks import (
    Block,
    Bullets,
    Folded,
    Prose,
    Table,
    TableRow,
    VerdictBox,
    bullets,
    deciding_cell,
    make_row,
    make_table,
    number_cell,
    number_columns,
    text_cell,
    text_columns,
    verdict_cell,
)
from oelm.report.sections.design import measured_cells
from oelm.study.cells import is_nested
from oelm.text.messages import join_names, join_texts, list_texts, say, translate

_SPELLED_OUT = 4  # arms that the verdict in one sentence names with their numbers; more are named alone
_MOST_LINES = 7  # verdicts that fit on the first screen; more are folded


def lock_blocks(results: Results) -> list[Block]:
    """How the study departs from what was locked: before anything else is read."""
    items = [
        say(
            "lock-issue",
            code=" ".join((one.code, *one.places)),
            severity=say(f"word-{one.severity}"),
            message=one.message,
        )
        for one in lock_issues(results)
    ]
    return bullets(items)


def question_section(results: Results) -> list[Block]:
    """What is compared, on what data and model, with how many seeds; and what would matter."""
    study = results.study
    compare, model = study.compare, study.recipe.model
    asked = say(
        "question",
        arms=join_names([arm for arm in study.arms if arm != compare.baseline]),
        against=compare.baseline,
        metric=compare.metric,
        better=say(f"better-{compare.direction}"),
        task=study.recipe.data.task,
        model=" ".join(part for part in (model.label, model.size) if part) or "?",
    )
    how = [_amounts(results), _tuning(results), _margin(results)]
    if study.hypotheses:
        how.append(say("question-hypotheses", n=len(study.hypotheses)))
    if results.lock is not None:
        how.append(say("study-locked", digest=results.lock.digest[:12]))
    return [Prose(text=asked), Prose(text=join_texts(how))]


def _amounts(results: Results) -> Text:
    """How many seeds and examples; examples as the records count them, if there are any."""
    seeds = len(results.planned.seeds)
    data = next((record.data for record in results.records.values() if record.data is not None), None)
    tested = next(iter(results.measured), None)
    if data is None or tested is None:
        return say("question-seeds", seeds=seeds)
    sizes = {"train": data.sizes.get("train", 0), "test": data.sizes.get(f"test-{tested}", 0)}
    return say("question-amounts", seeds=seeds, split=tested, **sizes)


def _tuning(results: Results) -> Text:
    tune = results.study.tune
    if tune is None:
        return say("question-untuned")
    key = "question-nested" if is_nested(results.study) else "question-shared"
    return say(key, number=math.prod(map(len, tune.grid.values())), paths=", ".join(tune.grid))


def _margin(results: Results) -> Text:
    compare = results.study.compare
    if compare.margin is None:
        return say("question-no-margin")
    margin = say("question-margin", margin=find_metric(compare.metric).effect(compare.margin))
    return join_texts([margin, say("question-because", why=compare.because)]) if compare.because else margin


def verdict_section(results: Results) -> list[Block]:
    """Every hypothesis and every arm in a line, with the interval that decides; then in full, and the study's notes."""
    overall = overall_verdict(results)
    rows = [_hypothesis_line(one) for one in results.hypotheses]
    rows += [_comparison_line(results, one) for one in results.comparisons.values()]
    blocks: list[Block] = [] if results.comparisons and overall.kind != "invalid" else [overall]
    if rows:
        blocks.append(_verdict_table(rows[:_MOST_LINES]))
    if len(rows) > _MOST_LINES:
        rest = rows[_MOST_LINES:]
        blocks.append(Folded(summary=say("other-verdicts", n=len(rest)), blocks=(_verdict_table(rest),)))
    lacks = _lacking(list(results.comparisons.values()))
    blocks += [Prose(text=text) for text in lacks if overall not in blocks]
    sentences = tuple(translate(one.message) for one in results.comparisons.values())
    if sentences:
        blocks.append(Folded(summary=say("each-comparison"), blocks=(Bullets(items=sentences),)))
    return blocks


def _verdict_table(rows: list[TableRow]) -> Table:
    return make_table([*text_columns("asked", "verdict"), *number_columns("measured", "deciding")], rows)


def _hypothesis_line(one: JudgedHypothesis) -> TableRow:
    stated = say("asked-hypothesis", name=one.hypothesis.name, statement=one.hypothesis.statement)
    return make_row(stated, verdict_cell(one.status, one.remark), *measured_cells(one))


def _comparison_line(results: Results, one: Comparison) -> TableRow:
    key = "asked-arm" if one.exploratory is None else "asked-exploratory"
    treatment = results.study.arms[one.arm].method.replace(", layers all", "")
    mean = one.shown(one.estimate.mean) if one.differences else None
    return make_row(
        say(key, arm=one.arm, against=one.against, treatment=treatment),
        verdict_cell(one.verdict, one.remark),
        number_cell(mean, f"{mean:+.4f}" if mean is not None else ""),
        deciding_cell(one.shown_interval(one.deciding) if one.differences else None, sign=True),
        arm=one.arm,
    )


def change_section(results: Results) -> list[Block]:
    """What would change a verdict; and what the study itself wants to be known of it."""
    found = [
        say("change-about", about=join_names(one.about), what=one.message)
        if one.about
        else say("change-all", what=one.message)
        for one in what_would_change(results)
    ]
    notes = [say("study-note", note=note) for note in results.study.notes]
    return [Bullets(items=(*(found or [say("change-nothing")]), *notes))]


def overall_verdict(results: Results) -> VerdictBox:
    """In one sentence: every arm's verdict, or what blocks all of them."""
    if results.sealed is not None:
        return VerdictBox(kind="inconclusive", text=translate(results.sealed))
    found = list(results.comparisons.values())
    compare = results.study.compare
    if not found:
        key = "overall-none" if compare.baseline in results.arms else "overall-no-baseline"
        return VerdictBox(kind="inconclusive", text=say(key, against=compare.baseline))
    kinds = list(dict.fromkeys(one.verdict for one in found))
    without = _lacking(found)
    if kinds == ["invalid"]:
        codes = dict.fromkeys(f.code for one in found for f in one.issues if f.severity == "invalid")
        text = join_texts([say("overall-invalid", codes=", ".join(codes)), *without])
        return VerdictBox(kind="invalid", text=text)
    if len(found) <= _SPELLED_OUT:
        verdicts = [_arm_verdict(one) for one in found]
    else:
        verdicts = []
        for kind in ("better", "worse", "equivalent", "inconclusive", "invalid"):
            arms = [one.arm for one in found if one.verdict == kind]
            if arms:
                verdicts.append(say("overall-group", arms=join_names(arms), verdict=say(f"word-{kind}")))
    sentence = say("overall", against=compare.baseline, metric=compare.metric, verdicts=list_texts(verdicts))
    exploratory = [
        say("overall-exploratory", why=reason)
        if len(arms) == len(found)
        else say("overall-exploratory-arms", arms=join_names(arms), why=reason)
        for reason, arms in exploratory_arms(found).items()
    ]
    text = join_texts([sentence, *exploratory, *without])
    return VerdictBox(kind=kinds[0] if len(kinds) == 1 else "mixed", text=text)


def _arm_verdict(one: Comparison) -> Text:
    verdict = say(f"is-{one.verdict}")
    if one.verdict == "invalid":
        codes = dict.fromkeys(found.code for found in one.issues if found.severity == "invalid")
        return say("overall-arm-invalid", arm=one.arm, verdict=verdict, codes=", ".join(codes))
    if not one.differences:
        return say("overall-arm-nothing", arm=one.arm, verdict=verdict)
    if not math.isfinite(one.deciding.low):
        return say("overall-arm-mean", arm=one.arm, verdict=verdict, mean=one.shown(one.estimate.mean))
    interval = one.shown_interval(one.deciding)
    values = {"mean": one.shown(one.estimate.mean), "low": interval.low, "high": interval.high}
    return say("overall-arm", arm=one.arm, verdict=verdict, percent=100 * interval.level, **values)


def _lacking(found: list[Comparison]) -> list[Text]:
    lacks = list(dict.fromkeys(name for one in found for name in one.lacks))
    return [say("overall-lacking", files=join_names(lacks))] if lacks else []


def checks_section(results: Results) -> list[Block]:
    if not results.checks:
        return [Prose(text=say("checks-none"))]
    rows = [
        make_row(
            text_cell(say(f"word-{found.severity}"), badge=found.severity),
            found.code,
            join_names(found.places),
            found.message,
        )
        for found in results.checks
    ]
    columns = text_columns("severity", "check", "where", "message")
    return [Prose(text=say("checks-how")), make_table(columns, rows)]
