"""`oelm check` and `oelm claims` as processes: exit codes, plain data, and no traceback whatever they are given."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from made_runs import make_runs, replace_at, study_of
from oelm.cli.main import main

pytestmark = pytest.mark.slow

SMALL = {"examples": 60, "steps": 10}
OELM = Path(sys.executable).with_name("oelm")


@pytest.fixture
def process(tmp_path):
    """`oelm WORDS` in a process in which torch, transformers and accelerate cannot be imported."""
    walls = tmp_path / "walls"
    walls.mkdir()
    for name in ("torch", "transformers", "accelerate"):
        (walls / f"{name}.py").write_text(f"raise ImportError('{name} was imported')")

    def call(*words, **environment):
        return subprocess.run(
            [OELM, *map(str, words)],
            env=os.environ | {"PYTHONPATH": str(walls)} | environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=60,
            check=False,
        )

    return call


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """The same in this process, which is faster."""

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["oelm", *map(str, words)])
        monkeypatch.chdir(tmp_path)
        with pytest.raises(SystemExit) as stopped:
            main()
        out, errors = capsys.readouterr()
        return subprocess.CompletedProcess(words, stopped.value.code or 0, out, errors)

    return call


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    return make_runs(tmp_path_factory.mktemp("clean"), study_of(seeds=[0, 1]), **SMALL)


@pytest.fixture(scope="module")
def unfair(tmp_path_factory):
    def other(cell, record):
        return replace_at(record, "start.weights", cell.arm)

    return make_runs(tmp_path_factory.mktemp("unfair"), study_of(seeds=[0, 1]), change=other, **SMALL)


# -- oelm check ------------------------------------------------------------------------------------------------------


def test_a_study_is_checked_without_torch(process):
    fair, unfair = process("check", "bert-sst2-fair"), process("check", "bert-sst2-as-published", "--json")
    assert (fair.returncode, fair.stderr) == (0, "")
    assert fair.stdout.startswith("bert-sst2-fair:\n")
    assert (unfair.returncode, unfair.stderr) == (1, "")
    issues = json.loads(unfair.stdout)["bert-sst2-as-published"]
    assert {issue["severity"] for issue in issues} >= {"invalid"}
    assert set(issues[0]) == {"code", "severity", "where", "arms", "key", "values", "text"}


def test_runs_are_checked_without_torch(process, clean, unfair):
    fair = process("check", clean)
    assert (fair.returncode, fair.stderr) == (0, "")
    assert str(clean) in fair.stdout
    wrong = process("check", unfair)
    assert (wrong.returncode, wrong.stderr) == (1, "")
    assert "invalid UNPAIRED" in wrong.stdout


def test_the_exit_code_is_that_of_the_worst(run, clean, unfair, tmp_path):
    shutil.copytree(clean, tmp_path / "runs" / "clean")
    assert run("check", tmp_path / "runs").returncode == 0
    shutil.copytree(unfair, tmp_path / "runs" / "unfair")
    both = run("check", tmp_path / "runs", "--json")
    assert both.returncode == 1
    data = json.loads(both.stdout)
    assert [Path(name).name for name in data] == ["clean", "unfair"]
    assert {issue["code"] for issue in data[str(tmp_path / "runs" / "unfair")]} >= {"UNPAIRED"}


def test_a_setting_may_be_tried_before_it_is_written(run):
    """One arm at another learning rate."""
    assert run("check", "minilm-sst2").returncode == 0
    tried = run("check", "minilm-sst2", "--set", "arms.oelm-freeze.overrides={batch.size: 7}")
    assert tried.returncode == 1
    assert "SETTING-DIFFERS" in tried.stdout


def test_a_study_without_a_fault_says_so(run, tmp_path):
    tune = {"optimizer.lr": [3e-5, 1e-4, 3e-4]}
    (tmp_path / "study.yaml").write_text(json.dumps(study_of(tune=tune).to_dict()))
    assert run("check", "study.yaml").stdout == "made:\n  no check fires\n"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "is not a study"),
        ("[1, 2]", "is not a study"),
        ("study: x\nversion: 9\n", "version"),
        ("a: [", "study.yaml"),
        ("\x00", "study.yaml"),
        ("&a [*a]", "study.yaml"),
    ],
)
def test_a_bad_study_is_one_message(run, tmp_path, content, told):
    (tmp_path / "study.yaml").write_text(content)
    done = run("check", "study.yaml")
    assert done.returncode == 2
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("what", ["nowhere", "empty", "", "quickstrat"])
def test_nothing_to_check(run, tmp_path, what):
    (tmp_path / "empty").mkdir()
    done = run("check", what)
    assert done.returncode == 2
    assert done.stderr
    assert ("quickstart" in done.stderr) == (what == "quickstrat")


DAMAGE = {
    "study.json": [b"{", b"", b"\xff\xfe", b"[]"],
    "simple_baseline.json": [b"{", b'{"format": 9}', b'{"format": 1, "baselines": [1]}'],
    "baseline/seed-0/record.json": [b"{", b"", b"\xff", b"[]", b'{"format": 9}'],
    "baseline/seed-0/cell.json": [b"{", b"[]"],
    "baseline/seed-0/steps.jsonl": [b"{", b"\xff\n\n1"],
    "baseline/seed-0/predictions.parquet": [b"", b"PAR1", b"x" * 100],
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_runs_never_end_in_a_traceback(run, clean, tmp_path, name):
    runs = Path(shutil.copytree(clean, tmp_path / "made"))
    for content in DAMAGE[name]:
        (runs / name).write_bytes(content)
        done = run("check", runs, "--json")
        assert done.returncode in (0, 1, 2)
        if done.returncode == 2:
            assert name in done.stderr
            assert done.stdout == ""
        else:
            codes = {issue["code"] for issue in next(iter(json.loads(done.stdout).values()))}
            assert codes & {"INCOMPLETE", "NOT-REPRODUCED"} or name.endswith("steps.jsonl")


# -- oelm claims -----------------------------------------------------------------------------------------------------


def test_claims_are_read_without_torch(process, clean):
    listed = process("claims")
    assert (listed.returncode, listed.stderr) == (0, "")
    assert all(f"C{number}  " in listed.stdout for number in range(1, 23))
    again = process("claims", clean)
    assert (again.returncode, again.stdout) == (0, listed.stdout), "that study tests none of them"


def test_claims_as_plain_data(run):
    listed, checked = run("claims", "--json"), run("claims", "check", "--json")
    assert listed.returncode == checked.returncode == 0
    claims, checks = json.loads(listed.stdout), json.loads(checked.stdout)
    assert list(claims) == list(checks) == [f"C{number}" for number in range(1, 23)]
    assert claims == checks
    verdicts = {name: row["verdict"]["status"] for name, row in claims.items()}
    assert {name for name, status in verdicts.items() if status in ("supported", "refuted")} == {
        "C7",
        "C10",
        "C14",
        "C17",
    }
    assert all({"key", "values", "text", "status"} <= set(one) for row in claims.values() for one in row["tests"])
    one = run("claims", "check", "C5", "--json")
    assert list(json.loads(one.stdout)) == ["C5"]


def test_claims_in_chinese(run):
    chinese = run("claims", "--lang", "zh")
    assert chinese.returncode == 0
    assert "检查" in chinese.stdout


@pytest.mark.parametrize(
    "words",
    [
        ("claims", "nowhere"),
        ("claims", "empty"),
        ("claims", "--ledger", "nowhere"),
        ("claims", "--ledger", "bad.yaml"),
        ("claims", "--lang", "xx"),
        ("claims", "check", "C99"),
        ("claims", "check", "--runs", "nowhere"),
        ("claims", "check", "--ledger", "bad.yaml"),
    ],
)
def test_claims_of_nothing(run, tmp_path, words):
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.yaml").write_text("claims: [1, {}]\n")
    done = run(*words)
    assert done.returncode == 2
    assert done.stderr
    assert "Traceback" not in done.stderr


def test_a_study_that_cannot_be_read_hides_no_claim(run, clean, tmp_path):
    """A study that tests claims, and whose folder is damaged, is left out aloud."""
    damaged = Path(shutil.copytree(clean, tmp_path / "runs" / "gpt-tinystories-fair"))
    (damaged / "study.json").write_text("{")
    done = run("claims")
    assert done.returncode == 0
    assert done.stderr.startswith("excluded: ")
    assert "C14" in done.stdout


def test_a_folder_with_the_name_of_another_study_decides_nothing(run, clean, tmp_path):
    shutil.copytree(clean, tmp_path / "runs" / "minilm-sst2")
    done = run("claims")
    assert done.returncode == 0
    assert "runs/minilm-sst2 holds the study 'made'" in done.stderr
    assert "no records yet (oelm run minilm-sst2)" in done.stdout
