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
os.environ["OMP_NUM_THREADS"] = "1"  # two test processes, and what they start, share two cores
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # some virtual machines show AMX, and end who uses it

import transformers

import forked

transformers.utils.logging.set_verbosity(40)
transformers.utils.logging.disable_progress_bar()
torch.set_num_threads(1)
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
    """Files with slow tests first in either half of the list, and quick ones after them.

    Two test processes have a half each. Who is done first takes from the end of the other's, which is quick then, and
    no file that is slow to set up is divided.
    """
    files = [list(tests) for _, tests in itertools.groupby(items, lambda item: item.path)]
    slow = [tests for tests in files if any(item.get_closest_marker("slow") for item in tests)]
    quick = [item for tests in files if tests not in slow for item in tests]
    first, second = (list(itertools.chain(*half)) for half in (slow[::2], slow[1::2]))
    room = max(0, len(items) // 2 - len(first))
    items[:] = [*first, *quick[:room], *second, *quick[room:]]


def pytest_unconfigure():
    shutil.rmtree(os.environ["XDG_STATE_HOME"], ignore_errors=True)


def pytest_collection_finish():
    """What is there now stays: no need to look at it whenever memory is tidied up, here and in what we fork."""
    gc.collect()
    gc.freeze()
