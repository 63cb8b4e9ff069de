"""What `oelm bench` left beside the records: read, refused with a reason, and held to the ceiling."""

import math
import re
from dataclasses import replace

import pytest
from scipy.stats import norm, t

from made_bench import bench_of, between, edited, ratio, write_bench
from made_runs import STUDY, make_runs, sealed, study_of
from oelm.analysis.results import load
from oelm.analysis.stats.timed_pairs import check_timed, timed_pair
from oelm.runs.bench import BENCH_FILE, read_bench
from oelm.text.messages import translate

SMALL = {"examples": 60, "steps": 10}
ARMS = {**STUDY["arms"], "oelm-nofreeze": {"init": "orthogonalize", "scale": "match", "freeze": "none"}}
RATIOS = {"freeze-only": 0.95, "oelm-freeze": 0.955, "oelm-nofreeze": 1.0}


@pytest.fixture
def study():
    return study_of(arms=ARMS, seeds=[0, 1])


@pytest.fixture
def folder(tmp_path, study):
    return make_runs(tmp_path, study, **SMALL)


def timed(tmp_path, study, ratios, **parts):
    return read_bench(write_bench(tmp_path, study, ratios, **parts))


def reasons(results):
    return {out.where: translate(out.why) for out in results.excluded}


# -- reading -----------------------------------------------------------------------------------------------------


def test_without_a_bench_there_is_none(folder):
    results = load(folder)
    assert results.bench is None
    assert not results.excluded


def test_what_is_written_is_what_is_read(tmp_path, study):
    """Also with ratios of two other arms, too few rounds for an interval, and no memory."""
    bench = bench_of(study, {**RATIOS, "oelm-freeze": ratio(0.955, rounds=3)}, isolated="--isolate")
    bare = replace(bench.arms["freeze-only"], memory=None)
    pairs = (between("oelm-freeze", "freeze-only", ratio(1.005)),)
    bench = replace(bench, arms={**bench.arms, "freeze-only": bare}, pairs=pairs, warnings=("busy",))
    BENCH_FILE.write(tmp_path, bench)
    assert read_bench(tmp_path) == bench


def test_a_bench_is_read_whole(folder, study):
    bench = load(write_bench(folder, study, RATIOS)).bench
    assert list(bench.arms) == ["baseline", *RATIOS]
    assert {name: arm.step.median for name, arm in bench.arms.items() if arm.step} == RATIOS
    assert bench.arms["freeze-only"].reached == pytest.approx(0.05 / 0.055)
    assert bench.arms["oelm-nofreeze"].reached is None, "there is nothing to be saved"
    assert bench.arms["freeze-only"].memory.learning == 240 * 2**20
    assert bench.arms["freeze-only"].memory.checkpoint.total == 247 * 2**20
    assert (bench.rounds, bench.stopped_by, bench.system.load) == (64, "precision", (1.1, 1.9))


DAMAGE = {
    "half": lambda text: text[:200],
    "a list": lambda text: "[1]",
    "no JSON": lambda text: "\x00\x01",
    "newer": lambda text: text.replace('"format": 3', '"format": 4'),
    "no baseline": lambda text: text.replace('"baseline": {', '"base": {'),
    "no whole steps": lambda text: text.replace('"step": {', '"stride": {', 1),
    "of unknown specs": lambda text: text.replace('"spec": {', '"made": {', 1),
    "of an arm without a spec": lambda text: text.replace('"spec": {\n    "baseline"', '"spec": {\n    "base"'),
    "something new": lambda text: text.replace('"seed": 0,', '"seed": 0, "something": 1,', 1),
    "something missing": lambda text: text.replace('"floor": 0.95,', ""),
    "a negative time": lambda text: text.replace('"step_seconds": 0.27', '"step_seconds": -1'),
    "words for numbers": lambda text: text.replace('"median": 0.95,', '"median": "much",'),
    "infinite": lambda text: text.replace('"median": 0.95,', '"median": 1e999,'),
    "beside its interval": lambda text: text.replace('"median": 0.95,', '"median": 0.5,'),
    "in blocks of nothing": lambda text: text.replace('"block_length": 1.0', '"block_length": 0.0', 1),
    "pairs of words": lambda text: text.replace('"pairs": []', '"pairs": ["a/b"]'),
    "nested": lambda text: '{"a":' * 5000 + "1" + "}" * 5000,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_bench_is_left_out_with_its_reason(folder, study, damage):
    write_bench(folder, study, RATIOS)
    before = (folder / "bench.json").read_text()
    after = DAMAGE[damage](before)
    assert after != before
    (folder / "bench.json").write_text(sealed(after))
    results = load(folder)
    assert results.bench is None
    assert list(reasons(results)) == ["bench.json"]
    assert re.search("bench.json (is damaged|has format 4)", reasons(results)["bench.json"].en)
    assert len(results.records) == 8, "the records are read all the same"


def test_the_bench_of_another_study_is_left_out(folder, study):
    results = load(write_bench(folder, study, RATIOS, study="another"))
    assert results.bench is None
    assert reasons(results)["bench.json"].en == "it was measured for another study, another"
    assert "另一项研究 another" in reasons(results)["bench.json"].zh


def test_a_bench_against_another_arm_is_left_out(folder, study):
    other = replace(study, compare=replace(study.compare, baseline="freeze-only"))
    results = load(write_bench(folder, other, {"baseline": 1.05}))
    assert results.bench is None
    told = "it was measured against freeze-only; the study compares with baseline"
    assert reasons(results)["bench.json"].en == told


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("treatment/freeze", "q", "when oelm-freeze was timed: treatment.freeze: was 'q', is 'qk'"),
        ("recipe/batch/size", 8, "recipe.batch.size: was 8, is 32"),
        ("recipe/data/max_length", 512, "recipe.data.max_length: was 512, is 128"),
        ("recipe/precision", "bf16", "recipe.precision: was 'bf16', is 'fp32'"),
        ("recipe/optimizer/lr", 1.0, None),  # of no effect on a step's time
        ("recipe/data/path", "elsewhere", None),
    ],
)
def test_the_bench_of_a_study_that_was_changed_since_is_left_out(folder, study, path, value, told):
    def change(data):
        *parents, last = path.split("/")
        inner = data["spec"]["oelm-freeze"]
        for part in parents:
            inner = inner[part]
        inner[last] = value

    results = load(edited(write_bench(folder, study, RATIOS), change))
    assert (results.bench is None) == (told is not None)
    assert told is None or told in reasons(results)["bench.json"].en


def test_an_arm_that_the_study_does_not_have_is_left_out_alone(folder, study):
    results = load(write_bench(folder, study, {**RATIOS, "older": 0.9}))
    assert list(results.bench.arms) == ["baseline", *RATIOS]
    assert "bench.json, older" in reasons(results)


def test_a_part_of_the_results_has_that_part_of_the_bench(folder, study):
    results = load(write_bench(folder, study, RATIOS))
    some = results.restricted(arms=["baseline", "freeze-only"])
    assert list(some.bench.arms) == ["baseline", "freeze-only"]


# -- two arms ----------------------------------------------------------------------------------------------------


def test_a_ratio_to_the_baseline_has_the_interval_that_was_measured(tmp_path, study):
    skew = replace(ratio(0.95), low=0.93, high=0.96)
    pair = timed_pair(timed(tmp_path, study, {"freeze-only": skew}), "freeze-only", "baseline")
    assert pair.ratio == 0.95
    assert (pair.interval.low, pair.interval.high) == pytest.approx((0.93, 0.96), rel=1e-6)
    assert pair.rounds == 64


@pytest.mark.parametrize(("high", "differs"), [(0.9999, True), (1.0001, False)])
def test_what_the_interval_excludes_is_excluded_at_five_percent(tmp_path, study, high, differs):
    """Also where the median is not in the middle of it."""
    skew = replace(ratio(0.98), low=0.90, high=high)
    pair = timed_pair(timed(tmp_path, study, {"freeze-only": skew}, at_most=0.5), "freeze-only", "baseline")
    assert (pair.p_differs < 0.05) == differs
    assert ("is faster:" in str(pair.message)) == differs
    assert ("inconclusive" in str(pair.message)) != differs


def test_the_other_way_round_is_the_same(tmp_path, study):
    bench = timed(tmp_path, study, {"freeze-only": 0.95})
    there, back = timed_pair(bench, "freeze-only", "baseline"), timed_pair(bench, "baseline", "freeze-only")
    assert back.ratio == pytest.approx(1 / there.ratio)
    assert (back.interval.low, back.interval.high) == pytest.approx((1 / there.interval.high, 1 / there.interval.low))
    assert back.p_differs == pytest.approx(there.p_differs)
    assert "is slower" in str(back.message)


def test_two_treated_arms_have_a_wider_interval(tmp_path, study):
    bench = timed(tmp_path, study, {"oelm-freeze": ratio(0.95, half=0.01), "oelm-nofreeze": ratio(1.01, half=0.01)})
    pair = timed_pair(bench, "oelm-freeze", "oelm-nofreeze")
    assert pair.ratio == pytest.approx(0.95 / 1.01)
    width = math.log(pair.interval.high / pair.interval.low)
    assert width == pytest.approx(2 * math.sqrt(2) * math.log(1.01))


def test_two_treated_arms_have_the_ratio_that_was_taken_of_them(tmp_path, study):
    """Of the same rounds it is narrower than a division, and need not be its median."""
    arms = {"oelm-freeze": ratio(0.95), "oelm-nofreeze": ratio(1.01)}
    told = ratio(0.945, half=0.002, rounds=32, block_length=2.0)
    bench = timed(tmp_path, study, arms, pairs=(between("oelm-freeze", "oelm-nofreeze", told),))
    there = timed_pair(bench, "oelm-freeze", "oelm-nofreeze")
    assert (there.ratio, there.rounds, there.estimate.seeds.df) == (0.945, 32, 15)
    assert (there.interval.low, there.interval.high) == pytest.approx(told.bounds)
    back = timed_pair(bench, "oelm-nofreeze", "oelm-freeze")
    assert (back.arm, back.against, back.ratio) == ("oelm-nofreeze", "oelm-freeze", pytest.approx(1 / 0.945))
    assert (back.interval.low, back.interval.high) == pytest.approx((1 / told.high, 1 / told.low))
    assert back.p_differs == pytest.approx(there.p_differs)
    assert ("is faster:" in str(there.message), "is slower:" in str(back.message)) == (True, True)


def test_a_ratio_of_two_other_arms_is_of_no_use(tmp_path, study):
    """Nor is one that speaks of an arm that was not timed, or of the baseline: an arm has its own ratio to that."""
    arms = {"freeze-only": 0.97, "oelm-freeze": 0.95, "oelm-nofreeze": 1.01}
    pairs = tuple(between("oelm-freeze", other, ratio(0.5)) for other in ("freeze-only", "elsewhere", "baseline"))
    bench = timed(tmp_path, study, arms, pairs=pairs)
    assert timed_pair(bench, "oelm-freeze", "oelm-nofreeze").ratio == pytest.approx(0.95 / 1.01)
    assert timed_pair(bench, "oelm-freeze", "baseline").ratio == 0.95
    assert timed_pair(bench, "baseline", "oelm-freeze").ratio == pytest.approx(1 / 0.95)
    assert timed_pair(bench, "oelm-freeze", "elsewhere") is None


def test_a_ratio_of_two_arms_with_too_few_rounds_has_no_interval(tmp_path, study):
    pairs = (between("oelm-freeze", "oelm-nofreeze", ratio(0.95, rounds=1)),)
    bench = timed(tmp_path, study, {"oelm-freeze": 0.95, "oelm-nofreeze": 1.0}, pairs=pairs)
    pair = timed_pair(bench, "oelm-nofreeze", "oelm-freeze")
    assert (pair.interval, pair.p_differs, pair.is_faster) == (None, 1.0, False)
    assert "oelm bench, 1 round: too few" in str(pair.message)
    assert "1 轮" in translate(pair.message).zh


@pytest.mark.parametrize(
    ("rounds", "block_length", "df"), [(8, 1.0, 7), (64, 1.0, 63), (32, 4.0, 7), (20, 3.0, 5), (9, 9.0, 1)]
)
def test_p_values_are_those_of_t(tmp_path, study, rounds, block_length, df):
    """As wide as the interval was made for so many rounds: at 5 % they agree with it, and below they are larger than
    the normal distribution has them."""
    told = ratio(0.97, half=0.02, rounds=rounds, block_length=block_length)
    pair = timed_pair(timed(tmp_path, study, {"freeze-only": told}), "freeze-only", "baseline")
    half, middle = math.log(1.02), -math.log(0.97)
    assert pair.p_differs == pytest.approx(2 * t.sf(middle / half * t.ppf(0.975, df), df))
    assert pair.p_differs > 2 * norm.sf(middle / half * norm.ppf(0.975))
    assert (pair.interval.low, pair.interval.high) == pytest.approx(told.bounds)


def test_a_division_has_the_fewer_degrees_of_freedom(tmp_path, study):
    arms = {"oelm-freeze": ratio(0.95, rounds=64), "oelm-nofreeze": ratio(1.01, rounds=64, block_length=8.0)}
    bench = timed(tmp_path, study, arms)
    for pair in (("oelm-freeze", "oelm-nofreeze"), ("oelm-nofreeze", "oelm-freeze")):
        found = timed_pair(bench, *pair)
        error = math.log(1.01) * math.hypot(1 / t.ppf(0.975, 63), 1 / t.ppf(0.975, 7))
        assert found.p_differs == pytest.approx(2 * t.sf(math.log(1.01 / 0.95) / error, 7))


@pytest.mark.parametrize(("way", "word"), [(1, "faster"), (-1, "slower")])
def test_faster_or_slower_is_on_the_side_of_the_estimate(tmp_path, study, way, word):
    """Medians at the inner ends of their intervals give a ratio on the other side of 1 than what the p value is of."""
    arms = {
        "oelm-freeze": replace(ratio(0.99), low=0.90, high=0.99),
        "freeze-only": replace(ratio(0.98), low=0.98, high=1.08),
    }
    pair = timed_pair(timed(tmp_path, study, arms), *("oelm-freeze", "freeze-only")[::way])
    assert (pair.ratio > 1) == (word == "faster")
    assert pair.p_differs < 0.05
    assert f"is {word}:" in str(pair.message)


def test_few_rounds_decide_nothing(tmp_path, study):
    bench = timed(tmp_path, study, {"oelm-freeze": ratio(0.5, rounds=3), "freeze-only": 0.95})
    pair = timed_pair(bench, "oelm-freeze", "baseline")
    assert (pair.interval, pair.p_differs, pair.issues) == (None, 1.0, ())
    assert "too few for an interval" in str(pair.message)
    assert timed_pair(bench, "oelm-freeze", "freeze-only").interval is None


@pytest.mark.parametrize("low", [0.0, 5e-324])
def test_an_interval_down_to_nothing_is_none(tmp_path, study, low):
    """Nor can it be turned round."""
    wide = replace(ratio(0.95, rounds=2), low=low, high=1e9)
    bench = timed(tmp_path, study, {"oelm-freeze": wide, "oelm-nofreeze": 1.0})
    for pair in (("baseline", "oelm-freeze"), ("oelm-nofreeze", "oelm-freeze"), ("oelm-freeze", "baseline")):
        assert timed_pair(bench, *pair).interval is None


def test_only_what_was_measured_is_a_pair(tmp_path, study):
    bench = timed(tmp_path, study, {"oelm-freeze": 0.95})
    assert timed_pair(bench, "freeze-only", "baseline") is None
    assert timed_pair(bench, "oelm-freeze", "oelm-freeze") is None
    assert timed_pair(None, "oelm-freeze", "baseline") is None


# -- the ceiling ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ratios", "pair", "fires"),
    [
        ({"oelm-freeze": 0.80}, ("oelm-freeze", "baseline"), True),
        ({"oelm-freeze": 0.80}, ("baseline", "oelm-freeze"), True),
        ({"oelm-freeze": 0.915}, ("oelm-freeze", "baseline"), False),  # its interval reaches what can be saved
        ({"oelm-freeze": 0.95}, ("oelm-freeze", "baseline"), False),
        ({"oelm-freeze": 0.95}, ("baseline", "oelm-freeze"), False),
        ({"oelm-freeze": 1.20}, ("oelm-freeze", "baseline"), False),  # slower is a result
        ({"oelm-nofreeze": 0.97}, ("oelm-nofreeze", "baseline"), True),  # it freezes nothing
        ({"oelm-nofreeze": 1.03}, ("oelm-nofreeze", "baseline"), False),
        ({"oelm-nofreeze": 1.03}, ("baseline", "oelm-nofreeze"), False),
        ({"oelm-freeze": 0.95, "oelm-nofreeze": 1.0}, ("oelm-freeze", "oelm-nofreeze"), False),
        ({"oelm-freeze": 0.93, "oelm-nofreeze": 1.10}, ("oelm-freeze", "oelm-nofreeze"), False),  # slower is a result
        ({"oelm-freeze": 0.93, "oelm-nofreeze": 1.10}, ("oelm-nofreeze", "oelm-freeze"), False),
        ({"oelm-freeze": 0.80, "oelm-nofreeze": 1.0}, ("oelm-freeze", "oelm-nofreeze"), True),
        ({"oelm-freeze": 0.80, "oelm-nofreeze": 1.0}, ("oelm-nofreeze", "oelm-freeze"), True),
        ({"oelm-freeze": 0.80, "freeze-only": 0.95}, ("freeze-only", "oelm-freeze"), True),  # they freeze as much
        ({"oelm-freeze": 0.80, "freeze-only": 0.95}, ("oelm-freeze", "freeze-only"), True),
    ],
)
def test_more_than_freezing_can_save_is_an_issue(tmp_path, study, ratios, pair, fires):
    found = timed_pair(timed(tmp_path, study, ratios), *pair)
    assert [issue.code for issue in found.issues] == ["SPEEDUP-ABOVE-CEILING"] * fires
    assert ("cannot be compared" in str(found.message)) == fires
    if fires:
        (issue,) = found.issues
        assert issue.severity == "invalid"
        above = min(ratios, key=ratios.get)
        assert (issue.where, issue.arms) == (above, (above,))
        assert f"{above} saves" in str(issue.message)
        assert "of baseline's step" in str(issue.message)
        assert "something else was timed" in str(issue.message)


@pytest.mark.parametrize("way", [1, -1])
@pytest.mark.parametrize("own", [True, False])
def test_an_arm_that_saves_less_than_it_may_blames_no_other(tmp_path, study, way, own):
    """One of 0.08 saves all of it and one of 0.06 half: between them it is 5.2 %, more than 0.08 and 0.06 are apart."""
    arms = {"oelm-freeze": ratio(0.92, half=0.001), "freeze-only": ratio(0.97, half=0.001)}
    pairs = (between("oelm-freeze", "freeze-only", ratio(0.92 / 0.97, half=0.001)),) * own
    folder = write_bench(tmp_path, study, arms, at_most=0.08, pairs=pairs)
    bench = read_bench(edited(folder, lambda data: data["arms"]["freeze-only"].update(at_most=0.06)))
    assert timed_pair(bench, *("oelm-freeze", "freeze-only")[::way]).issues == ()


def test_both_above_their_ceilings_are_two_issues_and_each_is_named_once(tmp_path, study):
    bench = timed(tmp_path, study, {"oelm-freeze": 0.8, "freeze-only": 0.7})
    there = timed_pair(bench, "oelm-freeze", "freeze-only").issues
    assert {issue.where for issue in there} == {"oelm-freeze", "freeze-only"}
    assert set(there) == set(timed_pair(bench, "freeze-only", "oelm-freeze").issues)
    compared = [("oelm-freeze", "baseline"), ("freeze-only", "baseline"), ("oelm-freeze", "freeze-only")]
    assert [issue.where for issue in check_timed(bench, compared)] == ["oelm-freeze", "freeze-only"]


def test_it_is_said_among_the_checks_and_blocks_no_accuracy(folder, study):
    clean = load(write_bench(folder, study, RATIOS))
    results = load(write_bench(folder, study, {**RATIOS, "oelm-freeze": 0.8}))
    told = [issue for issue in results.checks if issue not in clean.checks]
    assert [(issue.code, issue.severity, issue.where) for issue in told] == [
        ("SPEEDUP-ABOVE-CEILING", "warn", "oelm-freeze")
    ]
    assert check_timed(clean.bench, clean.compared) == []
    for arm, one in results.comparisons.items():
        assert (one.verdict, one.issues) == (clean.comparisons[arm].verdict, clean.comparisons[arm].issues)
    memory = results.compare("oelm-freeze", metric="peak_memory")
    assert "SPEEDUP-ABOVE-CEILING" not in {issue.code for issue in memory.issues}
