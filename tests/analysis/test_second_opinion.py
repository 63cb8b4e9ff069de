"""Every number of a report, computed twice: by `oelm`, and from the files by what docs/fair-comparison.md says.

The second way is `second_opinion.py`, which has nothing in common with the first but its text.
"""

import json
import math
import re
import sys
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from analysis import second_opinion as second
from made_bench import ratio, write_bench
from made_runs import (
    STUDY,
    edit_sealed,
    keep_predictions,
    make_runs,
    make_text_runs,
    seal_files,
    study_of,
    text_study_of,
    write_floor,
)
from oelm.analysis.checks.design import check_study
from oelm.analysis.results import load
from oelm.analysis.text_table import comparison_as_dict, results_as_dict
from oelm.cli.main import main
from oelm.runs.predictions import Predictions, write_predictions

pytestmark = pytest.mark.slow

SMALL = {"examples": 700, "steps": 20}


def hypotheses(*rules):
    """`accuracy(a) > 0.5` and so on, in a row."""
    words = {">": "above", "<": "below", "~": "within"}
    return {
        f"h{number}": {"statement": "it is so", "estimand": estimand, "rule": words[sign], "margin": margin}
        for number, (estimand, sign, margin) in enumerate(rules)
    }


# -- folders of all kinds ----------------------------------------------------------------------------------------------


def of_accuracy(place):
    """Seeds and examples, all forms and rules of hypotheses, each seed with the best of its own grid."""
    rules = hypotheses(
        ("accuracy(freeze-only) - accuracy(baseline)", ">", -0.01),
        ("accuracy(oelm-freeze) - accuracy(freeze-only)", "<", 0.05),
        ("accuracy(oelm-freeze) - accuracy(baseline)", "~", 0.012),
        ("accuracy(freeze-only) / accuracy(baseline)", "~", 0.05),
        ("accuracy(freeze-only) / accuracy(baseline)", "<", 0.97),
        ("loss(freeze-only) / loss(baseline)", ">", 1.01),
        ("loss(oelm-freeze) - loss(baseline)", "~", 0.03),
        ("accuracy(oelm-freeze)", ">", 0.88),
        ("macro_f1(freeze-only) - macro_f1(baseline)", "<", 0.0),
        ("step_seconds(freeze-only) / step_seconds(baseline)", "<", 1.0),
        ("peak_memory(freeze-only) / peak_memory(baseline)", "<", 1.0),
        ("trainable(freeze-only)", "<", 21e6),
        ("frozen(freeze-only) / total(freeze-only)", "~", 0.95),
    )
    del rules["h12"]  # a share of two different counts is no estimand
    study = study_of(hypotheses=rules, tune={"optimizer.lr": [3e-5, 1e-4, 3e-4]})
    return make_runs(place, study, accuracy={"freeze-only": 0.88, "oelm-freeze": 0.897}, **SMALL)


def of_failures(place):
    """Arms in which seeds fail in all ways, one that never learns, one that is blocked; without predictions in two."""
    arms = {**STUDY["arms"], "never": {"init": "gaussian", "scale": "match", "freeze": "qk"}}
    arms |= {
        "polar": {"init": "polar", "freeze": "none"},
        "blocked": {"init": "keep", "freeze": "q", "overrides": {"optimizer.lr": 3e-4}},
    }
    rules = hypotheses(
        ("accuracy(freeze-only) - accuracy(baseline)", ">", -0.3),
        ("accuracy(oelm-freeze) / accuracy(baseline)", "~", 0.05),
        ("accuracy(oelm-freeze)", "<", 0.97),
        ("accuracy(blocked) - accuracy(baseline)", "~", 0.05),
    )

    def change(cell, record):
        if (cell.arm, cell.seed) == ("freeze-only", 1):
            return replace(record, status="diverged", test={})
        if (cell.arm, cell.seed) == ("oelm-freeze", 3):
            return replace(record, status="failed", test={})
        return record

    accuracy = {"baseline": 0.93, "freeze-only": 0.6, "oelm-freeze": 0.96, "polar": 0.9295, "never": 0.501}
    runs = make_runs(place, study_of(arms=arms, hypotheses=rules), accuracy=accuracy, change=change, **SMALL)
    for cell in ("polar/seed-2", "polar/seed-4", "never/seed-0"):
        forget_predictions(runs / cell)
    collapse(runs / "oelm-freeze" / "seed-2")
    return runs


def collapse(place):
    """Let a cell have answered with one class."""
    kept = second.read_kept(place)["final"]["validation"]
    answers = {**kept, "prediction": np.zeros_like(kept["label"]), "loss": np.full(len(kept["label"]), 0.7)}
    accuracy = float((kept["label"] == 0).mean())

    def say(record):
        for model in record["test"].values():
            model["splits"]["validation"] = {"accuracy": accuracy, "loss": 0.7}

    edit_sealed(place / "record.json", say)
    keep_predictions(place, Predictions(**answers))


def of_perplexity(place):
    rules = hypotheses(
        ("perplexity(freeze-only) / perplexity(baseline)", "<", 1.08),
        ("perplexity(freeze-only) / perplexity(baseline)", "~", 0.05),
        ("perplexity(oelm-freeze)", "<", 10.5),
        ("loss(oelm-freeze) - loss(baseline)", "~", 0.01),
        ("loss(freeze-only) / loss(baseline)", ">", 1.02),
        ("perplexity(oelm-freeze) / perplexity(baseline)", "<", 1.0),
    )

    def change(cell, record):
        return replace(record, status="diverged", test={}) if (cell.arm, cell.seed) == ("freeze-only", 4) else record

    perplexity = {"freeze-only": 10.5, "oelm-freeze": 10.02}
    return make_text_runs(place, text_study_of(hypotheses=rules), perplexity=perplexity, change=change)


def of_few(place):
    """Three seeds without predictions that share what three others have chosen; a simple model is better."""
    tune = {"optimizer.lr": [3e-5, 1e-4, 3e-4], "seeds": [7, 8, 9]}
    runs = make_runs(place, study_of(tune=tune, seeds=[0, 1, 2]), accuracy={"freeze-only": 0.85}, spread=0.01, **SMALL)
    for path in runs.glob("*/seed-*"):
        forget_predictions(path)
    write_floor(runs, accuracy=0.905, majority=0.5)
    return runs


def of_one_seed(place):
    return make_runs(place, study_of(seeds=[4]), accuracy={"freeze-only": 0.86}, **SMALL)


def of_many_alike(place):
    """Six arms on a wide margin: equivalent, each at the level that is left to it."""
    inits = ("orthogonalize", "polar", "gaussian", "orthogonal")
    arms = {**STUDY["arms"], **{init: {"init": init, "scale": "match", "freeze": "none"} for init in inits}}
    accuracy = {"polar": 0.895, "gaussian": 0.893, "orthogonal": 0.93}
    compare = {"baseline": "baseline", "metric": "accuracy", "min_effect": 0.016}
    return make_runs(place, study_of(arms=arms, compare=compare), accuracy=accuracy, examples=1500, steps=20)


def of_times(place):
    """Timed in turns: the bench decides, and its floor of examples is paired with what the simple model has right."""
    rules = hypotheses(
        ("step_seconds(freeze-only) / step_seconds(baseline)", "<", 1.0),
        ("step_seconds(freeze-only) / step_seconds(baseline)", "~", 0.08),
    )
    study = study_of(hypotheses=rules)
    runs = make_runs(place, study, accuracy={"freeze-only": 0.87}, **SMALL)
    write_floor(runs, accuracy=0.95, right=np.random.default_rng(3).random(700) < 0.95)
    return write_bench(runs, study, {"freeze-only": ratio(0.96, half=0.02, rounds=40, block_length=3.0)})


TWO_STAGES = hypotheses(
    ("accuracy(freeze-only) - accuracy(baseline)", ">", -0.01),
    ("accuracy(oelm-freeze) - accuracy(baseline)", ">", 0.0),
    ("accuracy(open) - accuracy(baseline)", "<", 0.0),
    ("loss(open) / loss(baseline)", "~", 0.04),
    ("macro_f1(open) - macro_f1(baseline)", "<", 0.0),
)
STAGED = {"accuracy": {"baseline": 0.85, "freeze-only": 0.75, "oelm-freeze": 0.862, "open": 0.849}, "spread": 0.005}
STAGED |= {"examples": 1000, "steps": 10}


def two_stages(**parts):
    arms = {**STUDY["arms"], "open": {"init": "polar", "freeze": "none"}}
    compare = {"baseline": "baseline", "metric": "accuracy", "min_effect": 0.004}
    return study_of(arms=arms, compare=compare, hypotheses=TWO_STAGES, second_stage=[5, 6, 7, 8, 9], **parts)


def of_first_stage(place):
    """Half of the level; what is open waits for the second."""
    return make_runs(place, two_stages(), **STAGED)


def of_two_stages(place):
    """The first has decided on one arm, the second decides on another, and one stays open; in two, a seed fails."""

    def change(cell, record):
        failed = (cell.arm, cell.seed) in (("freeze-only", 7), ("open", 8))
        return replace(record, status="diverged", test={}) if failed else record

    return make_runs(place, two_stages(), second_stage=True, change=change, **STAGED)


def of_two_splits(place):
    """Every metric on both, each with the examples of its own: the second has the hardest of the first."""
    runs = make_runs(place, accuracy={"freeze-only": 0.87}, **SMALL)
    cells = sorted(runs.glob("*/seed-*"))
    kept = {cell: second.read_kept(cell)["final"]["validation"] for cell in cells}
    wrong = sum((answers["label"] != answers["prediction"]).astype(int) for answers in kept.values())
    hardest = np.argsort(-wrong, kind="stable")[:400]
    for cell, answers in kept.items():
        hard = {name: column[hardest] for name, column in answers.items()} | {"row": np.arange(400)}
        right = hard["label"] == hard["prediction"]
        edit_sealed(cell / "record.json", partial(add_split, accuracy=right.mean(), loss=hard["loss"].mean()))
        both = {"validation": Predictions(**answers), "mismatched": Predictions(**hard)}
        models = product(("final", "best"), both)
        write_predictions(cell / "predictions.parquet", {(model, split): both[split] for model, split in models})
        seal_files(cell)
    return runs


def add_split(record, **metrics):
    for model in record["test"].values():
        model["splits"]["mismatched"] = {name: float(value) for name, value in metrics.items()}


def forget_predictions(place):
    (place / "predictions.parquet").unlink()
    seal_files(place)


# With what a check blocks, and the verdicts that come of it: nothing is agreed on because it never happens.
CASES = {
    "accuracy": (of_accuracy, (), "worse equivalent"),
    "failures": (of_failures, ("blocked", "h3"), "worse inconclusive worse equivalent invalid"),
    "perplexity": (of_perplexity, (), "worse equivalent"),
    "few": (of_few, (), "worse inconclusive"),
    "one seed": (of_one_seed, (), "inconclusive inconclusive"),
    "many alike": (of_many_alike, (), "equivalent equivalent equivalent equivalent equivalent better"),
    "times": (of_times, ("freeze-only", "oelm-freeze"), "invalid invalid"),
    "first stage": (of_first_stage, (), "worse inconclusive inconclusive"),
    "two stages": (of_two_stages, (), "worse better inconclusive"),
    "two splits": (of_two_splits, (), "worse equivalent"),
}


# -- numbers of both ---------------------------------------------------------------------------------------------------

WORDS = ("text", "key", "issues", "lacks", "treatment", "overrides", "status", "exploratory", "relative", "timed")
POWER = ("detectable", "smallest")  # both are bisected, over integrals of their own: 128 steps there, 400 nodes here
RANDOM = ("over_examples",)  # has a test of its own


def differing(told, again, path=""):
    """Every number that both do not have, or not alike, by where it is."""
    if isinstance(told, dict):
        if path.endswith("/failed") and set(told) != set(again):
            yield path, told, again
        for key in told:
            if key not in (*WORDS, *RANDOM, "values"):
                yield from differing(told[key], again.get(key) if again is not None else None, f"{path}/{key}")
    elif isinstance(told, list):
        others = again if again is not None else [None] * len(told)
        if len(others) != len(told):
            yield path, told, again
        for number, (one, other) in enumerate(zip(told, others, strict=False)):
            yield from differing(one, other, f"{path}/{number}")
    elif not isinstance(told, str) and not alike(told, again, path):
        yield path, told, again


def alike(told, again, path=""):
    if told is None or again is None or isinstance(told, str) or isinstance(again, str):
        return told == again
    return math.isclose(told, again, rel_tol=1e-4 if path.endswith(POWER) else 1e-9, abs_tol=1e-12)


def numbers_in(values, name=""):
    """Every number of a message, however deep, with what it is called."""
    if isinstance(values, dict):
        for key, value in values.items():
            yield from numbers_in(value, name if key == "values" else key)
    elif isinstance(values, list):
        for value in values:
            yield from numbers_in(value, name)
    elif isinstance(values, int | float):
        yield name, values


@pytest.fixture(scope="module", params=CASES)
def both(request, tmp_path_factory):
    """What is told of a folder, and what the second opinion has of it."""
    make, blocked, verdicts = CASES[request.param]
    place = make(tmp_path_factory.mktemp("runs"))
    results = load(place)
    assert [one.verdict for one in results.comparisons.values()] == verdicts.split()
    told = json.loads(json.dumps(results_as_dict(results)))
    return told, json.loads(json.dumps(second.second_opinion(place, blocked))), results


def test_every_number_of_a_report(both):
    told, again, _ = both
    assert list(differing({"arms": told["arms"], "hypotheses": told["hypotheses"]}, again)) == []
    for one, other in zip(told["hypotheses"], again["hypotheses"], strict=True):
        assert one["status"] == other["status"]


def test_every_number_of_a_sentence(both):
    told, again, _ = both
    compared = [arm["comparison"] for arm in told["arms"].values() if arm["comparison"]]
    others = [arm["comparison"] for arm in again["arms"].values() if arm["comparison"]]
    for one, other in zip([*compared, *told["hypotheses"]], [*others, *again["hypotheses"]], strict=True):
        may_say = second.sentence_numbers(other)
        for name, number in numbers_in(one["values"]):
            assert any(alike(number, may, name) for may in may_say[name]), (one["text"], name, number, may_say[name])


def test_every_number_of_what_would_change(both):
    """Said of the same arms and hypotheses; what checks say has a test of its own."""
    told, again, _ = both
    of_checks = ("change-blocked", "change-blocked-at", "change-warned")
    said = [one for one in told["what_would_change"] if one["key"] not in of_checks]
    assert {one["key"] for one in said} == set(again["what_would_change"])
    for key, by_name in again["what_would_change"].items():
        assert {name for one in said if one["key"] == key for name in one["about"]} == set(by_name), key
    for one in said:
        may_say = [values for name in one["about"] for values in again["what_would_change"][one["key"]][name]]
        for name, number in numbers_in(one["values"]):
            found = list(numbers_in([values[name] for values in may_say]))
            assert any(alike(number, may, name) for _, may in found), (one["text"], name, number, found)


def test_every_number_of_a_check(both):
    told, again, _ = both
    for one in told["checks"]:
        may_say = again["checks"].get(one["code"], {})
        for name, number in numbers_in(one["values"]):
            found = may_say.get(name, [])
            assert any(alike(number, may, name) for may in found), (one["code"], one["text"], name, number, found)


def test_what_is_shown_beside_a_verdict(both):
    """Standard errors, McNemar's test, and the two bootstraps: these against all resamples, and their normal limit."""
    _, _, results = both
    folder = second.read_folder(results.folder)
    for arm, one in results.comparisons.items():
        seen = folder.stage(one.outcomes[0].planned)
        again = second.compare(seen, arm, one.against, one.metric)
        assert alike(one.over_seeds.high, (second.over_seeds(one.differences.values()).interval() or [0, math.inf])[1])
        if again.rows is not None and one.n > 1:
            rows, tokens = again.rows
            assert alike(one.estimate.examples.se, second.over_examples(rows, tokens)[0])
            values = np.mean(rows if tokens is None else [second._jackknifed(row, tokens) for row in rows], axis=0)
            half = 1.96 * values.std() / math.sqrt(len(values))
            found = [one.over_examples.low, one.over_examples.high]
            np.testing.assert_allclose(found, values.mean() + half * np.array([-1, 1]), atol=0.15 * half)
        if one.n == 5 and one.metric in second.LOSSES:  # right answers are too few values for quantiles to agree
            low, high = second.bca(list(one.differences.values()))
            found = [one.bootstrap.low, one.bootstrap.high]
            np.testing.assert_allclose(found, [low, high], atol=0.05 * (high - low))
        for seed, test in one.mcnemar.items():
            scores = [folder.cells[name, seed].scores("accuracy")[0] for name in (arm, one.against)]
            assert (test.both, test.only_a, test.only_b, test.neither) == second.mcnemar(*scores)[:4]
            assert alike(test.p, second.mcnemar(*scores)[4])


def test_exploratory_comparisons(both):
    """Of any two arms, on other metrics: each by itself."""
    _, _, results = both
    folder = second.read_folder(results.folder)
    folder = folder.stage(sorted({seed for _, seed in folder.cells}))
    against, arm = [arm for arm in results.arms if arm != folder.baseline][:2]
    for metric in ("macro_f1", "loss", "step_seconds", "trainable"):
        if not results.values(arm, metric):
            continue
        told = comparison_as_dict(results.compare(arm, against=against, metric=metric))
        again = second.compare(folder, arm, against, metric, blocked=told["verdict"] == "invalid")
        (other,) = second.judge_family([again], 1).values()
        other["outcomes"] = [outcomes.told() for outcomes in again.both]
        if metric in second.MEASURED:  # of what was measured, not of what was planned
            other["outcomes"] = told["outcomes"]
        assert list(differing(json.loads(json.dumps(told)), json.loads(json.dumps(other)))) == []
        assert told["verdict"] == other["verdict"]


def test_what_is_said_before_anything_is_run():
    """`UNDECIDABLE`, from what is assumed of accuracies: favorable, and still plausible."""
    study = study_of(compare={"baseline": "baseline", "metric": "accuracy", "min_effect": 0.012}, seeds=[0, 1, 2])
    (said,) = [one.message.values for one in check_study(study) if one.code == "UNDECIDABLE"]

    def decided(*, seeds=3, margin=0.012, examples=872):
        spread, example_se = math.hypot(0.002, math.sqrt(0.03 / examples)), math.sqrt(0.01 / examples)
        chance = {"n": seeds, "spread": spread, "example_se": example_se, "alpha": 0.05 / 2}
        return max(second.power(margin, **chance, equate=equate) for equate in (False, True))

    assert said["power"] == pytest.approx(decided(), rel=1e-5)
    instead = {message.key: next(iter(message.values.values())) for message in said["instead"]}
    n, margin, examples = (instead[f"instead-{what}"] for what in ("seeds", "margin", "examples"))
    assert decided(seeds=n) >= 0.8 > decided(seeds=n - 1)
    assert decided(margin=margin) >= 0.8 > decided(margin=margin - 0.001)
    assert decided(examples=examples) >= 0.8 > decided(examples=0.9 * examples), "rounded up to two digits"


def test_it_has_nothing_of_oelm():
    assert not re.search(r"^\s*(from|import) oelm", Path(second.__file__).read_text(), re.MULTILINE)


def test_the_commands_say_the_same(tmp_path, capsys, monkeypatch):
    """`oelm report --json` and `oelm check --json` print these very numbers."""
    results = load(of_few(tmp_path))
    told = json.loads(json.dumps(results_as_dict(results)))
    for words, code in ((["report", "--format", "md"], 0), (["check"], 0)):
        monkeypatch.setattr(sys, "argv", ["oelm", words[0], str(results.folder), *words[1:], "--json"])
        with pytest.raises(SystemExit) as stopped:
            main()
        assert (stopped.value.code or 0) == code
        printed = json.loads(capsys.readouterr().out)
        if words[0] == "report":
            compared = [arm["comparison"] for arm in told["arms"].values() if arm["comparison"]]
            assert printed[0]["comparisons"] == compared
        else:
            assert list(printed.values()) == [told["checks"]]
