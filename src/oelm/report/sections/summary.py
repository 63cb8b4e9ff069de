"""What a report opens with: the question, the verdict, and what the checks found."""

from __future__ import annotations

import math

from oelm.analysis.results import Results
from oelm.analysis.verdicts import Comparison
from oelm.message import Text
from oelm.metrics import find_metric
from oelm.report.blocks import Block, Bullets, Folded, Prose, TableRow, VerdictBox, make_table, text_cell
from oelm.text.messages import join_names, join_texts, list_texts, say, translate, untranslated

_SPELLED_OUT = 4  # arms that the verdict names with their numbers; more are named alone


def question_section(results: Results) -> list[Block]:
    study = results.study
    compare = study.compare
    others = [arm for arm in study.arms if arm != study.compare.baseline]
    margin = find_metric(compare.metric).effect(compare.margin) if compare.margin is not None else None
    asked = say(
        "question",
        arms=join_names(others),
        against=study.compare.baseline,
        metric=compare.metric,
        better=say(f"better-{compare.direction}"),
        task=study.recipe.data.task,
        model=study.recipe.model.name or study.recipe.model.preset or "?",
        seeds=len(study.seeds),
    )
    interest = say("question-margin", margin=margin) if margin is not None else say("question-no-margin")
    if margin is not None and compare.because is not None:
        interest = join_texts([interest, say("question-because", why=compare.because)])
    notes = [untranslated(note) for note in study.notes]
    return [Prose(text=asked), Prose(text=interest), *([Bullets(items=tuple(notes))] if notes else [])]


def overall_verdict(results: Results) -> VerdictBox:
    """In one sentence: every arm's verdict, or what blocks all of them."""
    found = list(results.comparisons.values())
    compare = results.study.compare
    if not found:
        key = "overall-none" if compare.baseline in results.arms else "overall-no-baseline"
        return VerdictBox(kind="inconclusive", text=say(key, against=compare.baseline))
    kinds = list(dict.fromkeys(one.verdict for one in found))
    lacks = list(dict.fromkeys(name for one in found for name in one.lacks))
    without = [say("overall-lacking", files=join_names(lacks))] if lacks else []
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
    why = dict.fromkeys(one.exploratory for one in found if one.exploratory is not None)
    text = join_texts([sentence, *(say("overall-exploratory", why=reason) for reason in why), *without])
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


def comparison_sentences(results: Results) -> list[Block]:
    found = tuple(translate(one.message) for one in results.comparisons.values())
    return [Folded(summary=say("each-comparison"), blocks=(Bullets(items=found),))] if found else []


def checks_section(results: Results) -> list[Block]:
    if not results.checks:
        return [Prose(text=say("checks-none"))]
    rows = [
        TableRow(
            cells=(
                text_cell(say(f"word-{found.severity}"), badge=found.severity),
                text_cell(found.code),
                text_cell(join_names(found.places)),
                text_cell(found.message),
            )
        )
        for found in results.checks
    ]
    columns = [(say(f"column-{name}"), False) for name in ("severity", "check", "where", "message")]
    return [Prose(text=say("checks-how")), make_table(columns, rows)]
