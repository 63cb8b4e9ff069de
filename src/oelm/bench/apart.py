"""Apart: an arm that is in memory only while it is visited.

Run as a program, this is the process of one visit.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from oelm.bench.processes import answering, arm_in, ask
from oelm.bench.stepper import Stepper
from oelm.bench.surroundings import gpu_now
from oelm.bench.turns import WARM_UP, Visit
from oelm.errors import Stopped
from oelm.train.signals import Stop


class Apart:
    """An arm of a study; every visit is a process, which begins with the weights of step 0."""

    def __init__(self, study: Mapping[str, Any], arm: str, seed: int, *, stop: Stop):
        self._question = {"study": dict(study), "arm": arm, "seed": seed, "threads": torch.get_num_threads()}
        self._stop = stop

    def visit(self, first: int, steps: int) -> Visit:
        """Nothing was seen if a stop is asked for meanwhile."""
        question = {**self._question, "first": first, "steps": steps}
        failing = f"arm '{question['arm']}' could not be timed"
        try:
            answer = ask("oelm.bench.apart", question, failing=failing, stop=self._stop)
        except Stopped:
            return Visit(seconds=np.empty((0, 3)), lengths=())
        return Visit(seconds=np.array(answer["seconds"]), lengths=tuple(answer["lengths"]), gpu=answer["gpu"])


def _visited(question: dict[str, Any]) -> dict[str, Any]:
    torch.set_num_threads(question["threads"])
    first, steps = question["first"], question["steps"]
    with arm_in(question) as loop:
        stepper = Stepper(loop)
        stepper.visit(first, min(WARM_UP, steps))
        seen = stepper.visit(first, steps)
    return {"seconds": seen.seconds.tolist(), "lengths": seen.lengths, "gpu": gpu_now()}


if __name__ == "__main__":
    sys.exit(answering(_visited))
