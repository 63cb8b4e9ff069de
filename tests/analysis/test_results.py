"""Results are read back whole: what is damaged, foreign or unfinished is left out with its reason, or is one error."""

import copy
import json
import math
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from made_runs import make_runs, replace_at, seal_files, sealed, study_of, write_floor
from oelm.analysis.results import load
from oelm.analysis.text_table import results_as_dict
from oelm.errors import CellError, OelmError, StudyError
from oelm.facts import AttentionStats
from oelm.runs.files import digest_file
from oelm.runs.layout import find_started_studies
from oelm.runs.lease import acquire
from oelm.runs.lock import lock_study
from oelm.runs.predictions import read_predictions
from oelm.runs.steps import read_steps
from oelm.study.cells import Cell, compared_cells
from oelm.study.load import load_study
from oelm.text.messages import translate

SMALL = {"examples": 60, "steps": 10}
TWO = study_of(seeds=[0, 1])
TUNE = {"optimizer.lr": [3e-5, 1e-4, 3e-4]}
HYPOTHESES = {
    "h": {
        "statement": "It costs nothing",
        "estimand": "accuracy(freeze-only) - accuracy(baseline)",
        "rule": "above",
        "margin": -0.01,
    }
}


@pytest.fixture(scope="session")
def pristine(tmp_path_factory):
    """Three arms, two seeds; nobody writes into it."""
    return make_runs(tmp_path_factory.mktemp("pristine"), TWO, **SMALL)


@pytest.fixture
def runs(pristine, tmp_path):
    """A copy to be damaged."""
    return Path(shutil.copytree(pristine, tmp_path / "made"))


def edit(path, change):
    """Change a file as if it had been written so."""
    data = json.loads(path.read_text())
    change(data)
    path.write_text(sealed(json.dumps(data)))


def everything(results):
    """All that can be asked of results; every sentence must come out in both languages."""
    messages = [issue.message for issue in results.checks]
    messages += [one.message for one in results.comparisons.values()]
    messages += [one.message for one in results.hypotheses]
    messages += [out.why for out in results.excluded]
    assert all(translate(message).en and translate(message).zh for message in messages)
    json.dumps(results_as_dict(results), allow_nan=False)
    assert len(results.table()) == len(results.records)
    return str(results) + results._repr_html_()


# -- what is whole ---------------------------------------------------------------------------------------------------


def test_all_cells_are_there(pristine):
    results = load(pristine)
    assert list(results.records) == [
        Cell(arm=arm, seed=seed)
        for seed, arms in enumerate((["baseline", "freeze-only", "oelm-freeze"],) * 2)
        for arm in (arms if seed == 0 else arms[::-1])
    ]
    assert results.excluded == ()
    assert results.study == TWO
    assert results.values("baseline", "trainable") == {0: 22_713_986, 1: 22_713_986}
    assert results.values("baseline", "no such metric") == {}
    table = results.table()
    assert set(table["arm"]) == set(TWO.arms)
    assert {"accuracy", "accuracy (best)", "trainable", "lr", "step_seconds", "peak_memory"} <= set(table.columns)
    assert table["accuracy"].tolist() == [record.value("accuracy") for record in results.records.values()]


def test_the_study_is_found_from_anywhere_around_it(pristine, monkeypatch):
    expected = load(pristine).records
    for place in (pristine.parent, pristine / "baseline", pristine / "baseline" / "seed-0", str(pristine)):
        assert load(place).records == expected
    for place in (pristine.parent, pristine, pristine / "baseline", pristine / "baseline" / "seed-0"):
        monkeypatch.chdir(place)
        assert load(".").records == expected


def test_tuning_cells_are_kept_apart(tmp_path, monkeypatch):
    results = load(make_runs(tmp_path, study_of(seeds=[0, 1], tune=TUNE), **SMALL))
    assert len(results.records) == 6
    assert len(results.tuning) == 18
    assert results.tuned("baseline") == {"optimizer.lr": {0: 1e-4, 1: 1e-4}}
    assert results.excluded == ()
    monkeypatch.chdir(results.folder / "baseline" / "tune" / "optimizer.lr=0.0001")
    assert load(".").tuning == results.tuning


# -- the study -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "parts", [{}, {"tune": TUNE}, {"hypotheses": HYPOTHESES}], ids=["plain", "tuned", "hypotheses"]
)
def test_a_study_that_is_missing_is_what_was_locked(tmp_path, parts):
    runs = make_runs(tmp_path, study_of(seeds=[0, 1], **parts), **SMALL)
    whole = load(runs)
    (runs / "study.json").unlink()
    results = load(runs)
    assert (results.study, results.records, results.tuning) == (whole.study, whole.records, whole.tuning)
    assert list(left(results)) == ["study.json"]
    assert {arm: one.verdict for arm, one in results.comparisons.items()} == {
        arm: one.verdict for arm, one in whole.comparisons.items()
    }


def test_neither_a_study_nor_a_lock_is_one_error(runs):
    for name in ("study.json", "lock.json"):
        (runs / name).unlink()
    with pytest.raises(CellError, match=r"neither study\.json nor lock\.json"):
        load(runs)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "\x00", '{"study": "made"}', "{" * 5000, '{"a":' * 400 + "1" + "}" * 400]
)
def test_a_damaged_study_is_one_error_that_names_the_file(runs, text):
    (runs / "study.json").write_text(text)
    with pytest.raises(OelmError, match=r"study\.json"):
        load(runs)


def test_a_study_of_a_newer_version(runs):
    edit(runs / "study.json", lambda data: data.update(version=2))
    with pytest.raises(StudyError, match=r"study\.json.*\n.*version.*must be 1"):
        load(runs)


# -- what is left out ------------------------------------------------------------------------------------------------


def left(results):
    return {out.where: str(out.why) for out in results.excluded}


def test_a_record_half_written(runs):
    path = runs / "baseline" / "seed-1" / "record.json"
    path.write_text(path.read_text()[:500])
    results = load(runs)
    assert set(left(results)) == {"baseline/seed-1"}
    assert "is damaged" in left(results)["baseline/seed-1"]
    assert "excluded: baseline/seed-1" in str(results)
    assert "baseline/seed-1" not in map(str, results.records)
    incomplete = [issue for issue in results.checks if issue.code == "INCOMPLETE"]
    assert [issue.where for issue in incomplete] == ["baseline"]
    assert "seed 1 (of 2)" in str(incomplete[0].message)
    assert "is damaged" in str(incomplete[0].message)


def test_a_record_of_another_format(runs):
    edit(runs / "baseline" / "seed-1" / "record.json", lambda data: data.update(format=1))
    edit(runs / "freeze-only" / "seed-1" / "record.json", lambda data: data.update(format=99))
    why = left(load(runs))
    assert "format 1; this oelm reads format 7" in why["baseline/seed-1"]
    assert "a newer oelm" in why["freeze-only/seed-1"]


def test_a_record_of_another_study(runs):
    edit(runs / "baseline" / "seed-1" / "record.json", lambda data: data["spec"].update(study="other"))
    assert left(load(runs)) == {"baseline/seed-1": "its record is of another study, other"}


def test_a_cell_moved_to_another_folder(runs):
    (runs / "baseline" / "seed-1").rename(runs / "baseline" / "seed-7")
    (runs / "backup").mkdir()
    (runs / "oelm-freeze" / "seed-0").rename(runs / "backup" / "seed-0")
    (runs / "oelm-freeze" / "seed-1").rename(runs / "seed-1")
    (runs / "freeze-only" / "seed-0").rename(runs / "freeze-only" / "seed-1" / "seed-0")
    results = load(runs)
    assert left(results) == {
        "baseline/seed-7": "its record is of baseline/seed-1",
        "backup/seed-0": "its record is of oelm-freeze/seed-0",
        "seed-1": "its record is of oelm-freeze/seed-1",
        "freeze-only/seed-1/seed-0": "its record is of freeze-only/seed-0",
    }
    assert len(results.records) == 2


def test_a_record_in_the_folder_of_another_cell(runs):
    shutil.copy(runs / "baseline" / "seed-0" / "record.json", runs / "oelm-freeze" / "seed-0" / "record.json")
    assert "another cell" in left(load(runs))["oelm-freeze/seed-0"]


def test_an_arm_and_a_seed_that_the_study_does_not_have(runs):
    """A study was changed after some of its cells had been run."""

    def fewer(data):
        del data["arms"]["freeze-only"]
        data["seeds"] = [0]

    edit(runs / "study.json", fewer)
    (runs / "lock.json").unlink()  # else what was planned would still count
    lock_study(runs, load_study(runs / "study.json"))
    results = load(runs)
    assert len(results.records) == 2
    assert set(left(results)) == {f"freeze-only/seed-{seed}" for seed in (0, 1)} | {
        "baseline/seed-1",
        "oelm-freeze/seed-1",
    }
    assert set(left(results).values()) == {"the study has no such arm, seed or setting"}


def test_cells_that_run_or_were_stopped(runs):
    for seed in (0, 1):
        (runs / "baseline" / f"seed-{seed}" / "record.json").unlink()
    with acquire(runs / "baseline" / "seed-1"):
        results = load(runs)
    assert left(results) == {
        "baseline/seed-0": "not finished (stopped)",
        "baseline/seed-1": "not finished (running)",
    }
    incomplete = [str(issue.message) for issue in results.checks if issue.code == "INCOMPLETE"]
    assert sorted(incomplete) == [
        "no result of seed 0 (of 2): not finished (stopped)",
        "no result of seed 1 (of 2): not finished (running)",
        "there is no result of it, so there is nothing to compare with",
    ], "each with its own reason, and no baseline at all is no comparison"
    assert results.comparisons == {}
    assert "baseline is not among these arms" in str(results)


def test_a_cell_without_a_record_has_no_steps_and_no_predictions(runs):
    (runs / "baseline/seed-1/record.json").unlink()
    results, cell = load(runs), Cell(arm="baseline", seed=1)
    assert len(results.steps(cell)) == 0
    assert results.predictions(cell) is None


def test_a_lease_that_cannot_be_read_excludes_its_cell_alone(runs):
    cell = runs / "baseline" / "seed-0"
    (cell / "record.json").unlink()
    (cell / "lease" / "token").mkdir(parents=True)
    (cell / "lease" / "token" / "holder.json").write_text("{")
    results = load(runs)
    assert list(left(results)) == ["baseline/seed-0"]
    assert left(results)["baseline/seed-0"].startswith("baseline/seed-0/lease/token/holder.json is damaged")
    assert len(results.records) == 5


@pytest.mark.parametrize("path", ["start.data.sizes.validation", "counts.trainable", "peak_memory.process"])
def test_a_number_that_nothing_can_be_is_damage(runs, path):
    def enlarge(data):
        *parents, last = path.split(".")
        for name in parents:
            data = data[name]
        data[last] = 10**400

    edit(runs / "baseline" / "seed-1" / "record.json", enlarge)
    assert path in left(load(runs))["baseline/seed-1"]


def test_a_cell_that_was_never_started_is_not_blamed_on_a_tuning_cell(tmp_path):
    runs = make_runs(tmp_path, study_of(seeds=[0, 1], tune=TUNE), **SMALL)
    shutil.rmtree(runs / "baseline" / "seed-1")
    (runs / "baseline" / "tune" / "optimizer.lr=0.0001" / "seed-0" / "record.json").write_text("{")
    results = load(runs)
    trial, compared = (str(issue.message) for issue in results.checks if issue.code == "INCOMPLETE")
    assert (trial, compared[:10]) == ("no result of seed 1 (of 2): not run yet", "it is excl")
    assert set(left(results)) == {"baseline/tune/optimizer.lr=0.0001/seed-0"}


def test_a_record_without_its_cell_file_is_not_lost(runs):
    (runs / "baseline" / "seed-1" / "cell.json").unlink()
    results = load(runs)
    assert left(results) == {"baseline/seed-1": "there is no cell.json beside the record"}


def test_a_record_that_says_it_is_unfinished_is_said_to_be(runs):
    edit(runs / "oelm-freeze" / "seed-1" / "record.json", lambda data: data.update(status="stopped"))
    results = load(runs)
    assert results.missing == (Cell(arm="oelm-freeze", seed=1),)
    assert [
        (issue.code, issue.where, str(issue.message)) for issue in results.checks if issue.code == "INCOMPLETE"
    ] == [("INCOMPLETE", "oelm-freeze/seed-1", "not finished (stopped)")]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_may_not_be_read_is_said(runs):
    (runs / "baseline" / "seed-0" / "record.json").chmod(0)
    (runs / "oelm-freeze" / "seed-0").chmod(0)
    try:
        results = load(runs)
    finally:
        (runs / "oelm-freeze" / "seed-0").chmod(0o755)
    assert set(left(results)) == {"baseline/seed-0", "oelm-freeze/seed-0"}
    assert all("ermission" in why for why in left(results).values())


def test_a_part_of_the_results_is_not_called_incomplete(pristine):
    part = load(pristine).restricted(arms=["baseline", "oelm-freeze"], seeds=[0, 1])
    assert part.arms == ["baseline", "oelm-freeze"]
    assert "INCOMPLETE" not in {issue.code for issue in part.checks}, "the rest was run, and was not asked for"


# -- no results at all -----------------------------------------------------------------------------------------------


def test_nothing_there(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    for place, told in [("empty", "no cells below"), ("file", "no folder"), ("nowhere", "no folder")]:
        with pytest.raises(CellError, match=told):
            load(tmp_path / place)
    for place in ("x" * 5000, "a\x00b"):
        with pytest.raises(CellError):
            load(tmp_path / place)


def test_several_studies_are_named(pristine, tmp_path):
    for name in ("one", "another"):
        shutil.copytree(pristine, tmp_path / "runs" / name)
    with pytest.raises(CellError, match=r"holds 2 studies(.|\n)*another, one(.|\n)*try(.|\n)*runs/another"):
        load(tmp_path / "runs")
    assert [folder.name for folder in find_started_studies(tmp_path / "runs")] == ["another", "one"]


def test_asking_for_what_is_not_there(pristine):
    results = load(pristine)
    with pytest.raises(StudyError, match=r"'oelm-freze'; did you mean 'oelm-freeze'"):
        results.compare("oelm-freze")
    with pytest.raises(StudyError, match=r"'acuracy'; did you mean 'accuracy'"):
        results.compare("oelm-freeze", metric="acuracy")


# -- logs and predictions --------------------------------------------------------------------------------------------

ROW = {"step": 1, "loss": 0.5, "lr": 1e-4, "grad_norm": 1.0, "seconds": 0.1}


def log_of(folder, *lines):
    """The log of a cell whose record says that it was just so."""
    (folder / "steps.jsonl").write_text("\n".join(lines))
    return read_steps(folder, digest_file(folder / "steps.jsonl"))


def row(step, **values):
    return json.dumps({**ROW, "step": step, **values})


def test_a_log_is_read_whole(tmp_path):
    found = log_of(tmp_path, row(1), row(2, grad_norm=math.inf), row(3, loss=math.nan))
    assert found.step.tolist() == [1, 2, 3]
    assert all(len(getattr(found, name)) == 3 for name in ROW)
    assert len(log_of(tmp_path)) == 0
    assert len(read_steps(tmp_path / "nowhere", None)) == 0, "nothing was written, and none is said to be"
    many = log_of(tmp_path, *(row(step) for step in range(1, 20_002)))
    assert (len(many), many.step[-1], many.all_seconds) == (20_001, 20_001, pytest.approx(2000.1))


@pytest.mark.parametrize(
    "line",
    [
        "",
        "null",
        "7",
        "[1, 2]",
        '{"step": 2, "lo',
        json.dumps({"step": 2}),
        row(1),
        row(3),
        row(0),
        row(2, more=1),
        row(2, loss={"a": 1}),
        row(2, loss=[1.0]),
        row(2, loss=None),
        row(2, loss="0.5"),
        row(2, loss=-5),
        row(2, loss=-math.inf),
        row(2, lr=-1e308),
        row(2, lr=math.nan),
        row(2, seconds=-1e308),
        row(2, seconds=1e308),
        row(2, seconds=math.inf),
        row(2, grad_norm=-5),
        "[" * 50_000,
        '{"a":' * 50_000 + "1" + "}" * 50_000,
        row(2) + "\x00",
    ],
)
def test_a_log_with_one_bad_line_is_damaged(tmp_path, line):
    """Even if somebody has made the record fit it."""
    with pytest.raises(CellError, match=r"steps\.jsonl is damaged"):
        log_of(tmp_path, row(1), line, row(3))


def test_a_bad_line_is_found_behind_many_good_ones(tmp_path):
    with pytest.raises(CellError, match=r"after line 500, 1\.loss: Input should be a valid number"):
        log_of(tmp_path, *(row(step) for step in range(1, 502)), row(502, loss="0.5"))


def write_table(columns, folder, number=2):
    """Whatever it holds, in a file of this format."""
    table = pa.table(columns).replace_schema_metadata({"oelm_format": str(number)})
    parquet.write_table(table, folder / "predictions.parquet")


def kept_in(folder, **model):
    return read_predictions(folder, digest_file(folder / "predictions.parquet"), **model)


@pytest.mark.parametrize(
    "column",
    [
        {"label": ["a", "b"]},
        {"label": [0, None]},
        {"label": [-1, 0]},
        {"label": [0, 10**12]},
        {"prediction": [0.5, 1.5]},
        {"loss": ["x", "y"]},
        {"loss": [None, None]},
        {"row": [{"a": 1}, {"a": 2}]},
        {"strange": [1, 2]},
        {"tokens": [0, 5]},
        {"model": [1, 2]},
        {"model": ["final", None]},
    ],
)
def test_predictions_of_another_kind_are_damaged(tmp_path, column):
    good = {"model": ["final"] * 2, "split": ["s"] * 2, "row": [0, 1], "label": [0, 1], "prediction": [0, 1]}
    good["loss"] = [0.1, 0.2]
    write_table(good, tmp_path)
    assert len(kept_in(tmp_path).row) == 2
    write_table({**good, **column}, tmp_path)
    with pytest.raises(CellError, match="is damaged"):
        kept_in(tmp_path)


def test_predictions_of_another_format(tmp_path):
    columns = {"model": ["final"], "split": ["s"], "row": [0], "loss": [0.1]}
    write_table(columns, tmp_path, number=1)
    with pytest.raises(CellError, match="has format 1; this oelm reads format 2"):
        kept_in(tmp_path)


def test_predictions_of_the_first_split_and_of_no_model(tmp_path):
    table = {"model": ["final"] * 3, "split": ["b", "b", "a"], "row": [0, 1, 0], "loss": [0.1, 0.2, 0.3]}
    write_table(table, tmp_path)
    assert kept_in(tmp_path).loss.tolist() == [0.1, 0.2]
    assert len(kept_in(tmp_path, model="best").row) == 0
    assert kept_in(tmp_path / "nowhere") is None


def test_predictions_in_several_parts(tmp_path):
    """A part has a dictionary of its own."""
    table = pa.table(
        {"model": ["final", "best", "final"], "split": ["s"] * 3, "row": [0, 0, 1], "loss": [0.1, 0.2, 0.3]}
    )
    path = tmp_path / "predictions.parquet"
    parquet.write_table(table.replace_schema_metadata({"oelm_format": "2"}), path, row_group_size=1)
    assert kept_in(tmp_path).row.tolist() == [0, 1]
    assert kept_in(tmp_path, model="best").loss.tolist() == [0.2]


def test_the_checks_wait_for_no_pandas(runs):
    code = f"import sys, oelm; oelm.load({str(runs)!r}).checks; sys.exit('pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_predictions_of_one_arm_that_cannot_be_read(runs):
    """It is said, and the comparison rests on the seeds alone."""
    before = load(runs).comparisons
    assert before["oelm-freeze"].examples is not None
    (runs / "oelm-freeze" / "seed-1" / "predictions.parquet").write_bytes(b"PAR1 and nothing else PAR1")
    results = load(runs)
    told = [issue for issue in results.checks if "is damaged" in str(issue.message)]
    assert [(issue.code, issue.severity, issue.where) for issue in told] == [
        ("NOT-REPRODUCED", "warn", "oelm-freeze/seed-1/predictions.parquet")
    ]
    one = results.comparisons["oelm-freeze"]
    assert one.examples is None
    assert one.interval == one.over_seeds
    assert one.differences == before["oelm-freeze"].differences
    assert one.verdict != "invalid"
    assert results.comparisons["freeze-only"].examples is not None


def test_a_loss_that_is_not_finite_for_an_example(runs):
    path = runs / "oelm-freeze" / "seed-1" / "predictions.parquet"
    table = parquet.read_table(path).to_pydict()
    table["loss"][0] = math.inf
    write_table(table, path.parent)
    seal_files(path.parent)
    results = load(runs)
    assert results.comparisons["oelm-freeze"].examples is not None, "the accuracy is not touched by it"
    assert results.compare("oelm-freeze", metric="loss").examples is None
    assert "NOT-REPRODUCED" in {issue.code for issue in results.checks}


# -- any damage at all -----------------------------------------------------------------------------------------------

FILES = ("record.json", "cell.json", "steps.jsonl", "predictions.parquet", "study.json", "simple_baseline.json")
NONSENSE = st.sampled_from(
    [None, True, 0, -1, 7, 10**30, 10**400, 1e-320, 1e308, -1e308, math.nan, math.inf, -math.inf, "", "text", "0.9",
     "done", "stopped", "\ud800", "<b>{x}</b>", [], [[]], [1, "a"], [[1, None]], {}, {"a": {}}, {"a": [1, {"b": None}]},
     [{}], [None], {"what": 3}, {"splits": {}}, {"step": 1, "splits": {"v": {}}}]
)  # fmt: skip


def paths_in(data, prefix=()):
    """Every place in plain data."""
    items = data.items() if isinstance(data, dict) else list(enumerate(data))[:3] if isinstance(data, list) else ()
    for key, value in items:
        yield (*prefix, key)
        yield from paths_in(value, (*prefix, key))


def mutate(data, path, value, delete):
    *parents, last = path
    for key in parents:
        data = data[key]
    if delete:
        del data[last]
    else:
        data[last] = value


def stays_whole(folder):
    """Read, show, check and compare: it works and no cell is lost, or there is one error of ours when it is read."""
    try:
        results = load(folder)
    except OelmError:
        return
    cells = {str(cell) for cell in results.records} | {out.where for out in results.excluded if "seed-" in out.where}
    assert {place for place in cells if place.count("/") == 1} == {str(cell) for cell in compared_cells(results.study)}
    everything(results)


@pytest.fixture(scope="session")
def victim(tmp_path_factory):
    """Runs of which one file at a time is damaged and put back."""
    estimands = [
        "accuracy(oelm-freeze) - accuracy(baseline)",
        "step_seconds(oelm-freeze) / step_seconds(baseline)",
        "trainable(oelm-freeze)",
    ]
    hypotheses = {text: {"statement": "s", "estimand": text, "rule": "below", "margin": 0.5} for text in estimands}
    blocks = {"q": ((1.0, 2.0),), "k": ((1.0, 2.0),)}
    heads = AttentionStats(norm=blocks, cosine=blocks, logit_spread=(1.0,), entropy=(2.0,))
    study = study_of(seeds=[0, 1], hypotheses=hypotheses)
    folder = make_runs(
        tmp_path_factory.mktemp("victim"),
        study,
        change=lambda cell, record: replace_at(record, "start.heads", heads),
        **SMALL,
    )
    write_floor(folder, accuracy=0.5)
    assert {issue.severity for issue in load(folder).checks} <= {"warn", "note"}
    return folder


def place_of(folder, name, cell):
    return folder / name if name in ("study.json", "simple_baseline.json") else folder / cell / name


FEW = settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
CELLS = st.sampled_from(["baseline/seed-0", "oelm-freeze/seed-1"])


@pytest.mark.slow
@FEW
@given(name=st.sampled_from(FILES), cell=CELLS, data=st.data())
def test_any_value_of_any_file_may_be_nonsense(victim, name, cell, data):
    if name in ("steps.jsonl", "predictions.parquet"):
        name = "record.json"
    path = place_of(victim, name, cell)
    whole = path.read_bytes()
    content = json.loads(whole)
    for _ in range(data.draw(st.integers(1, 2))):
        places = list(paths_in(content))
        if places:
            top = data.draw(st.sampled_from(sorted({str(place[0]) for place in places})))
            below = [place for place in places if str(place[0]) == top]
            mutate(
                content, data.draw(st.sampled_from(below)), copy.deepcopy(data.draw(NONSENSE)), data.draw(st.booleans())
            )
    try:
        path.write_text(sealed(json.dumps(content)))
        stays_whole(victim)
    finally:
        path.write_bytes(whole)


@pytest.mark.slow
@FEW
@given(name=st.sampled_from(FILES), cell=CELLS, data=st.data())
def test_any_bytes_may_be_in_any_file(victim, name, cell, data):
    path = place_of(victim, name, cell)
    whole = path.read_bytes()
    changed = bytearray(whole)
    kind = data.draw(st.sampled_from(["cut", "bytes", "flip"]))
    if kind == "cut":
        changed = changed[: data.draw(st.integers(0, len(whole)))]
    elif kind == "bytes":
        changed = data.draw(st.binary(max_size=40))
    else:
        for _ in range(data.draw(st.integers(1, 4))):
            changed[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        path.write_bytes(changed)
        stays_whole(victim)
    finally:
        path.write_bytes(whole)


@pytest.mark.slow
@FEW
@given(cell=CELLS, column=st.sampled_from(list(ROW)), value=NONSENSE, some=st.booleans())
def test_any_value_of_a_log_may_be_nonsense(victim, cell, column, value, some):
    path = victim / cell / "steps.jsonl"
    whole = path.read_bytes()
    rows = [json.loads(line) for line in whole.splitlines()]
    for row in rows[::3] if some else rows:
        row[column] = value
    try:
        path.write_text("\n".join(map(json.dumps, rows)))
        seal_files(path.parent)
        stays_whole(victim)
    finally:
        path.write_bytes(whole)
        seal_files(path.parent)


@pytest.mark.slow
def test_a_thousand_cells(tmp_path, capsys):
    """The time is printed, not judged."""
    arms = {"baseline": {"init": "keep", "freeze": "none"}, "freeze-only": {"init": "keep", "freeze": "qk"}}
    arms |= {f"seeded-{n}": {"init": "orthogonal", "scale": "match", "freeze": "qk"} for n in range(8)}
    study = study_of(arms=arms, seeds=list(range(100)))
    few = make_runs(tmp_path / "one", replace(study, seeds=(0,)), **SMALL)
    folder = tmp_path / "made"
    for arm in arms:
        source = few / arm / "seed-0"
        record, cell = (json.loads((source / name).read_text()) for name in ("record.json", "cell.json"))
        for seed in study.seeds:
            place = folder / arm / f"seed-{seed}"
            place.mkdir(parents=True)
            for name in ("steps.jsonl", "predictions.parquet"):
                os.link(source / name, place / name)
            for name, data in (("record.json", record), ("cell.json", cell)):
                data["spec"]["seed"] = seed
                (place / name).write_text(sealed(json.dumps(data)))
    (folder / "study.json").write_text(json.dumps(study.to_dict()))
    start = time.perf_counter()
    results = load(folder)
    read = time.perf_counter()
    found = results.checks
    assert len(results.records) == 1000
    assert {issue.code for issue in found} >= {"DUPLICATE-ROWS"}
    with capsys.disabled():
        print(f"\n1,000 cells: read in {read - start:.1f} s, checked in {time.perf_counter() - read:.1f} s")
