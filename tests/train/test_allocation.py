"""Allocation: what a step frees is there for the next one, without asking the system for it page by page."""

import os
import subprocess
import sys

import pytest

CODE = """
import resource, torch
from oelm.train.allocation import keep_memory

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


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="about glibc")
def test_freed_memory_is_kept():
    usual = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "131072"}  # what glibc begins with, and may change by itself
    done = subprocess.run([sys.executable, "-c", CODE], env=usual, capture_output=True, text=True, check=True)
    before, kept, after = done.stdout.split()
    if kept == "False":
        pytest.skip("this C library is not glibc")
    assert int(before) > 20_000, "32 MB, ten times, in pages of 4 kB: otherwise there is nothing to mend"
    assert int(after) < int(before) / 5
