"""How well `oelm bench` knows a ratio after 5 minutes: the half-width of its interval.

    python benchmarks/instrument.py [--sst2 FOLDER] [--budget 300]

MiniLM on sentences, queries and keys frozen against untreated.
"""

import argparse
from collections.abc import Iterator

from result import Result, Target, parser_for, tell
from sentences import add_sst2, benched, study_of


def measure(options: argparse.Namespace) -> Iterator[Result]:
    found = benched(study_of(options.sst2), arms=["freeze-only"], budget=options.budget)
    arm = found.arms["freeze-only"]
    ratio = arm.ratios["step"]
    ended = f"{found.seconds:.0f} s, stopped by {found.stopped_by}"
    frozen = f"frozen / untreated {ratio.median:.4f}, at best {1 - (arm.ceiling or 0):.4f}"
    yield Result(
        question="precision of `oelm bench`, MiniLM",
        what="half-width of the 95 % interval",
        value=ratio.half_width,
        target=Target(rule="at most", number=0.01),
        seconds={name: arm.step_seconds for name, arm in found.arms.items()},
        rounds=ratio.rounds,
        note="; ".join((ended, frozen, *found.warnings)),
    )


if __name__ == "__main__":
    tell(measure, add_sst2(parser_for(__doc__, budget=300)))
