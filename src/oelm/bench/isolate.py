"""Isolate: an arm in a process of its own, which is started with one question and ends with the answer.

The question comes as JSON on its standard input, and the last line of its standard output is the answer. Run as a
program, this module is the process that times one block of steps.
"""

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from pydantic import TypeAdapter, ValidationError

from oelm.bench.interleave import WARM_UP, TimedBlock
from oelm.bench.stepper import Stepper
from oelm.bench.system import GpuSample, sample_gpu
from oelm.errors import CellError, OelmError, Stopped, StudyError, did_you_mean
from oelm.runs.bench import MeasuredMemory
from oelm.study.cells import Cell, resolve_cell
from oelm.study.load import study_from_dict
from oelm.study.study import Study
from oelm.train.cell import build_loop
from oelm.train.loop import Loop
from oelm.train.progress import Progress
from oelm.train.signals import StopRequest

# What PyTorch reports where it has no exception of its own for it: on a CPU, in Linux and in Windows.
_OUT_OF_MEMORY = ("can't allocate memory", "not enough memory")
_POLL = 0.2  # seconds between two checks for a stop request
_SMALLER = "--set recipe.batch.size=..., recipe.gradient_checkpointing=true or recipe.precision=bf16"


@dataclass(frozen=True, kw_only=True)
class ArmQuestion:
    """Which arm a process is asked about, and how many steps it trains."""

    study: dict[str, object]
    """In the form of the file."""
    arm: str
    steps: int


@dataclass(frozen=True, kw_only=True)
class BlockQuestion(ArmQuestion):
    first: int
    """Step of the study that the block begins with."""
    threads: int


@dataclass(frozen=True, kw_only=True)
class BlockAnswer:
    seconds: tuple[tuple[float, float, float], ...]
    """Of each step forward, backward and optimizer."""
    lengths: tuple[int, ...]
    gpu: GpuSample | None


@dataclass(frozen=True, kw_only=True)
class ChildFailure:
    """What went wrong in a process, instead of an answer."""

    error: str
    out_of_memory: bool = False


QuestionT = TypeVar("QuestionT", bound=ArmQuestion)
AnswerT = TypeVar("AnswerT")


class IsolatedArm:
    """An arm of a study; every block of steps is a process, which starts from the weights of step 0."""

    def __init__(self, study: Study, arm: str, *, stop: StopRequest):
        self._study, self._arm, self._stop = study, arm, stop

    def time_steps(self, first: int, steps: int) -> TimedBlock:
        """Nothing was seen if a stop is asked for meanwhile."""
        question = BlockQuestion(
            study=self._study.to_dict(),
            arm=self._arm,
            steps=steps,
            first=first,
            threads=torch.get_num_threads(),
        )
        failing = f"arm '{self._arm}' could not be timed"
        try:
            answer = run_in_child("oelm.bench.isolate", question, BlockAnswer, failing=failing, stop=self._stop)
        except Stopped:
            return TimedBlock(seconds=np.empty((0, 3)), lengths=())
        return TimedBlock(seconds=np.array(answer.seconds), lengths=answer.lengths, gpu=answer.gpu)


def run_in_child(
    program: str, question: ArmQuestion, answer: type[AnswerT], *, failing: str, stop: StopRequest | None = None
) -> AnswerT:
    """Start a module as a program, and return what it answers about the arm in question.

    Where it does not, `failing` begins the error. The process is in a session of its own, so that a Ctrl-C is for us,
    and we end it: when `stop` is asked for, which is an error too, and when anything fails here.
    """
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
            stdout, stderr = _communicate(process, json.dumps(asdict(question)), stop)
        except BaseException:
            process.kill()
            process.wait()  # after a Ctrl-C, leaving the block would wait for a quarter of a second only
            raise
    failure, found = _parse_last_line(stdout, ChildFailure), _parse_last_line(stdout, answer)
    if failure is not None and failure.out_of_memory:
        what = f"arm '{question.arm}' does not fit into memory, not even by itself"
        raise CellError(what, why=failure.error, hint=_SMALLER)
    ended = f"{failing}: its process {_exit_text(process.returncode)}"
    if failure is not None:
        raise CellError(ended, why=failure.error)
    if process.returncode != 0 or found is None:
        killed = process.returncode == -signal.SIGKILL
        alone = "the arm by itself: oelm run, with --set recipe.budget.steps=3"
        raise CellError(ended, why=_last_line(stderr), hint=_SMALLER if killed else alone)
    return found


def _communicate(process: subprocess.Popen[str], question: str, stop: StopRequest | None) -> tuple[str, str]:
    """(stdout, stderr)"""
    pending: str | None = question
    while stop is None or stop.signal is None:
        try:
            return process.communicate(pending, timeout=_POLL)
        except subprocess.TimeoutExpired:
            pending = None  # it is sent
    raise Stopped("stopped; the process that was at work was ended", signal=stop.signal, hint=None)


def _parse_last_line(text: str, kind: type[AnswerT]) -> AnswerT | None:
    """Libraries may have printed something before; None if it is something else."""
    try:
        return TypeAdapter(kind).validate_json(_last_line(text) or "")
    except ValidationError:
        return None


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


def serve_child(kind: type[QuestionT], answer: Callable[[QuestionT], BlockAnswer | MeasuredMemory]) -> int:
    """Read the question and write the answer, or what is wrong; the exit code of the process."""
    found: BlockAnswer | MeasuredMemory | ChildFailure
    try:
        found = answer(TypeAdapter(kind).validate_json(sys.stdin.read()))
    except OelmError as error:
        found = ChildFailure(error=str(error))
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        why = str(error).partition("\n")[0].strip() or type(error).__name__
        found = ChildFailure(error=why, out_of_memory=True)
    print(json.dumps(asdict(found)))
    return 2 if isinstance(found, ChildFailure) else 0


@contextmanager
def arm_loop(question: ArmQuestion) -> Iterator[Loop]:
    """The training of the arm in question. It leaves nothing behind, and finds no checkpoint to resume from."""
    study, arm = study_from_dict(question.study), question.arm
    if arm not in study.arms:
        raise StudyError(f"there is no arm '{arm}'{did_you_mean(arm, study.arms)}")
    spec = resolve_cell(study, Cell(arm=arm, seed=study.seeds[0]))
    with tempfile.TemporaryDirectory() as folder:
        yield build_loop(spec, Path(folder), Progress(), StopRequest())


def _answer_block(question: BlockQuestion) -> BlockAnswer:
    torch.set_num_threads(question.threads)
    with arm_loop(question) as loop:
        stepper = Stepper(loop)
        stepper.time_steps(question.first, min(WARM_UP, question.steps))
        block = stepper.time_steps(question.first, question.steps)
    return BlockAnswer(seconds=block.seconds.tolist(), lengths=block.lengths, gpu=sample_gpu())


if __name__ == "__main__":
    sys.exit(serve_child(BlockQuestion, _answer_block))
