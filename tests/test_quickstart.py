"""The quickstart, in three steps instead of 150."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "examples" / "quickstart.py"


def run(*words):
    return subprocess.run([sys.executable, "-W", "error", SCRIPT, *words], capture_output=True, text=True)


def test_it_trains_every_arm_and_prints_the_audit():
    done = run("--steps", "3", "--seed", "1")
    assert done.returncode == 0, done.stderr
    assert "audit passed" in done.stdout
    assert "frozen 65,536 of 461,312 weights (14.206 %)" in done.stdout
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith(("baseline", "oelm-"))]
    assert [(row[0], row[1]) for row in rows] == [
        ("baseline", "461,312"),
        ("oelm-nofreeze", "461,312"),
        ("oelm-freeze", "395,776"),
    ]
    losses = [float(row[2]) for row in rows]
    assert len(set(losses)) == 3
    assert all(3 < loss < 6 for loss in losses), "three steps from ln 256"


def test_bad_values_are_one_line_and_exit_code_2():
    done = run("--steps", "0")
    assert done.returncode == 2
    assert "at least 1" in done.stderr
    assert "Traceback" not in done.stderr
