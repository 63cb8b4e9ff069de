"""Models in shards: over two processes they do what they do in one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import sharded

# Of every way to keep queries and keys, and to share weights. The others are as these; without names, all are run.
SOME = ["bert", "albert", "t5", "llama", "mixtral", "oelm-gpt", "gpt2", "phi3", "gpt-neox", "falcon-new"]
SOME += ["torch-encoder"]


@pytest.mark.slow
def test_families_in_shards(tmp_path, forked_python):
    # Loopback, whatever the machine is called.
    env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    env["PYTHONFAULTHANDLER"] = "1"  # one has ended by signal 11, once, and nobody knows where
    command = [sys.executable, str(Path(sharded.__file__)), str(tmp_path / "store")]
    both = [
        subprocess.Popen(
            [*command, str(rank), *SOME], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for rank in range(2)
    ]
    try:
        for process in both:
            said, _ = process.communicate(timeout=1800)  # for one that waits without end, not for a busy machine
            assert process.returncode == 0, said
            assert [line for line in said.splitlines() if line.endswith(": same")] == [f"{name}: same" for name in SOME]
    finally:
        for process in both:
            process.kill()
            process.communicate()
