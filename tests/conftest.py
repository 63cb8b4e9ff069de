"""Shared by all tests."""

import os
import signal
from pathlib import Path

import pytest
import torch

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["OMP_NUM_THREADS"] = "1"  # two test processes, and what they start, share two cores

import transformers

transformers.utils.logging.set_verbosity(40)
transformers.utils.logging.disable_progress_bar()
torch.set_num_threads(1)
# What is started in the background, as CI may start us, ignores a Ctrl-C, and so would all that we start.
signal.signal(signal.SIGINT, signal.default_int_handler)

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
