"""What would change a verdict: each cause once, with all that it is about; and nothing where there is nothing."""

import json
from dataclasses import replace

import pytest

from made_runs import STUDY, make_runs, make_text_runs, study_of
from oelm.analysis.change import what_would_change
from oelm.analysis.results import read_results
from oelm.analysis.text_table import results_as_dict
from oelm.runs.record import Failure

pytestmark = pytest.mark.slow

TUNED = {"tune": {"optimizer.lr": [5e-5, 1e-4, 2e-4]}}
SMALL = {"examples": 400, "steps": 10}


def changes(folder):
    """By key: what it is about, and the sentence."""
    return {one.message.key: (one.about, str(one.message)) for one in what_would_change(read_results(folder))}


def aiming(margin, **parts):
    return study_of(compare={"baseline": "baseline", "metric": "accuracy", "min_effect": margin}, **parts)


def test_a_clear_difference_needs_nothing_more(tmp_path):
    truth = {"baseline": 0.9, "freeze-only": 0.8, "oelm-freeze": 0.7}
    found = changes(make_runs(tmp_path, aiming(0.02, **TUNED), accuracy=truth))
    assert list(found) == ["change-settled"]
    about, text = found["change-settled"]
    assert about == ("freeze-only", "oelm-freeze")
    assert "at least 0.092 to 0.19" in text
    assert "0.02 is the smallest effect of interest" in text


def test_a_certain_difference_may_be_smaller_than_matters(tmp_path):
    folder = make_runs(tmp_path, aiming(0.04), accuracy={"freeze-only": 0.86, "oelm-freeze": 0.86}, spread=0.001)
    results = read_results(folder)
    assert {one.verdict for one in results.comparisons.values()} == {"worse"}
    assert changes(folder)["change-may-not-matter"][0] == ("freeze-only", "oelm-freeze")


def test_equivalence_hangs_on_the_margin(tmp_path):
    folder = make_runs(tmp_path, aiming(0.02))
    one = read_results(folder).comparisons["freeze-only"]
    assert one.verdict == "equivalent"
    about, text = changes(folder)["change-margin"]
    assert about == ("freeze-only", "oelm-freeze")
    largest = [max(abs(c.deciding.low), abs(c.deciding.high)) for c in read_results(folder).comparisons.values()]
    assert f"below {min(largest):.2g} to {max(largest):.2g} mattered" in text


def test_what_is_open_says_how_many_seeds_would_decide(tmp_path):
    study = aiming(0.02, seeds=[0, 1, 2])
    folder = make_runs(tmp_path, study, spread=0.02, **SMALL)
    found = changes(folder)
    one = read_results(folder).comparisons["oelm-freeze"]
    assert one.verdict == "inconclusive"
    about, text = found["change-seeds"]
    assert about == ("oelm-freeze",)
    assert f"about {one.seeds_needed} seeds, in a new study, would decide on a difference of 0.02" in text
    assert "is excluded so far" in found["change-excluded"][1]
    assert list(found).index("change-seeds") < list(found).index("change-excluded")


def test_where_only_examples_would_decide_it_says_so(tmp_path):
    study = aiming(0.002)
    found = changes(make_runs(tmp_path, study, accuracy={"oelm-freeze": 0.895}, spread=0.0005, **SMALL))
    assert "more test examples" in found["change-examples"][1]
    assert "change-seeds" not in found


def test_what_blocks_it_comes_first_with_what_was_found(tmp_path):
    arms = {**STUDY["arms"]}
    arms["oelm-freeze"] = {**arms["oelm-freeze"], "overrides": {"optimizer.lr": 1e-3}}
    found = changes(make_runs(tmp_path, study_of(arms=arms), **SMALL))
    assert next(iter(found)) == "change-blocked"
    about, text = found["change-blocked"]
    assert about == ("oelm-freeze",)
    assert text.startswith("LR-DIFFERS blocks it: trained at learning rate 0.001, baseline at 0.0001")


def test_what_is_missing_and_what_failed_is_named_once(tmp_path):
    def change(cell, record):
        if cell.arm == "baseline" and cell.seed == 1:
            return replace(record, status="diverged", test={}, error=Failure(what="NaN", traceback=None))
        return None if cell.arm == "oelm-freeze" and cell.seed > 2 else record

    found = changes(make_runs(tmp_path, study_of(), change=change, **SMALL))
    assert found["change-run"] == (("oelm-freeze",), "seed 3, 4 has not come to its end; oelm run continues")
    about, text = found["change-failed"]
    assert about == ("baseline",)
    assert text.startswith("1 of 5 seeds of baseline failed (seed 1: diverged)")
    others = [about for key, (about, _) in found.items() if key not in ("change-run", "change-failed")]
    assert all("oelm-freeze" not in about for about in others), "first of all it must be run"


def test_without_a_margin_it_asks_for_one(tmp_path):
    study = study_of(compare={"baseline": "baseline", "metric": "accuracy"})
    assert "compare.min_effect" in changes(make_runs(tmp_path, study, **SMALL))["change-no-margin"][1]


def test_warnings_are_named_by_their_codes(tmp_path):
    about, text = changes(make_runs(tmp_path, study_of(), **SMALL))["change-warned"]
    assert about == ()
    assert "UNTUNED" in text


@pytest.mark.parametrize("spread", [0.02, 0.001])
def test_a_hypothesis_says_what_would_decide_it(tmp_path, spread):
    rule = {"statement": "costs at most a point", "estimand": "accuracy(oelm-freeze) - accuracy(baseline)"}
    study = aiming(0.01, hypotheses={"H": {**rule, "rule": "above", "margin": -0.01}})
    folder = make_runs(tmp_path, study, spread=spread)
    status = read_results(folder).hypotheses[0].status
    named = {name for about, _ in changes(folder).values() for name in about}
    assert (status == "inconclusive") == ("H" in named) == (spread == 0.02)


@pytest.mark.parametrize(
    ("estimand", "rule", "margin", "says"),
    [
        ("loss(freeze-only) - loss(baseline)", "below", 0, None),
        ("accuracy(freeze-only) - accuracy(baseline)", "above", 0, " 0.01 "),
        ("loss(freeze-only) - loss(baseline)", "below", 0.001, " 0.001 "),
        ("accuracy(freeze-only) / accuracy(baseline)", "within", 0.004, " 0.004 "),
        ("accuracy(freeze-only) / accuracy(baseline)", "above", 1, None),
    ],
)
def test_what_matters_of_one_metric_is_not_what_matters_of_another(tmp_path, estimand, rule, margin, says):
    hypothesis = {"statement": "s", "estimand": estimand, "rule": rule, "margin": margin}
    study = aiming(0.01, hypotheses={"H": hypothesis}, seeds=[0, 1, 2])
    results = read_results(make_runs(tmp_path, study, spread=0.02, **SMALL))
    assert results.hypotheses[0].status == "inconclusive"
    said = [str(one.message) for one in what_would_change(results) if "H" in one.about]
    assert (said == []) if says is None else any(says in one for one in said)


def test_what_was_changed_is_named(tmp_path):
    folder = make_runs(tmp_path, **SMALL)
    (folder / "study.json").write_text(json.dumps(aiming(0.2).to_dict()))
    text = changes(folder)["change-blocked-at"][1]
    assert text.startswith("CHANGED-AFTER-START blocks it: compare.min_effect: was 0.02 when")


def test_perplexities_are_relative_throughout(tmp_path):
    found = changes(make_text_runs(tmp_path, perplexity={"baseline": 10, "freeze-only": 10.02, "oelm-freeze": 11}))
    assert "2% is the smallest effect of interest" in found["change-settled"][1]
    assert "at least 9" in found["change-settled"][1]
    assert "%" in found["change-margin"][1].split("mattered")[0]


def test_scripts_get_it_too(tmp_path):
    results = read_results(make_runs(tmp_path, study_of(), **SMALL))
    told = results_as_dict(results)["what_would_change"]
    assert [one["key"] for one in told] == [one.message.key for one in what_would_change(results)]
    assert all(one["text"] for one in told)
    assert "What would change it:" in str(results)
