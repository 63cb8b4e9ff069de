"""The evidence: records go into small archives and come out again as they were, and all that is said rests on them."""

import importlib.util
import io
import json
import lzma
import os
import shutil
import signal
import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

import tiny_study
from made_bench import write_bench
from made_runs import make_runs, replace_at, study_of
from oelm.analysis.results import read_results
from oelm.errors import CellError, StudyError
from oelm.runs.archive import pack, read_archive, unpack
from oelm.runs.layout import ARCHIVE, LOCK, RECORD
from oelm.runs.lock import lock_study
from oelm.runs.record import RECORD_FILE, Failure
from oelm.study.load import load_study

ROOT = Path(__file__).parents[1]
SMALL = {"examples": 60, "steps": 10}
STUDY = study_of(seeds=[0, 1])
STUDY = replace_at(STUDY, "recipe.data.path", "data/sst2")  # which is not there


@pytest.fixture(scope="module")
def evidence():
    """The script, as `make evidence` runs it."""
    spec = importlib.util.spec_from_file_location("evidence_main", ROOT / "evidence" / "__main__.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def here(tmp_path, monkeypatch, evidence):
    """A working copy with one locked study in the queue, and nothing else."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(evidence, "LOWEST", 0)  # the tests are as urgent as ever
    place = tmp_path / "evidence" / STUDY.name
    place.mkdir(parents=True)
    (place / "study.yaml").write_text(yaml.safe_dump(STUDY.to_dict()))
    (place.parent / "queue.txt").write_text(f"# the only one\n{STUDY.name}  # first\n")
    oelm("plan", place / "study.yaml", "--no-measure", "--lock", "--out", place.parent)
    return tmp_path


def oelm(*words):
    """A command in this process."""
    from typer.testing import CliRunner

    from oelm.cli.main import app

    done = CliRunner().invoke(app, [*map(str, words)], catch_exceptions=True)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def archived(here):
    """The archive of the study, with all its cells, and the folder that they came from."""
    folder = make_runs(here / "made", STUDY, **SMALL)
    archive = here / "evidence" / STUDY.name / ARCHIVE
    assert pack(folder, archive) == 6
    return archive, folder


# -- archives ------------------------------------------------------------------------------------------------------


def test_what_goes_in_comes_out_in_the_same_bytes(here):
    archive, folder = archived(here)
    (folder / "jobs.jsonl").write_text("where it ran")
    (folder / "baseline/seed-0/log.txt").write_text(str(here))
    (folder / "baseline/seed-0/checkpoints").mkdir()
    content = archive.read_bytes()
    again = here / "again"
    unpack(archive, again)
    there = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    left = {Path("jobs.jsonl"), Path("baseline/seed-0/log.txt")}
    assert {path.relative_to(again) for path in again.rglob("*") if path.is_file()} == there - left
    assert all((again / path).read_bytes() == (folder / path).read_bytes() for path in there - left)
    for source in (folder, again):
        archive.unlink()
        pack(source, archive)
        assert archive.read_bytes() == content
    before = archive.stat().st_mtime_ns
    pack(folder, archive)
    assert archive.stat().st_mtime_ns == before, "nothing is new"
    with tarfile.open(archive) as tar:
        assert {(entry.mtime, entry.uid, entry.uname, entry.mode) for entry in tar} == {(0, 0, "", 0o644)}


def test_a_cell_is_never_lost(here):
    archive, folder = archived(here)
    every = read_archive(archive)
    shutil.rmtree(folder / "oelm-freeze")
    (folder / "baseline/seed-0" / RECORD).write_text("damaged")
    assert pack(folder, archive) == 6
    assert read_archive(archive) == every
    unpack(archive, folder)
    assert (folder / "oelm-freeze/seed-1" / RECORD).exists()
    shutil.rmtree(folder / "baseline")
    (folder / "baseline/seed-1").mkdir(parents=True)  # started here, and finished elsewhere
    (folder / "baseline/seed-1/cell.json").write_text("{}")
    unpack(archive, folder)
    assert len(read_results(folder).records) == 6


def test_only_finished_cells_without_traces_of_a_machine_go_in(here):
    folder = make_runs(here / "made", STUDY, **SMALL)
    for cell, status in (("baseline/seed-0", "failed"), ("baseline/seed-1", "audit-failed")):
        record = RECORD_FILE.read(folder / cell)
        error = Failure(what="it fell", traceback=f'File "{here}/x.py"')
        RECORD_FILE.write(folder / cell, replace(record, status=status, error=error))
    (folder / "freeze-only/seed-0" / RECORD).unlink()
    (folder / "freeze-only/seed-1/steps.jsonl").write_text("another")
    assert pack(folder, here / ARCHIVE) == 2
    assert {name.split("/")[0] for name in read_archive(here / ARCHIVE) if "/" in name} == {"oelm-freeze"}


def test_without_cells_there_is_no_archive_but_of_a_bench(here):
    folder = here / "made"
    unpack(here / "evidence" / STUDY.name / ARCHIVE, folder)
    assert pack(folder, here / ARCHIVE) == 0
    assert not (here / ARCHIVE).exists()
    write_bench(folder, STUDY, {"oelm-freeze": 0.95})
    pack(folder, here / ARCHIVE)
    assert read_archive(here / ARCHIVE).keys() == {LOCK, "bench.json"}


def test_killed_while_it_packs(here, monkeypatch):
    archive, folder = archived(here)
    before = archive.read_bytes()
    simple = json.loads((folder / "study.json").read_text()) | {"notes": ["more"]}
    (folder / "study.json").write_text(json.dumps(simple))
    child = os.fork()
    if child == 0:
        monkeypatch.setattr(os, "fsync", lambda file: os.kill(os.getpid(), signal.SIGKILL))
        pack(folder, archive)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert archive.read_bytes() == before
    pack(folder, archive)
    assert b"more" in read_archive(archive)["study.json"]


def packed(*entries):
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:xz") as tar:
        for entry in entries:
            tar.addfile(entry, io.BytesIO(b"x" * entry.size))
    return made.getvalue()


def entry(name, **parts):
    made = tarfile.TarInfo(name)
    made.size = 1
    for key, value in parts.items():
        setattr(made, key, value)
    return made


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"no archive", "format not supported"),
        (packed(entry(LOCK))[:-20], "cut off"),
        (packed(entry(LOCK)) + b"more", "more than should be"),
        (lzma.compress(b"no tar" * 200), "invalid header|truncated|bad checksum"),
        (packed(entry("../record.json")), r"'../record.json' in it"),
        (packed(entry("baseline/../../record.json")), "no file of a study"),
        (packed(entry("/tmp/record.json")), "no file of a study"),
        (packed(entry("baseline/seed-0/model.safetensors")), "no file of a study"),
        (packed(entry("baseline/seed-0/lock.json")), "no file of a study"),
        (packed(entry(LOCK, size=0, type=tarfile.SYMTYPE, linkname="/etc/passwd")), "no file of a study"),
    ],
)
def test_what_is_damaged_or_hostile_is_refused(here, evidence, capsys, content, why):
    archive = here / "evidence" / STUDY.name / ARCHIVE
    archive.write_bytes(content)
    with pytest.raises(CellError, match=f"(?s)is damaged; nothing was unpacked.*{why}.*git checkout"):
        unpack(archive, here / "out" / "deep")
    assert not (here / "out").exists()
    with pytest.raises(CellError, match="is damaged"):
        pack(make_runs(here / "made", STUDY, **SMALL), archive)
    assert archive.read_bytes() == content, "who packs does not write over what they cannot read"
    assert evidence.main(["report"]) == 2
    assert capsys.readouterr().err.count("is damaged") == 1


def test_another_lock_is_refused(here):
    archive, _ = archived(here)
    other = make_runs(here / "other", study_of(seeds=[0, 2]), **SMALL)
    for act in (lambda: pack(other, archive), lambda: unpack(archive, other)):
        with pytest.raises(StudyError, match="of another plan"):
            act()
    shutil.copy(other / LOCK, archive.with_name(LOCK))
    with pytest.raises(StudyError, match="of another plan"):
        unpack(archive, here / "new")


# -- the lock ------------------------------------------------------------------------------------------------------


def test_a_plan_is_locked_before_the_first_cell(here):
    file, lock = here / "evidence/made/study.yaml", here / "evidence/made/lock.json"
    before = lock.read_bytes()
    words = ("plan", file, "--no-measure", "--lock", "--out", here / "evidence")
    assert oelm(*words).exit_code == 0
    assert lock.read_bytes() == before
    with pytest.raises(StudyError, match="CHANGED-AFTER-START"):
        oelm(*words, "--set", "seeds=[5, 6]")
    assert lock.read_bytes() == before
    assert make_runs(here / "run", STUDY, **SMALL).joinpath(LOCK).read_bytes() == before, "what the first cell locks"


# -- the queue -----------------------------------------------------------------------------------------------------


def test_what_is_missing_is_said_at_once(here, evidence, capsys):
    assert evidence.main(["run"]) == 2
    said = capsys.readouterr().err
    assert "data/sst2 (of made)" in said
    assert "ln -s FOLDER data" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda place: (place / LOCK).unlink(), "oelm plan evidence/made/study.yaml --no-measure --lock"),
        (lambda place: edit(place, seeds=[0]), "CHANGED-AFTER-START"),
        (lambda place: edit(place, study="other"), "is the study 'other'"),
        (lambda place: (place.parent / "queue.txt").write_text("other"), "there is no study file"),
        (lambda place: (place.parent / "queue.txt").unlink(), "there is no evidence/queue.txt"),
        (lambda place: edit(place, recipe={"data": {"path": "/somewhere/sst2"}}), "a folder of this machine"),
        (lambda place: edit(place, recipe={"data": {"path": {"train": "~/train.csv"}}}), "a folder of this machine"),
        (lambda place: edit(place, recipe={"data": {"path": None}, "model": {"name": "/m"}}), "a folder of this"),
    ],
)
def test_what_may_not_run_is_refused(here, evidence, capsys, change, said):
    change(here / "evidence" / STUDY.name)
    if "machine" in said or said.endswith("this"):
        (here / "evidence" / STUDY.name / LOCK).unlink()
        oelm("plan", "evidence/made/study.yaml", "--no-measure", "--lock", "--out", "evidence")
    assert evidence.main(["run"]) == 2
    assert said in capsys.readouterr().err


def edit(place, *, recipe=None, **parts):
    content = yaml.safe_load((place / "study.yaml").read_text()) | parts
    for section, changed in (recipe or {}).items():
        content["recipe"][section] |= changed
    (place / "study.yaml").write_text(yaml.safe_dump(content))


def test_what_is_finished_needs_no_data_and_runs_nothing(here, evidence, capsys, monkeypatch):
    archived(here)
    shutil.rmtree(here / "made")
    monkeypatch.setattr(subprocess, "Popen", None)
    assert evidence.main(["run"]) == 0
    said = capsys.readouterr().out
    assert "6 / 6" in said
    assert "oelm-freeze inconclusive" in said
    shutil.rmtree(here / "runs/evidence/made/baseline")
    with evidence._alone():
        assert evidence.main(["run", "--minutes", "0"]) == 2
    assert "the queue runs already" in capsys.readouterr().err
    assert evidence.main(["run", "--minutes", "0"]) == 0, "it is unpacked again"


@pytest.mark.slow
def test_a_queue_that_is_stopped_goes_on(here, evidence, forked_python, monkeypatch, capfd):
    """With real cells: the deadline stops them, and the next queue begins where that one ended."""
    monkeypatch.setenv("OELM_CACHE", str(here / "cache"))
    tiny_study.write_data(here / "elsewhere" / "tiny")
    (here / "data").symlink_to("elsewhere")
    place = here / "evidence" / "tiny"
    place.mkdir()
    content = tiny_study.study(Path("data/tiny"), budget={"steps": 16})
    (place / "study.yaml").write_text(yaml.safe_dump(content))
    (place.parent / "queue.txt").write_text("tiny\n")
    oelm("plan", "evidence/tiny/study.yaml", "--no-measure", "--lock", "--out", "evidence")
    monkeypatch.setattr(evidence, "PACK_EVERY", 0.0)
    monkeypatch.setattr(evidence, "pack", lambda folder, archive: end_after(pack(folder, archive), at=1))

    def end_after(cells, *, at):
        if cells >= at:
            os.kill(os.getpid(), signal.SIGTERM)
        return cells

    assert evidence.main(["run"]) == 128 + signal.SIGTERM
    first = read_archive(place / ARCHIVE)
    assert 1 <= sum(name.endswith(RECORD) for name in first) < 4
    monkeypatch.setattr(evidence, "pack", pack)
    assert evidence.main(["run"]) == 0
    assert "4 / 4" in capfd.readouterr().out
    every = read_archive(place / ARCHIVE)
    assert {name: every[name] for name in first if "/" in name} == {k: v for k, v in first.items() if "/" in k}
    assert not [name for name, content in every.items() if str(here).encode() in content], "no path of this machine"
    made = json.loads(every["baseline/seed-0/record.json"])["provenance"]
    assert made["environment"].items() >= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}.items()


# -- reading -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_reports_and_tables_are_made_from_the_archives_in_the_same_bytes(here, evidence):
    archive, folder = archived(here)
    shutil.rmtree(folder)
    made = []
    for _ in range(2):
        assert evidence.main(["report"]) == 0
        written = [path for path in (here / "evidence").rglob("*") if path.is_file()]
        made.append({path: path.read_bytes() for path in written})
    assert made[0] == made[1]
    names = {path.relative_to(archive.parent).as_posix() for path in written if archive.parent in path.parents}
    assert names >= {"report.md", "report.zh.md", "report-figures/forest.svg", "report-figures/forest.zh.svg"}
    page = (archive.parent / "report.md").read_text()
    assert f"[baseline]({ARCHIVE})" in page
    assert "/record.json)" not in page
    one = json.loads((here / "evidence/tables.json").read_text())["made"]
    assert one["arms"]["oelm-freeze"]["comparison"]["verdict"] == "inconclusive"
    assert one["provenance"]["cells"] == one["arms"]["oelm-freeze"]["comparison"]["n"] * 3 == 6
    assert str(here).encode() not in b"".join(made[0].values())


def test_claims_read_the_evidence_unless_another_folder_is_named(here):
    place = here / "evidence" / "minilm-sst2"
    place.mkdir()
    study = load_study("minilm-sst2")
    pack(make_runs(here / "runs", study, **SMALL), place / ARCHIVE)
    shutil.rmtree(here / "runs/minilm-sst2/baseline")
    assert "no records yet" in oelm("claims", "check", "C1", "--runs", "runs").stdout
    for words in ((), ("--runs", "evidence")):
        done = oelm("claims", "check", "C1", *words)
        assert "no records yet (oelm run minilm-sst2)" not in done.stdout
        assert ("reading the archives in evidence" in done.stderr) == (not words)


def test_claims_read_a_study_that_was_only_timed(here):
    study = load_study("minilm-sst2")
    place, folder = here / "evidence" / study.name, here / "timed"
    lock_study(folder, study)
    (folder / "study.json").write_text(json.dumps(study.to_dict()))
    write_bench(folder, study, {"oelm-freeze": 1.0})
    place.mkdir()
    pack(folder, place / ARCHIVE)
    assert "in turns by oelm bench, 64 rounds" in oelm("claims", "check", "C5").stdout
