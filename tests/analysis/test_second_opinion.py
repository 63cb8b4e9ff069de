"""Every number of a report, computed twice: by `oelm`, and from the files by what docs/fair-comparison.md says.

The second way is `second_opinion.py`, which has nothing in common with the first but its text.
"""

import json
import math
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from analysis import second_opinion as second
from made_bench import ratio, write_bench
from made_runs import (
    STUDY,
    make_runs,
    make_text_runs,
    replace_at,
    seal_files,
    study_of,
    text_study_of,
    write_floor,
)
from oelm.analysis.results import load
from oelm.analysis.text_table import results_as_dict


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
    return make_runs(place, study, accuracy={"freeze-only": 0.88, "oelm-freeze": 0.897}, examples=700)


def of_failures(place):
    """Arms in which seeds fail in all ways, one that never learns, one that is blocked; without predictions in two."""
    arms = {**STUDY["arms"], "never": {"init": "gaussian", "scale": "match", "freeze": "qk"}}
    arms |= {"polar": {"init": "polar", "freeze": "none"}, "blocked": {"init": "keep", "freeze": "q"}}
    rules = hypotheses(
        ("accuracy(freeze-only) - accuracy(baseline)", ">", -0.3),
        ("accuracy(oelm-freeze) / accuracy(baseline)", "~", 0.05),
        ("accuracy(oelm-freeze)", "<", 0.95),
        ("accuracy(blocked) - accuracy(baseline)", "~", 0.05),
    )

    def change(cell, record):
        if (cell.arm, cell.seed) == ("freeze-only", 1):
            return replace(record, status="diverged", test={})
        if (cell.arm, cell.seed) == ("oelm-freeze", 3):
            return replace(record, status="failed", test={})
        return replace_at(record, "spec.recipe.optimizer.lr", 3e-4) if cell.arm == "blocked" else record

    accuracy = {"baseline": 0.93, "freeze-only": 0.6, "polar": 0.9295, "never": 0.501}
    runs = make_runs(place, study_of(arms=arms, hypotheses=rules), accuracy=accuracy, examples=900, change=change)
    for cell in ("polar/seed-2", "polar/seed-4", "never/seed-0"):
        forget_predictions(runs / cell)
    return runs


def of_perplexity(place):
    rules = hypotheses(
        ("perplexity(freeze-only) / perplexity(baseline)", "<", 1.08),
        ("perplexity(freeze-only) / perplexity(baseline)", "~", 0.05),
        ("perplexity(oelm-freeze)", "<", 10.5),
        ("loss(oelm-freeze) - loss(baseline)", "~", 0.01),
        ("loss(freeze-only) / loss(baseline)", ">", 1.02),
    )

    def change(cell, record):
        return replace(record, status="diverged", test={}) if (cell.arm, cell.seed) == ("freeze-only", 4) else record

    perplexity = {"freeze-only": 10.5, "oelm-freeze": 10.02}
    return make_text_runs(place, text_study_of(hypotheses=rules), perplexity=perplexity, change=change)


def of_few(place):
    """Three seeds without predictions that share what three others have chosen, and a simple baseline that is better."""
    tune = {"optimizer.lr": [3e-5, 1e-4, 3e-4], "seeds": [7, 8, 9]}
    runs = make_runs(place, study_of(tune=tune, seeds=[0, 1, 2]), accuracy={"freeze-only": 0.85}, spread=0.01)
    for path in runs.glob("*/seed-*"):
        forget_predictions(path)
    write_floor(runs, accuracy=0.905, majority=0.5)
    return runs


def of_unfinished(place):
    """A seed that is still to be run, an arm that was never, and no margin."""
    arms = {**STUDY["arms"], "q-only": {"init": "keep", "freeze": "q"}}
    compare = {"baseline": "baseline", "metric": "loss"}

    def change(cell, record):
        return None if cell.arm == "q-only" or (cell.arm, cell.seed) == ("freeze-only", 3) else record

    return make_runs(place, study_of(arms=arms, compare=compare), accuracy={"freeze-only": 0.86}, change=change)


def of_one_seed(place):
    return make_runs(place, study_of(seeds=[4]), accuracy={"freeze-only": 0.86})


def of_many_alike(place):
    """Six arms on a wide margin: equivalent, each at the level that is left to it."""
    inits = ("orthogonalize", "polar", "gaussian", "orthogonal")
    arms = {**STUDY["arms"], **{init: {"init": init, "scale": "match", "freeze": "none"} for init in inits}}
    accuracy = {"polar": 0.895, "gaussian": 0.893, "orthogonal": 0.91}
    compare = {"baseline": "baseline", "metric": "accuracy", "min_effect": 0.016}
    return make_runs(place, study_of(arms=arms, compare=compare), accuracy=accuracy)


def of_times(place):
    """Timed in turns: the bench decides, and its floor of examples is paired with what the simple model has right."""
    rules = hypotheses(
        ("step_seconds(freeze-only) / step_seconds(baseline)", "<", 1.0),
        ("step_seconds(freeze-only) / step_seconds(baseline)", "~", 0.08),
    )
    study = study_of(hypotheses=rules)
    runs = make_runs(place, study, accuracy={"freeze-only": 0.87}, examples=800)
    write_floor(runs, accuracy=0.95, right=np.random.default_rng(3).random(800) < 0.95)
    return write_bench(runs, study, {"freeze-only": ratio(0.96, half=0.02, rounds=40, block_length=3.0)})


def forget_predictions(place):
    (place / "predictions.parquet").unlink()
    seal_files(place)


CASES = {
    "accuracy": (of_accuracy, ()),
    "failures": (of_failures, ("blocked", "h3")),
    "perplexity": (of_perplexity, ()),
    "few": (of_few, ()),
    "unfinished": (of_unfinished, ()),
    "one seed": (of_one_seed, ()),
    "many alike": (of_many_alike, ()),
    "times": (of_times, ("freeze-only", "oelm-freeze")),
}


# -- numbers of both -----------------------------------------------------------------------------------------------

WORDS = ("text", "key", "issues", "lacks", "treatment", "overrides", "status", "exploratory", "relative", "timed")
POWER = ("detectable", "smallest")  # bisected to one part in ten million by the first, and further by the second
RANDOM = ("over_examples",)  # has a test of its own


def differing(told, again, path=""):
    """Every number that both do not have, or not alike, by where it is."""
    if isinstance(told, dict):
        for key in told:
            if key not in (*WORDS, *RANDOM, "values"):
                yield from differing(told[key], again.get(key) if again is not None else None, f"{path}/{key}")
    elif isinstance(told, list):
        others = again if again is not None else [None] * len(told)
        if len(others) != len(told):
            yield path, told, again
        for number, (one, other) in enumerate(zip(told, others, strict=False)):
            yield from differing(one, other, f"{path}/{number}")
    elif not alike(told, again, 1e-6 if path.endswith(POWER) else 1e-9):
        yield path, told, again


def alike(told, again, relative=1e-9):
    if isinstance(told, float) and isinstance(again, float):
        return math.isclose(told, again, rel_tol=relative, abs_tol=1e-12)
    return told == again or isinstance(told, str)


@pytest.fixture(scope="module", params=CASES)
def both(request, tmp_path_factory):
    """What is told of a folder, and what the second opinion has of it."""
    make, blocked = CASES[request.param]
    place = make(tmp_path_factory.mktemp("runs"))
    again = second.second_opinion(place, blocked)
    again["hypotheses"] = list(again["hypotheses"].values())
    return json.loads(json.dumps(results_as_dict(load(place)))), json.loads(json.dumps(again)), place


def test_every_number_of_a_report(both):
    told, again, _ = both
    assert list(differing({"arms": told["arms"], "hypotheses": told["hypotheses"]}, again)) == []
    print([ (c["code"],c["key"],c["values"]) for c in told["checks"]])
