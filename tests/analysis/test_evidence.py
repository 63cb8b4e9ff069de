"""Evidence: the examples of a language model are documents, a perplexity is its loss, and an arm alone has examples."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from pyarrow import parquet
from scipy import stats

from made_runs import keep_predictions, make_runs, make_text_runs, score, study_of, text_study_of, write_floor
from oelm.analysis.results import load
from oelm.analysis.stats.estimate import from_seeds
from oelm.analysis.text_table import results_as_dict
from oelm.analysis.verdicts import compare_arms
from oelm.report.blocks import Table
from oelm.report.sections.results import results_section
from oelm.runs.files import digest_file
from oelm.runs.predictions import read_predictions
from oelm.runs.record import read_record

pytestmark = pytest.mark.slow

TREATED = {"init": "keep", "freeze": "qk"}


def test_a_perplexity_is_judged_as_the_loss(tmp_path):
    """Two names of one question: where the documents leave it open, neither is certain of it."""
    arms = {"baseline": {"init": "keep", "freeze": "none"}, "close": TREATED, "far": TREATED}
    study = text_study_of(arms=arms, compare={"baseline": "baseline", "metric": "perplexity", "min_effect": 0.05})
    folder = make_text_runs(tmp_path, study, perplexity={"close": 10.2, "far": 13.0}, spread=0.0005)
    unequal_documents(folder, "close")
    results = load(folder)
    for arm in ("close", "far"):
        perplexity, loss = results.compare(arm), results.compare(arm, metric="loss")
        assert perplexity.examples is not None
        assert perplexity.estimate == loss.estimate
        assert (perplexity.p_differs, perplexity.p_equivalent) == (loss.p_differs, loss.p_equivalent)
        assert perplexity.verdict == loss.verdict
        by_itself = compare_arms(results, arm, against="baseline", metric="loss")
        assert by_itself.estimate.mean == pytest.approx(perplexity.estimate.mean)
        assert by_itself.interval.low == pytest.approx(perplexity.interval.low)
        assert by_itself.margin == perplexity.margin == pytest.approx(math.log(1.05))
    assert results.comparisons["far"].verdict == "worse"
    close = results.comparisons["close"]
    assert not close.over_seeds.contains(0), "by the seeds alone it would be certain"
    assert close.verdict == "inconclusive"


def test_one_seed_with_other_examples_is_left_out_whichever_it_is(tmp_path):
    """If it was the first, examples counted for nothing, and nothing said so."""
    for seed in (0, 2):
        folder = make_runs(tmp_path / str(seed), study_of(seeds=[0, 1, 2]), examples=200, steps=10)
        for arm in ("baseline", "oelm-freeze"):
            place = folder / arm / f"seed-{seed}"
            kept = read_predictions(place, read_record(place).files["predictions.parquet"])
            keep_predictions(place, replace(kept, row=kept.row + 1000))
        one = load(folder).comparisons["oelm-freeze"]
        assert one.estimate.n == 3, "its own number stays"
        assert one.estimate.examples.df == 199, "over those of the other two"


@pytest.mark.parametrize(("floor", "certain"), [(9.9, False), (7.0, True)])
def test_that_a_language_model_is_below_bigrams_counts_documents(tmp_path, floor, certain):
    """Seeds alone are certain of a hundredth of a nat; forty documents are not."""
    folder = make_text_runs(tmp_path, spread=0.0005)
    write_floor(folder, perplexity=floor, loss=math.log(floor))
    results = load(folder)
    values = [math.log(value / floor) for value in results.values("baseline", "perplexity").values()]
    assert from_seeds(values).interval().low > 0
    below = [one for one in results.checks if one.code == "BELOW-SIMPLE-BASELINE" and "baseline" in one.arms]
    assert {one.severity for one in below} == {"invalid" if certain else "warn"}, "of what was not tuned"


def test_documents_are_compared_by_an_independent_formula(tmp_path):
    """The ratio of two sums, each document left out in turn, and t over the seeds."""
    study = text_study_of(seeds=[0, 1, 2])
    folder = make_text_runs(tmp_path, study, perplexity={"freeze-only": 10.3})
    one = load(folder).comparisons["freeze-only"]
    sums, tokens = [], None
    for seed in study.seeds:
        cells = [parquet.read_table(folder / arm / f"seed-{seed}" / "predictions.parquet").to_pandas()
                 for arm in ("freeze-only", "baseline")]  # fmt: skip
        cells = [table[table.model == "final"].sort_values("row") for table in cells]
        sums.append(cells[0].loss.to_numpy() - cells[1].loss.to_numpy())
        tokens = cells[0].tokens.to_numpy()
    differences = [row.sum() / tokens.sum() for row in sums]
    assert list(one.differences.values()) == pytest.approx(differences)
    assert one.over_seeds.low == pytest.approx(
        stats.t.interval(0.95, 2, np.mean(differences), stats.sem(differences))[0]
    )
    mean = np.mean(sums, axis=0)
    places = range(len(tokens))
    without = [np.delete(mean, place).sum() / np.delete(tokens, place).sum() for place in places]
    assert one.examples.example_se == pytest.approx(np.std(without) * math.sqrt(len(tokens) - 1))
    assert one.examples.num_examples == 40


def unequal_documents(folder, arm):
    """Give an arm documents that it likes and others that it does not, with the same loss in all."""
    for place in (folder / arm).glob("seed-*"):
        kept = read_predictions(place, digest_file(place / "predictions.parquet"))
        liked = np.where(kept.row % 2, 1.0, -1.0) * 0.3 * kept.tokens
        keep_predictions(place, replace(kept, loss=kept.loss + liked - kept.tokens * liked.sum() / kept.tokens.sum()))


@pytest.mark.parametrize(("metric", "what"), [("loss", "loss"), ("perplexity", "perplexity")])
def test_a_loss_that_is_not_that_of_its_documents(tmp_path, metric, what):
    def other(cell, record):
        if (cell.arm, cell.seed) != ("freeze-only", 1):
            return record
        told = record.test["final"].splits["validation"]
        return score(record, **{**told, metric: told[metric] * 0.99})

    results = load(make_text_runs(tmp_path, change=other))
    told = [issue for issue in results.checks if issue.code == "NOT-REPRODUCED"]
    assert [(issue.where, issue.severity) for issue in told] == [("freeze-only/seed-1", "invalid")]
    assert what in str(told[0].message)
    assert results.comparisons["freeze-only"].verdict == "invalid"
    assert not [issue for issue in load(make_text_runs(tmp_path / "clean")).checks if issue.code == "NOT-REPRODUCED"]


# -- an arm by itself ------------------------------------------------------------------------------------------------


def test_the_interval_of_an_arm_counts_examples(tmp_path):
    """Nearly as wide as a binomial one: seeds err on mostly the same examples, and agree too much by themselves."""
    results = load(make_runs(tmp_path, spread=0.0005, examples=900))
    found = results.mean("baseline", "accuracy")
    values = list(results.values("baseline", "accuracy").values())
    over_seeds = from_seeds(values).interval()
    assert found.mean == pytest.approx(np.mean(values))
    assert found.interval.low < over_seeds.low < over_seeds.high < found.interval.high
    binomial = 1.96 * math.sqrt(found.mean * (1 - found.mean) / 900)
    assert over_seeds.high - found.mean < 0.1 * binomial
    assert 0.7 * binomial < found.mean - found.interval.low < binomial
    assert results.mean("baseline", "macro_f1").estimate.examples is None, "it is no mean of examples"
    assert results.mean("baseline", "step_seconds").estimate.examples is None
    text = str(results)
    assert f"{found.interval.low:.4f} to {found.interval.high:.4f}" in text
    told = results_as_dict(results)["arms"]["baseline"]
    assert (told["mean"], told["interval"]) == (found.mean, [found.interval.low, found.interval.high])


def test_the_interval_of_a_perplexity_is_that_of_its_loss(tmp_path):
    results = load(make_text_runs(tmp_path))
    perplexity, loss = (results.mean("baseline", metric) for metric in ("perplexity", "loss"))
    assert perplexity.mean == pytest.approx(math.exp(loss.mean))
    assert perplexity.interval.low == pytest.approx(math.exp(loss.interval.low))
    assert perplexity.interval.high == pytest.approx(math.exp(loss.interval.high))
    assert loss.estimate.examples.se > 10 * loss.estimate.seeds.se, "documents differ by more than seeds"


def test_tables_of_perplexities_show_intervals_of_both_sources_and_relative_changes(tmp_path):
    results = load(make_text_runs(tmp_path, perplexity={"freeze-only": 10.3}))
    found, one = results.mean("freeze-only", "perplexity"), results.comparisons["freeze-only"]
    low, high = (math.expm1(end) for end in (one.deciding.low, one.deciding.high))
    table = next(block for block in results_section(results) if isinstance(block, Table))
    cells = [cell.text.en for cell in next(row for row in table.rows if row.arm == "freeze-only").cells]
    assert cells[2] == f"[{found.interval.low:.4f}, {found.interval.high:.4f}]"
    assert cells[5] == f"[{low:+.2%}, {high:+.2%}] 97.5 %", "the one that decides, of two comparisons"
    assert "Relative to baseline" in [column.title.en for column in table.columns]
    told = results_as_dict(results)["arms"]["freeze-only"]["comparison"]
    assert told["relative"]
    assert told["deciding_interval"] == pytest.approx([low, high])
    assert told["interval"] == pytest.approx([math.expm1(one.interval.low), math.expm1(one.interval.high)])
    assert told["margin"] == pytest.approx(0.02)
    assert json.loads(json.dumps(told)) == told


def test_an_arm_whose_examples_are_damaged_rests_on_its_seeds(tmp_path):
    folder = make_runs(tmp_path)
    whole = load(folder).mean("freeze-only", "accuracy")
    for seed in range(1, 5):
        (folder / "freeze-only" / f"seed-{seed}" / "predictions.parquet").write_bytes(b"PAR1")
    found = load(folder).mean("freeze-only", "accuracy")
    assert whole.estimate.examples is not None
    assert found.estimate.examples is None
    assert found.mean == whole.mean


# -- hypotheses ------------------------------------------------------------------------------------------------------


def hypothesis(estimand, rule, margin):
    return {"statement": "It is so.", "estimand": estimand, "rule": rule, "margin": margin}


def test_hypotheses_rest_on_seeds_and_documents(tmp_path):
    """A ratio of perplexities is the difference of the losses; one that the documents leave open is not supported."""
    hypotheses = {
        "ratio": hypothesis("perplexity(freeze-only) / perplexity(baseline)", "above", 1.0),
        "difference": hypothesis("loss(freeze-only) - loss(baseline)", "above", 0.0),
        "value": hypothesis("perplexity(baseline)", "below", 10.2),
        "its loss": hypothesis("loss(baseline)", "below", math.log(10.2)),
    }
    folder = make_text_runs(tmp_path, text_study_of(hypotheses=hypotheses), perplexity={"freeze-only": 10.2})
    found = {one.hypothesis.name: one for one in load(folder).hypotheses}
    assert found["ratio"].status == "supported"
    assert found["ratio"].value == pytest.approx(math.exp(found["difference"].value))
    assert found["ratio"].interval.low == pytest.approx(math.exp(found["difference"].interval.low))
    assert found["ratio"].p_supported == pytest.approx(found["difference"].p_supported)
    assert found["value"].value == pytest.approx(math.exp(found["its loss"].value))
    assert found["value"].p_supported == pytest.approx(found["its loss"].p_supported)
    assert found["value"].status == "inconclusive", "seeds alone are sure of it, other documents could be harder"
    unequal_documents(folder, "freeze-only")
    again = {one.hypothesis.name: one for one in load(folder).hypotheses}
    assert again["ratio"].value == found["ratio"].value
    assert {again[name].status for name in ("ratio", "difference")} == {"inconclusive"}


def test_values_and_ratios_of_accuracies_count_examples(tmp_path):
    hypotheses = {
        "value": hypothesis("accuracy(baseline)", "above", 0.895),
        "ratio": hypothesis("accuracy(freeze-only) / accuracy(baseline)", "above", 0.995),
        "f1": hypothesis("f1(baseline)", "above", 0.5),
    }
    study = study_of(hypotheses=hypotheses)
    results = load(
        make_runs(tmp_path, study, accuracy={"baseline": 0.9, "freeze-only": 0.9}, spread=0.0003, examples=400)
    )
    value, ratio, _ = results.hypotheses
    assert value.interval == results.mean("baseline", "accuracy").interval
    assert value.status == "inconclusive"
    difference = results.comparisons["freeze-only"]
    # Where both are near 0.9, the logarithm of a ratio is the difference by 0.9.
    width = difference.interval.high - difference.interval.low
    assert math.log(ratio.interval.high / ratio.interval.low) == pytest.approx(width / 0.9, rel=0.02)


def test_a_ratio_without_kept_examples_rests_on_seeds(tmp_path):
    rule = hypothesis("macro_f1(freeze-only) / macro_f1(baseline)", "above", 0.5)
    results = load(make_runs(tmp_path, study_of(hypotheses={"H": rule})))
    one, other = (results.values(arm, "macro_f1") for arm in ("freeze-only", "baseline"))
    logs = [math.log(one[seed] / other[seed]) for seed in one]
    assert results.hypotheses[0].interval.low == pytest.approx(math.exp(from_seeds(logs).interval().low))
