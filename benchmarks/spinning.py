"""What it costs, and saves, that threads sleep instead of spinning while they wait for each other.

    python benchmarks/spinning.py [--sst2 FOLDER] [--budget 240] [--busy 2]

Step times of our loop with MiniLM in four processes, which take turns: as OpenMP comes, with OMP_WAIT_POLICY=passive
(which `oelm` sets where nothing is set), with GOMP_SPINCOUNT=0, and with one thread. First with nothing else running,
then beside other busy processes. Whoever is not at work waits for a line, and takes no time.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from result import Result, parser_for, tell
from sentences import add_sst2, loop_of, study_of
from side_by_side import seconds_of, take_turns

AS_IT_COMES = "as it comes"
SETTINGS = {
    AS_IT_COMES: {},
    "OMP_WAIT_POLICY=passive": {"OMP_WAIT_POLICY": "passive"},
    "GOMP_SPINCOUNT=0": {"GOMP_SPINCOUNT": "0"},
    "one thread": {"OMP_NUM_THREADS": "1"},
}
BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"  # never longer than this process
BATCHES = 4  # that are gone through again and again


class Worker:
    """Our loop in a process with an environment of its own, which takes steps when it is asked to."""

    def __init__(self, setting: dict[str, str], options: argparse.Namespace):
        decided = {name for each in SETTINGS.values() for name in each}
        env = {name: text for name, text in os.environ.items() if name not in decided} | setting
        words = [sys.executable, __file__, "--worker", *(["--sst2", options.sst2] if options.sst2 else [])]
        self.process = subprocess.Popen(words, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.steps = 1 if options.quick else BATCHES

    def step_seconds(self) -> float:
        """Mean seconds of a step, over all batches."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(self.steps, file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"a process that trains ended with code {self.process.wait()}")
        return float(answer)

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.communicate()


def serve(options: argparse.Namespace) -> None:
    """The process of a worker: a number of steps a line in, their mean seconds a line out."""
    with loop_of(study_of(options.sst2), batches=BATCHES) as loop:
        for line in sys.stdin:
            print(seconds_of(loop.step, int(line)), flush=True)


@contextmanager
def busy(number: int) -> Iterator[None]:
    """So many processes that keep a core each busy."""
    processes = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(number)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def measure(options: argparse.Namespace) -> Iterator[Result]:
    with ExitStack() as stack:
        workers = {name: stack.enter_context(Worker(setting, options)) for name, setting in SETTINGS.items()}
        for others in (0, options.busy):
            beside = f"beside {others} busy processes" if others else "with nothing else running"
            with busy(others):
                turns = take_turns(
                    {name: worker.step_seconds for name, worker in workers.items()}, budget=options.budget / 2
                )
            turns = replace(turns, others=None)  # the workers themselves
            for name in list(SETTINGS)[1:]:
                yield turns.result(
                    name,
                    AS_IT_COMES,
                    question=f"threads that wait, {beside}, MiniLM",
                    what=f"step time, {name} / {AS_IT_COMES}",
                )


if __name__ == "__main__":
    parser = add_sst2(parser_for(__doc__, budget=240))
    parser.add_argument("--busy", type=int, default=2, help="other processes (%(default)d)")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    if "--worker" in sys.argv:
        serve(parser.parse_args())
    else:
        tell(measure, parser)
