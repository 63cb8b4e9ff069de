"""Claims: on the published numbers the checks fire for real, and on clean twins they do not."""

import copy
import json
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from oelm import yaml
from oelm.analysis.checks.consistency import saving_ceiling
from oelm.claims.judge import judge_claim
from oelm.claims.load import ledger_from_dict, load_ledger, shipped_ledgers
from oelm.cli.claims import claims_app
from oelm.errors import OelmError, StudyError
from oelm.text.messages import translate

ROOT = Path(__file__).resolve().parents[2]
RAW = yaml.read(shipped_ledgers()["oelm-first"])


@pytest.fixture(scope="module")
def ledger():
    return load_ledger()


def judged(claim, changes=None):
    """A shipped claim with some things changed at paths with slashes; `...` takes one away."""
    data = copy.deepcopy(RAW)
    data["claims"] = {claim: data["claims"][claim]}
    for path, value in (changes or {}).items():
        *parents, last = path.split("/")
        inner = data["claims"][claim]
        for part in parents:
            inner = inner[int(part) if isinstance(inner, list) else part]
        if value is ...:
            del inner[last]
        else:
            inner[last] = value
    return judge_claim(ledger_from_dict(data).claims[claim])


def said(one, code):
    return [f"{found.where}: {found.message}" for found in one.issues if found.code == code]


# What must fire, what its message must contain, and the change that makes a clean twin of the claim.
LR = "arms/oelm-freeze/settings/optimizer.lr"
LISTED = "results/sst2/arms/oelm-freeze/listed"
CASES = [
    ("C1", "LR-DIFFERS", "2e-05", {LR: 2e-5}),
    ("C2", "LR-DIFFERS", "2e-05", {LR: 2e-5}),
    ("C8", "LR-DIFFERS", "0.0003", {LR: 3e-4, "arms/oelm-random/settings/optimizer.lr": 3e-4}),
    ("C9", "LR-DIFFERS", "0.0003", {LR: 3e-4}),
    ("C11", "LR-DIFFERS", "0.0003", {LR: 3e-4}),
    ("C1", "SAME-SPLIT", "dev", {"selected_on": "held-out"}),
    ("C2", "SAME-SPLIT", "dev-matched", {"selected_on": "held-out"}),
    ("C11", "SAME-SPLIT", "test", {"selected_on": "held-out"}),
    ("C1", "BASELINE-TREATED", "orthogonalize", {"arms/baseline/treatment": {"init": "keep", "freeze": "none"}}),
    ("C13", "BASELINE-TREATED", "gaussian", {"arms/baseline/treatment": {"init": "keep", "freeze": "none"}}),
    ("C1", "GRIM", "91.42 %", {LISTED: ["91.28 %"]}),
    ("C1", "GRIM", "91.31 %", {LISTED: ["91.28 %"]}),
    ("C1", "BEST-BELOW-LISTED", "91.42 %", {"results/sst2/arms/oelm-freeze/best": "91.42 %"}),
    ("C1", "F1-IMPOSSIBLE", "0.9389", {"results/sst2/arms/baseline/f1": "0.9320"}),
    (
        "C2",
        "F1-IMPOSSIBLE",
        "0.8885",
        {"results/mnli/arms/baseline/f1": "0.8341", "results/mnli/arms/oelm-freeze/f1": "0.8220"},
    ),
    ("C3", "SCALE-CONFOUND", "3.26", {"arms/oelm-random/treatment/scale": "unit"}),
    ("C3", "PRETRAINED-ERASED", "erased by oelm-random", {"arms/oelm-freeze/treatment/init": "orthogonal"}),
    (
        "C4",
        "SETTING-DIFFERS",
        "warmup",
        {f"arms/{arm}/settings": {"optimizer.lr": 3e-4} for arm in ("first-baseline", "oelm-global")},
    ),
    (
        "C8",
        "TIME-ARITHMETIC",
        "5h07",
        {f"results/tinystories/arms/{arm}/wall": "5h 20m" for arm in ("baseline", "oelm-freeze")},
    ),
    ("C10", "COUNT-MISSES-BUFFERS", "3,145,728", {"counts/reported_total": 44_896_768}),
    ("C11", "BELOW-SIMPLE-BASELINE", "87.05 %", {"results/ag_news/simple_baseline": "85.0 %"}),
    (
        "C11",
        "FINAL-BELOW-BEST",
        "69.368 %",
        {
            f"results/{data}/arms/{arm}/final": ...
            for data in ("imdb", "ag_news")
            for arm in ("baseline", "oelm-freeze")
        },
    ),
    ("C11", "INERT-SCHEDULE", "constant", {"schedule/says": "constant"}),
    ("C12", "SPEEDUP-ABOVE-CEILING", "21.0%", {"results/xnli/arms/oelm-freeze/wall": "3h 04m 00s"}),
    ("C12", "SETTING-DIFFERS", "GPU 1", {"arms/oelm-freeze/settings/device": "GPU 0"}),
]


@pytest.mark.parametrize(("claim", "code", "number", "clean"), CASES, ids=lambda value: str(value)[:24])
def test_it_fires_on_the_published_claim_and_not_on_its_clean_twin(claim, code, number, clean):
    assert any(number in text for text in said(judged(claim), code))
    assert not said(judged(claim, clean), code)


def test_few_seeds_wherever_there_is_one(ledger):
    for name, claim in ledger.claims.items():
        seeds = [arm.seeds for arm in claim.arms.values()]
        single = len(seeds) > 1 and seeds.count((42,)) > 1
        assert bool(said(judge_claim(claim), "FEW-SEEDS")) == single, name
    many = {f"arms/{arm}/seeds": list(range(20)) for arm in ("baseline", "oelm-freeze")}
    assert not said(judged("C1", many), "FEW-SEEDS")


def test_the_paired_interval_of_the_three_timed_pairs(ledger):
    (pair,) = judge_claim(ledger.claims["C5"]).paired
    assert pair.n == 3
    assert pair.mean == pytest.approx(0.0137, abs=5e-4)
    assert (pair.interval.low, pair.interval.high) == pytest.approx((-0.306, 0.333), abs=1e-3)
    assert "+1.4%" in str(pair.message)


def test_one_pair_gives_no_interval():
    one = {f"results/step-time/arms/{arm}/values": ["0.3"] for arm in ("baseline", "oelm-freeze")}
    assert not judged("C5", one).paired


def test_smaller_savings_of_the_same_table_are_let_be(ledger):
    (only,) = said(judge_claim(ledger.claims["C12"]), "SPEEDUP-ABOVE-CEILING")
    assert only.startswith("xnli")
    assert f"{saving_ceiling():.2%}" in only


def test_a_treated_arm_below_the_simple_baseline_is_a_result():
    """Only a baseline that learned nothing takes the ground from a comparison."""
    one = judged("C11", {"results/ag_news/simple_baseline": "95.0 %"})
    severities = {found.arms: found.severity for found in one.issues if found.code == "BELOW-SIMPLE-BASELINE"}
    assert severities == {("baseline",): "invalid", ("oelm-freeze",): "warn"}


def test_two_arms_with_the_same_numbers():
    same = {"best": "91.28 %", "final": "91.28 %", "f1": "0.9159"}
    twins = {f"results/sst2/arms/{arm}": same for arm in ("baseline", "oelm-freeze")}
    assert said(judged("C1", twins), "DUPLICATE-ROWS")
    assert not said(judged("C1"), "DUPLICATE-ROWS")


def test_a_claim_about_times_is_judged_by_what_concerns_times(ledger):
    """Its arms had other learning rates and a treated baseline: that changes no step's time."""
    assert ledger.claims["C5"].of_times
    assert not {"LR-DIFFERS", "BASELINE-TREATED"} & set(judge_claim(ledger.claims["C5"]).codes)
    assert judge_claim(ledger.claims["C12"]).codes == ["SPEEDUP-ABOVE-CEILING", "SETTING-DIFFERS", "FEW-SEEDS"]
    twin = judged("C5", {"results/step-time/metric": "accuracy", "results/step-time/better": "higher"})
    assert {"LR-DIFFERS", "BASELINE-TREATED"} <= set(twin.codes), "of an accuracy it is another matter"
    assert not ledger.claims["C8"].of_times, "it has times beside its perplexity"


# -- the shipped ledger --------------------------------------------------------------------------------------------


def test_all_claims_are_there_in_both_languages(ledger):
    assert list(ledger.claims) == [f"C{number}" for number in range(1, 23)]
    for claim in ledger.claims.values():
        reasons = [text for test in claim.tests for text in (test.because, test.needs) if text is not None]
        for text in (claim.claim, *claim.notes, *reasons):
            assert not re.search(r"[\u4e00-\u9fff]", text.en)
            assert re.search(r"[\u4e00-\u9fff]", text.zh)


def test_every_message_is_in_both_languages(ledger):
    for claim in ledger.claims.values():
        one = judge_claim(claim)
        messages = [found.message for found in (*one.issues, *one.paired, one.verdict, *one.verdict.tests)]
        for message in messages:
            text = translate(message)
            assert re.search(r"[\u4e00-\u9fff]", text.zh), text
            assert not re.search(r"[\u4e00-\u9fff]", text.en), text


def test_every_claim_has_a_test_and_says_why_its_margin_is_that(ledger):
    """The first test is at the claim's own scale; those at other scales have its margin, and so its reason."""
    for name, claim in ledger.claims.items():
        assert claim.tests, name
        first, *others = claim.tests
        assert first.because is not None or first.margin in (0, 1), name
        for other in others:
            same = (other.rule, other.margin) == (first.rule, first.margin)
            assert same or not other.decides, (name, other.scale)


# -- loading -------------------------------------------------------------------------------------------------------


def test_all_problems_are_said_at_once_with_their_places():
    data = copy.deepcopy(RAW)
    claims = data["claims"]
    claims["C1"]["result"] = claims["C1"].pop("results")
    claims["C2"]["arms"]["baseline"]["treatmnt"] = {}
    claims["C3"]["arms"]["oelm-random"]["treatment"]["init"] = "gausian"
    claims["C8"]["results"]["tinystories"]["arms"]["baseline"]["best"] = 4.27
    claims["C9"]["results"]["openwebtext"]["better"] = "lowest"
    claims["C12"]["results"]["imdb"]["arms"]["baseline"]["wall"] = "a while"
    claims["C14"]["claim"] = {"en": "one language"}
    with pytest.raises(StudyError) as caught:
        ledger_from_dict(data, where="mine.yaml")
    told = str(caught.value)
    assert "mine.yaml has 7 problems" in told
    for line in (
        r"claims\.C1\.result +unknown field; did you mean 'results'\?",
        r"claims\.C2\.arms\.baseline\.treatmnt +unknown field; did you mean 'treatment'\?",
        r"claims\.C3\.arms\.oelm-random\.treatment +.*did you mean 'gaussian'\?",
        r"claims\.C8\.results\.tinystories\.arms\.baseline\.best +must be as printed, in quotation marks",
        r"claims\.C9\.results\.openwebtext\.better +'lowest' is not known; did you mean 'lower'\?",
        r"claims\.C12\.results\.imdb\.arms\.baseline\.wall +'a while' is not a duration",
        r"claims\.C14\.claim +must be a sentence, or \{en: \.\.\., zh: \.\.\.\}",
    ):
        assert re.search(line, told), (line, told)


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("source", "bert-reservoire", "did you mean 'bert-reservoir'"),
        ("against", "base-line", "'base-line' is not an arm; did you mean 'baseline'?"),
        ("against", ..., "against  is missing"),
        ("pairs", [["oelm-freeze", "x"]], "'x' is not an arm"),
        ("results/sst2/arms/oelm", {"best": "91.28 %"}, "'oelm' is not an arm"),
        ("results/sst2/examples", 871, "sum to 872, and there are 871 examples"),
        ("results/sst2/classes", 3, "are 2, and there are 3 classes"),
        ("results/sst2/arms/baseline/best", "93.12", "'93.12' is not a share"),
        ("tests/1/studies", [], "tests.1  names no study: say what it `needs`"),
        ("tests/1/studies", ["minilm-sst3"], "tests.1.studies  'minilm-sst3' is not a shipped study; did you mean"),
        ("tests/1/studies", ["zzz"], "'zzz' is not a shipped study; oelm studies ls"),
        ("tests/1/studies", ["minilm-sst2", "gpt-mini-imdb"], "tests.1.combine  is missing: mean or interaction?"),
        ("tests/1/combine", "mean", "a mean is over two studies or more, got 1"),
        ("tests/1/combine", "interaction", "an interaction is between two studies, got 1"),
        ("tests/1/combine", "median", "'median' is not known"),
        ("tests/1/estimand", "accuracy(oelm) - accuracy(baseline)", "unknown arm 'oelm'"),
        ("tests/1/estimand", "accuracy(oelm-freeze", "is not of the form metric(arm)"),
        ("tests/1/estimand", 3, "'3' is not of the form metric(arm)"),
        ("tests/1/estimand", "perplexity(oelm-freeze)", "'perplexity' is not measured by minilm-sst2"),
        ("tests/1/estimand", "acuracy(oelm-freeze)", "did you mean 'accuracy'?"),
        ("tests/1/estimand", "accuracy(baseline) - accuracy(baseline)", "compares 'baseline' with itself"),
        ("tests/1/rule", "within", "tests.1.margin  must be greater than 0"),
        ("tests/1/rule", "over", "'over' is not known"),
        ("tests/1/margin", "a point", "tests.1.margin  must be a valid number"),
        ("tests/1/margin", ..., "tests.1.margin  is missing"),
        ("tests/1/scale", ..., "tests.1.scale  is missing"),
        ("tests/1/scale", {"en": "small"}, "must be a sentence, or {en: ..., zh: ...}"),
    ],
)
def test_what_makes_no_sense_together_is_refused(path, value, told):
    with pytest.raises(StudyError, match=re.escape(told).replace(r"\ \ ", r" +")):
        judged("C1", {path: value})


@pytest.mark.parametrize("raw", [None, [], "text", 3])
def test_what_is_no_mapping_is_no_ledger(raw):
    with pytest.raises(StudyError, match="is not a ledger"):
        ledger_from_dict(raw)


def test_a_file_of_another_version_or_none():
    with pytest.raises(StudyError, match="version"):
        ledger_from_dict({**RAW, "version": 2})
    with pytest.raises(StudyError, match=r"unknown ledger oelm-frist; did you mean 'oelm-first'\?"):
        load_ledger("oelm-frist")
    with pytest.raises(StudyError):
        load_ledger("x" * 5000)


def test_a_sentence_in_one_language_will_do():
    claim = {"claim": "It works.", "source": "s"}
    ledger = ledger_from_dict({"ledger": "l", "version": 1, "sources": {"s": "S"}, "claims": {"A": claim}})
    assert ledger.claims["A"].claim.zh == "It works."
    assert not judge_claim(ledger.claims["A"]).issues
    verdict = judge_claim(ledger.claims["A"]).verdict
    assert (verdict.status, str(verdict.message)) == ("inconclusive", "inconclusive: the ledger names no test")


def places(data, path=()):
    """Every place in plain data."""
    yield path
    for key, inner in data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ():
        yield from places(inner, (*path, key))


PLACES = sorted(places(RAW), key=str)
ANY = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["0", "0 %", "100 %", "0 s", "1h", "-1", "qk", "gaussian", "baseline", "accuracy", "lower", "1"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.slow
@settings(deadline=None, max_examples=120, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.sampled_from(PLACES), ANY), min_size=1, max_size=3))
@example([(("claims", "C1", "results", "sst2", "class_counts"), [872])])
@example([(("claims", "C12", "results", "xnli", "arms", "baseline", "wall"), "0 s")])
@example([(("claims", "C1", "arms", "oelm-freeze", "treatment"), {})])  # only the baseline is treated
def test_any_ledger_is_judged_or_refused_with_one_clear_error(changes):
    data = copy.deepcopy(RAW)
    for path, value in changes:
        inner = data
        try:
            for part in path[:-1]:
                inner = inner[part]
            if path:
                inner[path[-1]] = value
            else:
                data = value
        except (LookupError, TypeError):  # an earlier change took the place away
            continue
    try:
        ledger = ledger_from_dict(data)
    except OelmError:
        return
    for claim in ledger.claims.values():
        assert str(judge_claim(claim).verdict.message)


NUMBERS = [
    place for place in PLACES if {"best", "final", "f1", "listed", "values", "simple_baseline"} & set(place[-2:])
]
NUMBERS = [place for place in NUMBERS if place[-1] not in ("listed", "values")]
TIMES = [place for place in PLACES if place[-1:] in (("wall",), ("step_seconds",))]
COUNTS = [place for place in PLACES if place[-1:] == ("class_counts",)]
ONE = st.one_of(
    st.tuples(st.sampled_from(NUMBERS), st.sampled_from(["0", "0 %", "1", "100.0 %", "33.3 %", "0.50000", "50.01 %"])),
    st.tuples(st.sampled_from(TIMES), st.sampled_from(["0 s", "0.001 s", "1h", "59m 59s", "9999h", "86400.000 s"])),
    st.tuples(st.sampled_from(COUNTS), st.lists(st.integers(1, 10**9), min_size=1, max_size=5)),
)


@pytest.mark.slow
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(ONE, min_size=1, max_size=12))
def test_any_numbers_are_judged(changes):
    data = copy.deepcopy(RAW)
    for path, value in changes:
        inner = data
        for part in path[:-1]:
            inner = inner[part]
        inner[path[-1]] = value
        if path[-1] == "class_counts":
            inner["examples"] = sum(value)
    for claim in ledger_from_dict(data).claims.values():
        assert all(str(found.message) and translate(found.message).zh for found in judge_claim(claim).issues)


# -- the command line and the page ---------------------------------------------------------------------------------


def run(*args):
    result = CliRunner().invoke(claims_app, [str(arg) for arg in args])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_the_list_names_verdicts_tests_and_checks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    listed = run().output
    assert re.search(
        r"C1  BERT-base on SST-2.*\n +verdict +inconclusive: no records yet\n"
        r" +test +BERT-base, SST-2: out of reach here: needs a GPU \(oelm run bert-sst2-fair\)\.\n"
        r" +MiniLM-L6, SST-2, CPU: no records yet \(oelm run minilm-sst2\)\.\n +checks +LR-DIFFERS.*GRIM",
        listed,
    )
    assert run("ls").output == listed
    assert "尚无定论\uff1a尚无记录" in run("--lang", "zh").output
    data = json.loads(run("--json").output)
    assert data["C10"]["checks"][0]["code"] == "COUNT-MISSES-BUFFERS"
    assert data["C10"]["verdict"]["status"] == "refuted"
    own, small = data["C1"]["tests"]
    assert (own["status"], own["key"], own["needs"]["en"]) == ("out of reach here", "claim-needs-run", "a GPU")
    assert (small["status"], small["key"], small["value"]) == ("inconclusive", "claim-not-run", None)
    assert (small["estimand"], small["rule"], small["margin"], small["studies"]) == (
        "accuracy(oelm-freeze) - accuracy(baseline)",
        "above",
        -0.02,
        ["minilm-sst2"],
    )
    (paired,) = data["C5"]["paired"]
    assert (paired["n"], round(paired["mean"], 4)) == (3, 0.0137), "numbers, with the sentence beside them"
    assert "+1.4%" in paired["text"]


def test_check_shows_the_full_messages():
    result = run("check", "C8", "C14")
    assert result.exit_code == 0
    assert "100,000 steps of 0.184 s take 5h07" in result.output
    assert re.search(
        r"rule +perplexity\(.*\) / perplexity\(baseline\) > 1.05 \(5 %: the report's own target", result.output
    )
    assert result.output.count(" > 1.05 (") == 1, "a rule is said once, however many scales it has"
    assert re.search(r"verdict +refuted \(GPT Medium-512\)", result.output)
    assert "C1  " not in result.output
    assert list(json.loads(run("check", "C5", "--json").stdout)) == ["C5"]
    with pytest.raises(StudyError, match="unknown claim 'C99'"):
        run("check", "C99")


def test_a_folder_that_is_not_there_is_said(tmp_path):
    with pytest.raises(OelmError, match="there is no folder"):
        run(tmp_path / "nowhere")


def test_a_study_that_cannot_be_read_is_named_and_the_claims_are_shown(tmp_path):
    cell = tmp_path / "bert-sst2-fair" / "baseline" / "seed-0"
    cell.mkdir(parents=True)
    (cell / "cell.json").write_text("{}")
    (cell / "record.json").write_text("{half")
    result = run(tmp_path)
    assert "has neither study.json nor lock.json" in result.stderr
    assert "needs a GPU (oelm run bert-sst2-fair)" in result.stdout


def test_the_ledger_of_the_page_is_read_and_judged(tmp_path):
    page = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"^```text\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    file = tmp_path / "mine.yaml"
    file.write_text(text, encoding="utf-8")
    told = run("check", "--ledger", file).output
    fired = ("LR-DIFFERS", "TUNING-UNEQUAL", "FEW-SEEDS", "SAME-SPLIT", "GRIM", "TIME-ARITHMETIC")
    assert all(code in told for code in fired), told
