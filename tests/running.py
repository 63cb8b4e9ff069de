"""oelm as a user starts it: in a process of its own, and what its cells left behind.

Such a process is forked from one that has imported everything already, and so starts in a moment instead of in seven
seconds. So is what it starts in turn, unless it is to be started as ever.
"""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from safetensors.torch import load_file

import forked
import oelm
from oelm.runs.record import Record
from oelm.study.cells import Cell
from oelm.study.study import Study
from oelm.train.progress import Progress

_IMPORTED = ["oelm.cli.main", "oelm.models.gpt", "oelm.train.cell", "oelm.train.loop", "oelm.train.evaluate", "pandas"]
_FORKING = multiprocessing.get_context("forkserver")
_FORKING.set_forkserver_preload(_IMPORTED)


def environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "OELM_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}


class Started:
    """A process that runs oelm, as `subprocess.Popen` would have it. Warnings are errors in it."""

    def __init__(self, *words: object, env: dict[str, str], cwd: Path, forks: bool = False):
        self._outputs = [Path(tempfile.mkdtemp(prefix="oelm-said-")) / name for name in ("stdout", "stderr")]
        for path in self._outputs:
            path.touch()
        given = [*map(str, words)], env, str(cwd), [str(path) for path in self._outputs], forks
        self._process = _FORKING.Process(target=_run, args=given, daemon=True)
        self._process.start()
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def send_signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()

    def communicate(self, timeout: float = 300) -> tuple[str, str]:
        """Wait for its end; what it said on its two outputs."""
        self._process.join(timeout)
        if self.returncode is None:
            self.kill()
            raise subprocess.TimeoutExpired("oelm", timeout, output=self.stdout, stderr=self.stderr)
        return self.stdout, self.stderr

    @property
    def stdout(self) -> str:
        return self._outputs[0].read_text(encoding="utf-8")

    @property
    def stderr(self) -> str:
        return self._outputs[1].read_text(encoding="utf-8")


def _run(words: list[str], env: dict[str, str], cwd: str, said: list[str], forks: bool) -> None:
    os.setsid()
    if forks:
        subprocess.Popen.__init__ = forked.popen
    for number, name in enumerate(said, start=1):
        os.dup2(os.open(name, os.O_WRONLY | os.O_APPEND), number)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    warnings.simplefilter("error")
    from oelm.cli.main import main

    sys.argv = ["oelm", *words]
    main()


def start(*words: object, env: dict[str, str], cwd: Path, forks: bool = False) -> Started:
    return Started(*words, env=env, cwd=cwd, forks=forks)


def run(*words: object, env: dict[str, str], cwd: Path, forks: bool = False) -> Started:
    """Start it and wait for its end. `forks`: what it starts in turn is forked from it."""
    started = Started(*words, env=env, cwd=cwd, forks=forks)
    started.communicate()
    return started


def until(holds: Callable[[], object], *, seconds: float = 120, what: str = "it") -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"{what} did not come to be in {seconds:.0f} s"
        time.sleep(0.1)


def steps_of(cell: Path) -> list[dict[str, float]]:
    """Loss, rate and length of the gradient of every step."""
    try:
        rows = [json.loads(line) for line in (cell / "steps.jsonl").read_text().splitlines()]
    except FileNotFoundError:
        return []
    return [{name: row[name] for name in ("step", "loss", "lr", "grad_norm")} for row in rows]


def run_cell(study: Study, *, arm: str, seed: int, **options: object) -> Record:
    """The record of one cell, after running it in this process."""
    cell = Cell(arm=arm, seed=seed)
    record = oelm.read_record(oelm.run(study, cells=[str(cell)], **options).folder / cell.folder)
    assert record is not None
    return record


class StopsAt(Progress):
    """Stops a cell that runs in this process, after the evaluation of a step."""

    def __init__(self, step: int):
        self.step = step

    def on_evaluation_end(self, step: int, metrics: dict[str, float]) -> None:
        if step == self.step:
            signal.raise_signal(signal.SIGTERM)


def bits_of(cell: Path) -> dict[str, object]:
    """All that must be the same wherever a cell has run."""
    record = oelm.read_record(cell)
    assert record is not None
    assert record.status == "done", record.error
    return {
        "steps": steps_of(cell),
        "test": record.test,
        "evaluations": record.evaluations,
        "batches": record.batches,
        "lock": record.start.lock,
        "model": (cell / "model" / "model.safetensors").read_bytes(),
        "predictions": (cell / "predictions.parquet").read_bytes(),
    }


def weights_of(cell: Path) -> dict[str, object]:
    return load_file(cell / "model" / "model.safetensors")
