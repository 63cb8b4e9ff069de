"""Isolate: an arm in a process of its own, which is started with one question and ends with the answer.

The question comes as JSON on its standard input, and the last line of its standard output is the answer. Run as a
program, this module is the process that times one block of steps.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from oelm.bench.interleave import WARM_UP, TimedBlock
from oelm.bench.stepper import Stepper
from oelm.bench.system import gpu_now
from oelm.errors import CellError, OelmError, Stopped, StudyError, did_you_mean
from oelm.study.cells import Cell, resolve_cell
from oelm.study.load import load_study, study_from_dict
from oelm.train.cell import build_loop
from oelm.train.loop import Loop
from oelm.train.progress import Progress
from oelm.train.signals import StopRequest

# What PyTorch reports where it has no exception of its own for it: on a CPU, in Linux and in Windows.
_OUT_OF_MEMORY = ("can't allocate memory", "not enough memory")
_POLL = 0.2  # seconds between two checks for a stop request
_SMALLER = "--set recipe.batch.size=..., recipe.gradient_checkpointing=true or recipe.precision=bf16"


class IsolatedArm:
    """An arm of a study; every block of steps is a process, which starts from the weights of step 0."""

    def __init__(self, study: Mapping[str, Any], arm: str, seed: int, *, stop: StopRequest):
        self._question = {"study": dict(study), "arm": arm, "seed": seed, "threads": torch.get_num_threads()}
        self._stop = stop

    def time_steps(self, first: int, steps: int) -> TimedBlock:
        """Nothing was seen if a stop is asked for meanwhile."""
        question = {**self._question, "first": first, "steps": steps}
        failing = f"arm '{question['arm']}' could not be timed"
        try:
            answer = run_in_child("oelm.bench.isolate", question, failing=failing, stop=self._stop)
        except Stopped:
            return TimedBlock(seconds=np.empty((0, 3)), lengths=())
        return TimedBlock(seconds=np.array(answer["seconds"]), lengths=tuple(answer["lengths"]), gpu=answer["gpu"])


def run_in_child(
    program: str, question: Mapping[str, Any], *, failing: str, stop: StopRequest | None = None
) -> dict[str, Any]:
    """Start a module as a program, and return what it answers about the arm in question.

    Where it does not, `failing` begins the error. The process is in a session of its own, so that a Ctrl-C is for us,
    and we end it: when `stop` is asked for, which is an error too, and when anything fails here.
    """
    arm = question["arm"]
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    except OSError as error:
        raise CellError(f"{failing}: no process could be started", why=error.strerror or str(error)) from error
    with process:
        try:
            stdout, stderr = _communicate(process, json.dumps(question), stop)
        except BaseException:
            process.kill()
            raise
    answer = _parse_answer(stdout)
    if "full" in answer:
        raise CellError(f"arm '{arm}' does not fit into memory, not even by itself", why=answer["full"], hint=_SMALLER)
    if "error" in answer:
        raise CellError(f"{failing}: its process {_exit_text(process.returncode)}", why=answer["error"])
    if process.returncode != 0 or not answer:
        killed = process.returncode == -signal.SIGKILL
        alone = "the arm by itself: oelm run, with --set recipe.budget.steps=3"
        raise CellError(
            f"{failing}: its process {_exit_text(process.returncode)}",
            why=_last_line(stderr),
            hint=_SMALLER if killed else alone,
        )
    return answer


def _communicate(process: subprocess.Popen[str], question: str, stop: StopRequest | None) -> tuple[str, str]:
    """(stdout, stderr)"""
    pending: str | None = question
    while stop is None or stop.signal is None:
        try:
            return process.communicate(pending, timeout=_POLL)
        except subprocess.TimeoutExpired:
            pending = None  # it is sent
    raise Stopped("stopped; the process that was at work was ended", signal=stop.signal, hint=None)


def _parse_answer(text: str) -> dict[str, Any]:
    """The last line; libraries may have printed something before."""
    try:
        answer = json.loads(_last_line(text) or "{}")
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


def _exit_text(code: int) -> str:
    if code >= 0:
        return f"ended with code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    return f"was ended by {name}" + (", as it is when memory is full" if name == "SIGKILL" else "")


def _last_line(text: str) -> str | None:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else None


def is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _OUT_OF_MEMORY)


# -- in the process ------------------------------------------------------------------------------------------------


def serve_child(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> int:
    """Read the question and write the answer, or what is wrong; the exit code of the process."""
    try:
        print(json.dumps(answer(json.load(sys.stdin))))
    except OelmError as error:
        print(json.dumps({"error": str(error)}))
        return 2
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        print(json.dumps({"full": _last_line(str(error).partition("\n")[0]) or type(error).__name__}))
        return 2
    return 0


@contextmanager
def arm_loop(question: Mapping[str, Any]) -> Iterator[Loop]:
    """The training of the arm in question. It leaves nothing behind, and finds no checkpoint to resume from."""
    source, arm = question["study"], question["arm"]
    study = study_from_dict(source) if isinstance(source, dict) else load_study(source, question["overrides"])
    if arm not in study.arms:
        raise StudyError(f"there is no arm '{arm}'{did_you_mean(arm, study.arms)}")
    resolved = resolve_cell(study, Cell(arm=arm, seed=question["seed"]))
    with tempfile.TemporaryDirectory() as folder:
        yield build_loop(resolved, Path(folder), Progress(), StopRequest())


def _answer_block(question: dict[str, Any]) -> dict[str, Any]:
    torch.set_num_threads(question["threads"])
    first, steps = question["first"], question["steps"]
    with arm_loop(question) as loop:
        stepper = Stepper(loop)
        stepper.time_steps(first, min(WARM_UP, steps))
        block = stepper.time_steps(first, steps)
    return {"seconds": block.seconds.tolist(), "lengths": block.lengths, "gpu": gpu_now()}


if __name__ == "__main__":
    sys.exit(serve_child(_answer_block))
