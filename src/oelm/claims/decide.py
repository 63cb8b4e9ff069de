"""Decide claims: every test of a claim by counting or by our own records, and the verdict that they give together.

The first test that decides gives the verdict, with its scale; a study that was not run as it is shipped is another
test, and decides nothing; nor do two runs of one study, as nothing says which of them counts. Tests that can decide a
claim are one family: they share the 5 % (Holm), also those that were not run. A second stage of a study is another look
at it, and shares them too. A count is exact, and needs neither records nor a correction.

`out of reach here` is a test without records that needs more than a CPU and what comes with oelm; and a claim of which
all tests are. It is not asked what this machine has: the same records give the same page everywhere.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal

from oelm.analysis.across import Combined, interaction, mean_over_studies
from oelm.analysis.estimands import arms_of, bounds
from oelm.analysis.hypotheses import JudgedHypothesis, judge_family, measure_hypothesis
from oelm.analysis.results import Results
from oelm.analysis.stats.estimate import Interval
from oelm.analysis.stats.power import ALPHA
from oelm.claims.counting import count_arm
from oelm.claims.load import shipped_study
from oelm.claims.schema import Claim, ClaimTest
from oelm.message import Message, Text, verbatim
from oelm.metrics import find_metric
from oelm.study.cells import describe_changes
from oelm.study.hypothesis import Estimand, Hypothesis
from oelm.study.shipped import shipped_studies
from oelm.study.study import Study

ClaimStatus = Literal["supported", "refuted", "inconclusive", "out of reach here"]
_DECIDED = ("supported", "refuted")


@dataclass(frozen=True, kw_only=True)
class JudgedTest:
    test: ClaimTest
    status: ClaimStatus
    message: Message
    """The status with its numbers, or what is not there yet."""
    value: float | None = None
    interval: Interval | None = None
    """95 %, by itself; none for a count, which is exact."""


@dataclass(frozen=True, kw_only=True)
class ClaimVerdict:
    status: ClaimStatus
    tests: tuple[JudgedTest, ...]
    """In the order of the ledger."""
    decided_by: JudgedTest | None
    message: Message

    @property
    def scale(self) -> Text | None:
        """At which the verdict was reached."""
        return self.decided_by.test.scale if self.decided_by is not None else None


def decide_claim(claim: Claim, results: Sequence[Results]) -> ClaimVerdict:
    """The verdict on a claim from the records of studies."""
    judged = _judge_tests(claim, results)
    deciding = [one for one in judged if one.test.decides]
    decided = [one for one in deciding if one.status in _DECIDED]
    first = decided[0] if decided else None
    if first is not None:
        status = first.status
    elif deciding and all(one.status == "out of reach here" for one in deciding):
        status = "out of reach here"
    else:
        status = "inconclusive"
    return ClaimVerdict(status=status, tests=judged, decided_by=first, message=_verdict_message(status, deciding))


def _verdict_message(status: ClaimStatus, deciding: list[JudgedTest]) -> Message:
    word = _word(status)
    if not deciding:
        return Message("claim-verdict-untested", status=word)
    if status == "out of reach here":
        needs = dict.fromkeys(one.test.needs for one in deciding)
        return Message("claim-verdict-needs", status=word, needs=tuple(needs))
    if status not in _DECIDED:
        if any(one.value is not None for one in deciding):
            return word
        several = next((one.message.values["study"] for one in deciding if one.message.key == "claim-several"), None)
        if several is not None:
            return Message("claim-verdict-several", status=word, study=several)
        part = next((one.message.values["studies"] for one in deciding if one.message.key == "claim-part"), None)
        if part is not None:
            return Message("claim-verdict-part", status=word, studies=part)
        return Message("claim-verdict-not-run", status=word)
    scales = {way: tuple(one.test.scale for one in deciding if one.status == way) for way in _DECIDED}
    verdict = Message("claim-verdict-at", status=word, scale=scales[status])
    other: ClaimStatus = "refuted" if status == "supported" else "supported"
    if not scales[other]:
        return verdict
    return Message("claim-verdict-mixed", verdict=verdict, status=_word(other), scale=scales[other])


def _word(status: ClaimStatus) -> Message:
    return Message(f"claim-{status.replace(' ', '-')}")


def _judge_tests(claim: Claim, results: Sequence[Results]) -> tuple[JudgedTest, ...]:
    """In the order of the ledger: what can be counted, what no study asks, and by records the rest."""
    judged: dict[int, JudgedTest] = {}
    found: dict[int, _Measured] = {}
    for number, test in enumerate(claim.tests):
        by_count = _judge_count(test) if test.studies else _not_run(test)
        if by_count is not None:
            judged[number] = by_count
        else:
            found[number] = _measure(test, results)
    family = judge_family({str(number): one.judged for number, one in found.items() if one.test.decides})
    for number, one in found.items():
        key = str(number)
        alone = judge_family({key: one.judged}) if not one.test.decides else family
        judged[number] = _judged_test(one, alone[key])
    return tuple(judged[number] for number in range(len(claim.tests)))


# -- by counting -----------------------------------------------------------------------------------------------------


def _judge_count(test: ClaimTest) -> JudgedTest | None:
    """From the configuration of its study; None if it is not about a count, or the sizes are not known."""
    estimand = test.estimand
    if find_metric(estimand.metric).kind != "count" or len(test.studies) != 1:
        return None
    study = shipped_study(test.studies[0])
    counts = [count_arm(study, arm) for arm in (estimand.arm, estimand.against) if arm is not None]
    numbers = [getattr(count, estimand.metric) for count in counts if count is not None]
    if len(numbers) < len(counts):
        return None
    value = _combine_counts(numbers, estimand.form)
    if value is None:
        return None
    low, high = bounds(test.rule, test.margin, middle=1.0 if estimand.form == "ratio" else 0.0)
    status: ClaimStatus = "supported" if low < value < high else "refuted"
    if estimand.form == "ratio":
        measured = Message("counted-ratio", one=numbers[0], other=numbers[1], change=value - 1)
    else:
        measured = Message("counted", value=value)
    message = _test_message(status, test.hypothesis, measured)
    return JudgedTest(test=test, status=status, message=message, value=value)


def _combine_counts(numbers: list[int], form: str) -> float | None:
    if form == "value":
        return float(numbers[0])
    if form == "difference":
        return float(numbers[0] - numbers[1])
    return numbers[0] / numbers[1] if numbers[1] else None


def _test_message(status: str, hypothesis: Hypothesis, measured: Message) -> Message:
    return Message(f"test-{status}", rule=str(hypothesis), margin=hypothesis.margin, measured=measured)


# -- by records ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Measured:
    """A test before it is decided together with the others."""

    test: ClaimTest
    judged: JudgedHypothesis
    missing: tuple[str, ...] = ()
    """Studies without records of its arms."""
    several: tuple[Results, ...] = ()
    """Runs of one study: whoever chose between them could choose the verdict."""
    combined: Combined | None = None
    changed: tuple[str, ...] = ()
    """Where a study that was run departs from the shipped one: then it decides nothing."""


def _measure(test: ClaimTest, results: Sequence[Results]) -> _Measured:
    runs = {study: _runs_of(study, results, test.estimand) for study in test.studies}
    missing = tuple(study for study, found in runs.items() if not found)
    several = next((tuple(found) for found in runs.values() if len(found) > 1), ())
    if missing or several:
        return _Measured(test=test, judged=_blank(test.hypothesis), missing=missing, several=several)
    there = [only for (only,) in runs.values()]
    changed = tuple(change for one in there for change in _changes(one.planned, arms_of(test.estimand)))
    looks = 1 + sum(bool(one.planned.second_stage) for one in there)
    combined = _combine(there, test) if test.combine is not None else None
    judged = measure_hypothesis(there[0], test.hypothesis) if combined is None else _of_several(combined, test)
    if changed:
        judged = replace(judged, p_supported=1.0, p_refuted=1.0, survivors_p=(1.0, 1.0))
    return _Measured(test=test, judged=replace(judged, alpha=ALPHA / looks), combined=combined, changed=changed)


def _of_several(combined: Combined, test: ClaimTest) -> JudgedHypothesis:
    p_values = combined.test(test.rule, test.margin)
    return replace(
        _blank(test.hypothesis),
        status="invalid" if combined.status == "invalid" else "inconclusive",
        value=combined.value,
        interval=combined.interval,
        n=len(combined.parts),
        p_supported=p_values[0],
        p_refuted=p_values[1],
        issues=combined.issues,
        survivors_p=p_values,
    )


def _runs_of(study: str, results: Sequence[Results], estimand: Estimand) -> list[Results]:
    """The runs of a study that have the arms, each once."""
    found = {one.folder.resolve(): one for one in results if one.study.name == study and _has_arms(one, estimand)}
    return list(found.values())


def _has_arms(results: Results, estimand: Estimand) -> bool:
    """Whether there is a record of each arm, or the bench has timed them."""
    arms = set(arms_of(estimand))
    timed = results.bench.arms if results.bench is not None and estimand.metric == "step_seconds" else ()
    return arms <= set(results.arms) or arms <= set(timed)


def _combine(studies: list[Results], test: ClaimTest) -> Combined:
    if test.combine == "mean":
        return mean_over_studies(studies, test.estimand)
    one, other = studies
    return interaction(one, other, test.estimand)


def _blank(hypothesis: Hypothesis) -> JudgedHypothesis:
    """What was not run finds nothing, and counts as one of the family."""
    return JudgedHypothesis(
        hypothesis=hypothesis,
        status="inconclusive",
        value=None,
        interval=None,
        n=0,
        p_supported=1.0,
        p_refuted=1.0,
        issues=(),
        message=Message("measured-none"),
    )


def _judged_test(found: _Measured, judged: JudgedHypothesis) -> JudgedTest:
    test = found.test
    if found.several:
        folders = tuple(verbatim(str(one.folder)) for one in found.several)
        message = Message("claim-several", study=found.several[0].study.name, folders=folders)
        return JudgedTest(test=test, status="inconclusive", message=message)
    if found.missing:
        return _not_run(test, found.missing)
    # What a check blocks decides nothing, and its sentence says which check it was.
    status: ClaimStatus = judged.status if judged.status != "invalid" else "inconclusive"
    if found.combined is not None:
        message = _combined_message(found.combined, judged, test, status)
    else:
        message = _without_name(judged.message)
    if found.changed:
        message = Message("claim-changed", said=message, what=tuple(map(verbatim, found.changed)))
    return JudgedTest(test=test, status=status, message=message, value=judged.value, interval=judged.interval)


def _not_run(test: ClaimTest, missing: tuple[str, ...] = ()) -> JudgedTest:
    command = "bench" if test.estimand.metric == "step_seconds" else "run"
    commands = tuple(f"oelm {command} {study}" for study in missing)
    if 0 < len(missing) < len(test.studies):
        message = Message("claim-part", studies=tuple(test.studies), commands=commands)
        return JudgedTest(test=test, status="inconclusive", message=message)
    if test.needs is None:
        message = Message("claim-not-run", commands=commands)
        return JudgedTest(test=test, status="inconclusive", message=message)
    message = Message("claim-needs", needs=test.needs)
    if commands:
        message = Message("claim-needs-run", needs=test.needs, commands=commands)
    return JudgedTest(test=test, status="out of reach here", message=message)


def _combined_message(combined: Combined, judged: JudgedHypothesis, test: ClaimTest, status: ClaimStatus) -> Message:
    measured = Message("measured-none") if judged.value is None else Message("measured-exact", value=judged.value)
    if judged.interval is not None:
        low, high = judged.interval.low, judged.interval.high
        measured = Message(
            f"measured-{test.combine}", value=judged.value, low=low, high=high, studies=tuple(test.studies)
        )
    said = _test_message(status, test.hypothesis, measured)
    why = combined.why or judged.message.values.get("why") if status == "inconclusive" else None
    return Message("hypothesis-open", status=said, why=why) if why else said


def _without_name(message: Message) -> Message:
    """What is said of a hypothesis, of a test: that has no name."""
    values = {key: _without_name(one) if isinstance(one, Message) else one for key, one in message.values.items()}
    if not message.key.startswith("hypothesis-") or "name" not in values:
        return Message(message.key, **values)
    del values["name"]
    return Message(message.key.replace("hypothesis-", "test-"), **values)


def _changes(study: Study, arms: tuple[str, ...]) -> list[str]:
    """Where the plan of a study that was run departs from the shipped one of its name, as far as these arms go."""
    if study.name not in shipped_studies():
        return []
    parts = ("recipe", "tune", "seeds", "second_stage")
    both = (shipped_study(study.name), study)
    asked = [
        {part: one.to_dict()[part] for part in parts}
        | {"arms": {arm: asdict(one.arms[arm]) for arm in arms if arm in one.arms}}
        for one in both
    ]
    return describe_changes(*(json.loads(json.dumps(data)) for data in asked))
