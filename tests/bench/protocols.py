"""Two ways to time two arms, on machines made up, where the truth is known.

    PYTHONPATH=tests python -m bench.protocols [simulations]

prints the table of docs/fair-comparison.md.
"""

import itertools
import sys
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t

from bench.machine_made import MACHINES, Machine
from oelm.bench.interleave import rounds
from oelm.bench.ratios import is_look, is_precise_enough, ratio_of

# What freezing Q and K can save at most: 2 of 36 parts.
CEILING = 1 - 2 / 36
PRECISION = 0.01
STEPS = 4
"""of a visit"""
MOST_ROUNDS = 256
"""the budget"""
COLUMNS = ("0.944 comes out as (95 % of them)", "within 0.01", "interval", "false alarms", "steps")
RUN_STEPS = 1000
"""of a whole run; six of them are more than the budget of ours, 256 rounds of 16 steps"""


@dataclass(frozen=True, kw_only=True)
class Told:
    """What a protocol says in each of many simulations."""

    ratio: NDArray[np.float64]
    half_width: NDArray[np.float64]
    differs: NDArray[np.bool_]
    steps: NDArray[np.float64]

    def near(self, truth: float) -> float:
        """How often the ratio is within 0.01 of the truth: 1 % of the base's step."""
        return float((abs(self.ratio - truth) < 0.01).mean())


def ours(machine: Machine, truth: float, *, simulations: int) -> Told:
    """Visits in the order of `rounds`, until the interval is narrow enough or the budget is used."""
    arms = ("arm", "base")
    orders = [itertools.islice(rounds(arms, seed=run), MOST_ROUNDS) for run in range(simulations)]
    is_arm = np.array([[name == "arm" for turns in order for name in turns] for order in orders])
    seconds = machine.seconds(np.where(is_arm, truth, 1.0).repeat(STEPS, axis=1))
    seconds = seconds.reshape(*is_arm.shape, STEPS)
    shape = (simulations, MOST_ROUNDS, 2, STEPS)
    arm, base = seconds[is_arm].reshape(shape), seconds[~is_arm].reshape(shape)
    told = []
    for run in range(simulations):
        for n in filter(is_look, range(MOST_ROUNDS + 1)):
            ratio = ratio_of(arm[run, :n], base[run, :n], seed=run)
            if is_precise_enough(ratio, PRECISION):
                break
        told.append((ratio.median, ratio.half_width, ratio.verdict != "inconclusive", 4 * STEPS * n))
    median, half_width, differs, steps = np.array(told).T
    return Told(ratio=median, half_width=half_width, differs=differs.astype(bool), steps=steps)


def predecessors(machine: Machine, truth: float, *, simulations: int) -> Told:
    """Three pairs of whole runs, always the base first; steps above 3 times the median of their run are dropped.

    A difference of the means of more than 1 % is a difference. The interval is that of the paired t test.
    """
    costs = np.tile(np.repeat([1.0, truth], RUN_STEPS), (simulations, 3))
    seconds = machine.seconds(costs).reshape(simulations, 3, 2, RUN_STEPS)
    kept = seconds <= 3 * np.median(seconds, axis=-1, keepdims=True)
    means = seconds.mean(axis=-1, where=kept)
    pairs = means[..., 1] / means[..., 0]
    total = means.sum(axis=1)
    ratio = total[:, 1] / total[:, 0]
    half_width = t.ppf(0.975, 2) * pairs.std(axis=1, ddof=1) / np.sqrt(3)
    steps = np.full(simulations, 6.0 * RUN_STEPS)
    return Told(ratio=ratio, half_width=half_width, differs=abs(ratio - 1) > 0.01, steps=steps)


def protocol_table(simulations: int) -> str:
    """Markdown: what both say of a true ratio of 0.9444, and how often they see a difference where there is none."""
    head = "| machine | " + " | ".join(f"{who}: {what}" for who in ("ours", "whole runs") for what in COLUMNS) + " |"
    lines = [head, "|---|" + "---|" * 2 * len(COLUMNS)]
    for name, machine in MACHINES.items():
        cells = [name]
        for protocol in (ours, predecessors):
            true = protocol(machine, CEILING, simulations=simulations)
            none = protocol(replace(machine, seed=machine.seed + 100), 1.0, simulations=simulations)
            low, middle, high = np.quantile(true.ratio, [0.025, 0.5, 0.975])
            cells += [f"{middle:.3f} ({low:.3f} to {high:.3f})", f"{true.near(CEILING):.1%}"]
            cells += [f"±{np.median(true.half_width):.3f}", f"{none.differs.mean():.1%}", f"{true.steps.mean():,.0f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(protocol_table(int(sys.argv[1]) if sys.argv[1:] else 1000))
