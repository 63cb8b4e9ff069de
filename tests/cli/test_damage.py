"""Every file of a run folder, damaged in every way: no traceback, no waiting, and no verdict changes without a word."""

import json
import os
import re
import shutil
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from made_bench import write_bench
from made_runs import make_runs, seal_files, sealed, study_of, write_floor
from misplaced import place_in
from oelm.analysis.results import load
from oelm.cli.main import main
from oelm.errors import OelmError
from oelm.runs.jobs import Job, append_job

CELL = "oelm-freeze/seed-1"
OF_THE_CELL = ("cell.json", "record.json", "steps.jsonl", "predictions.parquet")
FILES = ("study.json", "bench.json", "simple_baseline.json", "jobs.jsonl", *(f"{CELL}/{name}" for name in OF_THE_CELL))
LINES = ("jobs.jsonl", f"{CELL}/steps.jsonl")
# A number that decides something in each of the files, by the name before it.
NUMBERS = {"bench.json": "median", "steps.jsonl": "seconds", "cell.json": "padding", "study.json": "min_effect"}
DEEP = b'{"a":' * 50_000 + b"1" + b"}" * 50_000
BYTES = {
    "cut": lambda content: content[: len(content) // 2],
    "flipped": lambda content: content[:-40] + bytes([content[-40] ^ 1]) + content[-39:],
    "empty": lambda content: b"",
    "no UTF-8": lambda content: b"\xff\xfe" + content,
    "deep": lambda content: DEEP,
}
BYTES_OF_LINES = {
    "one less": lambda content: b"".join(content.splitlines(keepends=True)[:-1]),
    "a deep one": lambda content: b"[" * 50_000 + b"\n" + content,
}
VALUES = ("NaN", "-5", "1.3", "1e400", "-1e308", DEEP.decode())


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    """Runs in which every file decides something: a hypothesis, a blocked verdict, an interval."""
    rule = {"statement": "s", "rule": "below", "margin": 0.97}
    hypotheses = {
        "timed": {**rule, "estimand": "step_seconds(freeze-only) / step_seconds(baseline)"},
        "whole": {**rule, "estimand": "step_seconds(oelm-freeze) / step_seconds(baseline)"},
        "quality": {**rule, "estimand": "accuracy(oelm-freeze) - accuracy(baseline)"},
    }
    study = study_of(study="bert-sst2-fair", seeds=[0, 1], hypotheses=hypotheses)
    accuracy = {"baseline": 0.85, "freeze-only": 0.85, "oelm-freeze": 0.75}
    folder = make_runs(tmp_path_factory.mktemp("clean"), study, examples=40, steps=5, accuracy=accuracy)
    write_floor(folder, accuracy=1.0)  # all are certainly below a bag of words
    write_bench(folder, study, {"freeze-only": 0.94})
    append_job(folder, Job(on="local", cells=(CELL,)))
    return folder


@pytest.fixture(scope="module")
def before(clean):
    return judge(clean)


@pytest.fixture
def runs(clean, tmp_path):
    return Path(shutil.copytree(clean, tmp_path / clean.name))


@dataclass(frozen=True)
class Judged:
    verdicts: dict
    """What is decided, and by what."""
    lacks: dict
    """What each says that it had to do without."""
    checks: set
    told: str
    """Every sentence."""


def judge(folder):
    """None, and the error, if it cannot be read."""
    try:
        results = load(folder)
        verdicts = {arm: (one.verdict, one.n, one.interval) for arm, one in results.comparisons.items()}
        verdicts |= {one.hypothesis.name: (one.status, one.n, one.value) for one in results.hypotheses}
        lacks = {arm: one.lacks for arm, one in results.comparisons.items()}
        lacks |= {one.hypothesis.name: one.lacks for one in results.hypotheses}
        checks = {(one.code, one.where) for one in results.checks}
        told = [*results.comparisons.values(), *results.hypotheses, *results.checks, *results.excluded]
    except OelmError as error:
        return Judged({}, {}, set(), str(error))
    return Judged(verdicts, lacks, checks, "\n".join(map(str, told)))


def too_slow(*_):
    raise TimeoutError("it waits for something")


def oelm(capsys, *words):
    """(exit code, all that was said) of a command in this process."""
    before, sys.argv = sys.argv, ["oelm", *map(str, words)]
    handler = signal.signal(signal.SIGALRM, too_slow)
    signal.alarm(60)
    try:
        main()
        code = 0
    except SystemExit as end:
        code = end.code or 0
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)
        sys.argv = before
    said = capsys.readouterr()
    return code, said.out + said.err


def says_so(runs, before, name, capsys, *, commands=False):
    """The verdicts are those of the clean runs, or the damage is named wherever they are shown."""
    after = judge(runs)
    file = Path(name).name
    is_same = (after.verdicts, after.checks) == (before.verdicts, before.checks)
    assert is_same or file in after.told or CELL in after.told, after.told
    for one, now in after.verdicts.items():
        assert now == before.verdicts[one] or after.lacks[one], f"{one} is {now} and says nothing"
    if not commands:
        return after
    code, said = oelm(capsys, "check", runs)
    blocks = "SIMPLE-BASELINE" in "".join(code for code, _ in after.checks) and name != "simple_baseline.json"
    assert code == (2 if not after.verdicts else 1 if blocks else 0)
    assert is_same or file in said or CELL in said, said
    code, said = oelm(capsys, "status", runs)
    assert code == 0 or (code == 2 and file in said), said
    return after


def number_of(name, content, value):
    """The file with another value in the place of a number that matters."""
    field = NUMBERS.get(Path(name).name, "accuracy")
    changed, times = re.subn(rf'"{field}": [-\d.e]+', f'"{field}": {value}', content)
    assert times or name == "jobs.jsonl"
    return changed


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", BYTES)
def test_bytes(runs, before, name, damage, capsys):
    path = runs / name
    path.write_bytes(BYTES[damage](path.read_bytes()))
    says_so(runs, before, name, capsys, commands=damage == "deep")


@pytest.mark.parametrize("name", LINES)
@pytest.mark.parametrize("damage", BYTES_OF_LINES)
def test_lines(runs, before, name, damage, capsys):
    path = runs / name
    path.write_bytes(BYTES_OF_LINES[damage](path.read_bytes()))
    says_so(runs, before, name, capsys, commands=True)


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(("json", "steps.jsonl"))])
def test_another_number(runs, before, name, capsys):
    """Nothing is wrong with it, but that it is not the one that was written."""
    path = runs / name
    path.write_text(number_of(name, path.read_text(), "0.123"))
    if name == "study.json":  # a study is what its user says
        assert judge(runs).verdicts
        return
    assert says_so(runs, before, name, capsys).told != before.told


@pytest.mark.parametrize("name", ["bench.json", "simple_baseline.json", f"{CELL}/record.json", f"{CELL}/steps.jsonl"])
@pytest.mark.parametrize("value", VALUES, ids=lambda value: value[:6])
def test_numbers_with_a_checksum_that_fits(runs, before, name, value, capsys):
    """What nothing can be is refused, whoever wrote it. A time of 1.3 seconds is one."""
    if value == "1.3" and name in ("bench.json", f"{CELL}/steps.jsonl"):
        value = "-1.3"
    path = runs / name
    path.write_text(sealed(number_of(name, path.read_text(), value)))
    if name.endswith("steps.jsonl"):
        seal_files(path.parent)
    after = says_so(runs, before, name, capsys, commands=value == "-1e308")
    assert after.verdicts != before.verdicts
    assert f"{Path(name).name} is damaged" in after.told


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["folder", "pipe", "loop", "dangling link"])
def test_what_is_no_file(runs, before, name, kind, capsys):
    place_in(runs / name, kind)
    says_so(runs, before, name, capsys, commands=kind == "pipe")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("name", FILES)
def test_what_may_not_be_read(runs, before, name, capsys):
    (runs / name).chmod(0)
    says_so(runs, before, name, capsys, commands=True)


# What is gone and nothing else refers to was never there, for all that anybody can know: bench.json, jobs.jsonl.
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("study.json", "study.json: it is missing"),
        ("simple_baseline.json", "there is no simple baseline"),
        ("cell.json", f"{CELL}: there is no cell.json beside the record"),
        ("record.json", f"{CELL}: not finished (stopped)"),
        ("steps.jsonl", f"{CELL}/steps.jsonl: {CELL}/steps.jsonl is missing"),
        ("predictions.parquet", f"{CELL}/predictions.parquet: {CELL}/predictions.parquet is missing"),
    ],
)
def test_what_is_gone(runs, name, says):
    (runs / name if (runs / name).exists() else runs / CELL / name).unlink()
    assert says in judge(runs).told


@pytest.mark.slow
@pytest.mark.parametrize("name", ["study.json", "bench.json", "simple_baseline.json", f"{CELL}/record.json"])
def test_reports_and_claims(runs, name, capsys):
    (runs / name).write_bytes(DEEP)
    code, said = oelm(capsys, "report", runs, "--format", "md")
    assert code == (2 if name == "study.json" else 0), said
    if code == 0:
        page = (runs / "report.md").read_text()
        assert name in page or CELL in page
        rests_on_it = name != "bench.json"
        assert ("and so judged without" in said) == rests_on_it, "in the sentence that sums it all up"
    code, said = oelm(capsys, "claims", "ls", runs)
    assert code == 0, said
    assert name in said or CELL in said


@pytest.mark.parametrize("name", ["study.json", "jobs.jsonl"])
def test_one_damaged_study_hides_no_other(runs, name, capsys):
    other = shutil.copytree(runs, runs.with_name("other"))
    (runs / name).write_bytes(DEEP)
    code, said = oelm(capsys, "status", runs.parent)
    assert (code, str(runs / name) in said) == (0, True)
    for study in (runs, other):
        assert all(f"{study.name}/{arm}/seed-1 " in said for arm in ("baseline", "freeze-only", "oelm-freeze"))


def test_what_is_clean_says_nothing(clean, before, capsys):
    assert "judged without" not in before.told
    assert oelm(capsys, "check", clean)[0] == 1, "a simple baseline is better"
    assert {row["state"] for row in json.loads(oelm(capsys, "status", clean, "--json")[1])} == {"done"}
