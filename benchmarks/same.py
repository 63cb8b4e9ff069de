"""The bench on two arms that are the same: its interval should hold 1.

    python benchmarks/same.py [--sst2 FOLDER] [--budget 120]

MiniLM on sentences, both arms untreated. Run it with nothing else running.
"""

import argparse
from collections.abc import Iterator

from oelm.study.load import study_from_dict
from result import Result, Target, parser_for, tell
from sentences import add_sst2, benched, study_of


def measure(options: argparse.Namespace) -> Iterator[Result]:
    arms = {name: {"init": "keep", "freeze": "none"} for name in ("baseline", "same")}
    study = study_from_dict({**study_of(options.sst2).to_dict(), "arms": arms, "hypotheses": None})
    found = benched(study, budget=options.budget)
    ratio = found.arms["same"].ratios["step"]
    low, high = ratio.bounds or (None, None)
    yield Result(
        question="`oelm bench` on two equal arms, MiniLM",
        what="step time, one / the other",
        value=ratio.median,
        low=low,
        high=high,
        target=Target(rule="holds", number=1.0),
        seconds={name: arm.step_seconds for name, arm in found.arms.items()},
        rounds=ratio.rounds,
        note="; ".join((f"{found.seconds:.0f} s, stopped by {found.stopped_by}", *found.warnings)),
    )


if __name__ == "__main__":
    tell(measure, add_sst2(parser_for(__doc__, budget=120)))
