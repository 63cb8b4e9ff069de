"""Processes: an arm in a process of its own, which is started with one question and ends with the answer.

The question comes as JSON on its standard input, and the last line of its standard output is the answer.
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
from typing import TYPE_CHECKING, Any

from oelm.errors import CellError, OelmError, Stopped, StudyError, did_you_mean

if TYPE_CHECKING:
    from oelm.train.loop import Loop
    from oelm.train.signals import Stop

_GLANCE = 0.2  # seconds between two looks whether a stop was asked for
_SMALLER = "--set recipe.batch.size=..., recipe.gradient_checkpointing=true or recipe.precision=bf16"


def ask(program: str, question: Mapping[str, Any], *, failing: str, stop: Stop | None = None) -> dict[str, Any]:
    """Start a module as a program, and return what it answers about the arm in question.

    Where it does not, `failing` begins the error. The process is in a session of its own, so that a Ctrl-C is for us,
    and we end it: when `stop` is asked for, which is an error too, and when anything happens here.
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
            said, complained = _heard(process, json.dumps(question), stop)
        except BaseException:
            process.kill()
            raise
    answer = _answer(said)
    if "full" in answer:
        raise CellError(f"arm '{arm}' does not fit into memory, not even by itself", why=answer["full"], hint=_SMALLER)
    if "error" in answer:
        raise CellError(f"{failing}: its process {_ended(process.returncode)}", why=answer["error"])
    if process.returncode != 0 or not answer:
        killed = process.returncode == -signal.SIGKILL
        alone = "the arm by itself: oelm compare, with --set recipe.budget.steps=3"
        raise CellError(
            f"{failing}: its process {_ended(process.returncode)}",
            why=_last_line(complained),
            hint=_SMALLER if killed else alone,
        )
    return answer


def _heard(process: subprocess.Popen[str], question: str, stop: Stop | None) -> tuple[str, str]:
    """What it said on both its streams."""
    given: str | None = question
    while stop is None or stop.signal is None:
        try:
            return process.communicate(given, timeout=_GLANCE)
        except subprocess.TimeoutExpired:
            given = None  # it is on its way
    raise Stopped("stopped; the process that was at work was ended", signal=stop.signal, hint=None)


def _answer(text: str) -> dict[str, Any]:
    """The last line; libraries may have said something before."""
    try:
        answer = json.loads(_last_line(text) or "{}")
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


def _ended(code: int) -> str:
    if code >= 0:
        return f"ended with code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    return f"was ended by {name}" + (", as it is when memory is full" if name == "SIGKILL" else "")


def _last_line(text: str) -> str | None:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else None


# -- in the process ------------------------------------------------------------------------------------------------


def answering(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> int:
    """Read the question and write the answer, or what is wrong; the exit code of the process."""
    from oelm.bench.room import is_out_of_memory

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
def arm_in(question: Mapping[str, Any]) -> Iterator[Loop]:
    """The training of the arm in question. It leaves nothing behind, and finds nothing to go on from."""
    from oelm.study.load import load_study, study_from_dict
    from oelm.study.plan import Cell, resolve
    from oelm.train.cell import assembled
    from oelm.train.signals import Stop
    from oelm.train.watch import Watch

    given, arm = question["study"], question["arm"]
    study = study_from_dict(given) if isinstance(given, dict) else load_study(given, question["overrides"])
    if arm not in study.arms:
        raise StudyError(f"there is no arm '{arm}'{did_you_mean(arm, study.arms)}")
    resolved = resolve(study, Cell(arm=arm, seed=question["seed"]))
    with tempfile.TemporaryDirectory() as folder:
        yield assembled(resolved, Path(folder), Watch(), Stop())
