"""Shared by all tests."""

import gc
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import hypothesis  # here: while it is imported it counts references, and sees none that are frozen below
import pytest
import torch

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["OMP_NUM_THREADS"] = "1"  # test processes, and what they start, share two cores
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # no processes for it, each of which imports torch
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # some virtual machines show AMX, and end who uses it

import transformers

import forked

transformers.utils.logging.set_verbosity(40)
transformers.utils.logging.disable_progress_bar()
torch.set_num_threads(1)
os.fsync = lambda descriptor: os.fstat(descriptor) and None  # nobody cuts the power; waiting for disks is minutes
# Launches of tests are not those of the user.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="oelm-state-")
# What is started in the background, as CI may start us, ignores a Ctrl-C, and so would all that we start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples in every run: what failed fails again. To search for more: HYPOTHESIS_PROFILE=random.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
hypothesis.settings.register_profile("random", deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

# Real models and data that are not part of the repository lie beside it, where there are any.
SHARED = Path(__file__).parents[2] / "shared"


@pytest.fixture
def shared_model():
    """The folder of a real model beside the repository, by name."""

    def folder(name: str) -> Path:
        path = SHARED / "models" / name
        if not path.is_dir():
            pytest.skip(f"there is no {name} beside the repository")
        return path

    return folder


@pytest.fixture
def forked_python(monkeypatch):
    """What is started as a Python program is forked from this process."""
    monkeypatch.setattr(subprocess.Popen, "__init__", forked.popen)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """Files with slow tests first in every part of the list, and quick ones after them.

    Every test process begins with a part. Who is done first takes from the end of another's, which is quick then, and
    no file that is slow to set up is divided.
    """
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    files = [list(tests) for _, tests in itertools.groupby(items, lambda item: item.path)]
    slow = [tests for tests in files if any(item.get_closest_marker("slow") for item in tests)]
    quick = [item for tests in files if tests not in slow for item in tests]
    parts = [list(itertools.chain(*slow[number::processes])) for number in range(processes)]
    for part in parts[:-1]:
        room = max(0, len(items) // processes - len(part))
        part += quick[:room]
        del quick[:room]
    items[:] = [*itertools.chain(*parts), *quick]


def pytest_unconfigure():
    shutil.rmtree(os.environ["XDG_STATE_HOME"], ignore_errors=True)


def pytest_collection_finish():
    """What is there now stays: no need to look at it whenever memory is tidied up, here and in what we fork."""
    gc.collect()
    gc.freeze()
