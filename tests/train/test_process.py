"""A process that trains: what a step frees is there for the next one, and its threads do not spin while they wait."""

import os
import subprocess
import sys

import pytest

import oelm
import running
import tiny_study
from oelm.train import process

CODE = """
import resource, torch
from oelm.train.process import keep_memory

def faults():
    for _ in range(3):
        blocks = [torch.zeros(2**20) for _ in range(8)]  # 4 MB each
        del blocks
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        blocks = [torch.zeros(2**20) for _ in range(8)]
        del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

print(faults(), keep_memory(), faults())
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="about glibc")
def test_freed_memory_is_kept():
    usual = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "131072"}  # what glibc begins with, and may change by itself
    done = subprocess.run([sys.executable, "-c", CODE], env=usual, capture_output=True, text=True, check=True)
    before, kept, after = done.stdout.split()
    if kept == "False":
        pytest.skip("this C library is not glibc")
    assert int(before) > 20_000, "32 MB, ten times, in pages of 4 kB: otherwise there is nothing to mend"
    assert int(after) < int(before) / 5


# -- threads -------------------------------------------------------------------------------------------------------


def without_policy(**more):
    return {name: text for name, text in os.environ.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")} | more


def libgomp_settings(code, **environment):
    """What torch's OpenMP runtime says of itself when it is loaded: by name."""
    env = without_policy(OMP_DISPLAY_ENV="verbose", **environment)
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    rows = (line.partition("=") for line in done.stderr.splitlines())
    found = {name.strip(): value.strip().strip("'") for name, _, value in rows}
    if "GOMP_SPINCOUNT" not in found:
        pytest.skip("this torch has another OpenMP runtime than libgomp")
    return found


COMMAND = """
import contextlib, sys
from oelm.cli.main import main
sys.argv = ["oelm", "--version"]
with contextlib.suppress(SystemExit):
    main()
"""
# The runtime that comes with torch, without the seconds of importing the rest of it.
RUNTIME = """
import ctypes, pathlib
from importlib.util import find_spec
for library in pathlib.Path(find_spec("torch").origin).parent.glob("lib/libgomp*"):
    ctypes.CDLL(library)
"""


@pytest.mark.slow
def test_threads_of_a_command_do_not_spin():
    assert libgomp_settings(RUNTIME)["GOMP_SPINCOUNT"] != "0", "otherwise there is nothing to mend"
    assert libgomp_settings(COMMAND + "import torch")["GOMP_SPINCOUNT"] == "0"


@pytest.mark.parametrize(
    ("own", "count"), [({"GOMP_SPINCOUNT": "77"}, "77"), ({"OMP_WAIT_POLICY": "active"}, "30000000000")]
)
def test_what_the_user_has_set_stays(own, count):
    assert libgomp_settings(COMMAND + RUNTIME, **own)["GOMP_SPINCOUNT"] == count


def test_nothing_is_set_where_it_would_be_too_late(monkeypatch):
    """The record would say of this process what is not so."""
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(name, raising=False)
    assert "torch" in sys.modules
    assert not process.avoid_spinning()
    assert "OMP_WAIT_POLICY" not in os.environ


LIBRARY = """
import sys, oelm
study = oelm.load_study(sys.argv[1])
oelm.run(study, cells=["baseline/seed-0"], out=sys.argv[2])
"""


@pytest.mark.slow
def test_a_cell_that_python_starts_has_it_in_its_record(tmp_path):
    study = tiny_study.make(tmp_path)
    env = {**running.environment(tmp_path), **without_policy(OELM_CACHE=str(tmp_path / "cache"))}
    env = {name: text for name, text in env.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    subprocess.run([sys.executable, "-c", LIBRARY, study, tmp_path / "runs"], env=env, check=True)
    record = oelm.read_record(tmp_path / "runs" / "tiny" / "baseline" / "seed-0")
    assert record.provenance.environment["OMP_WAIT_POLICY"] == "passive"
