"""The bench on two arms that are the same: its interval should hold 1.

    python benchmarks/same.py [--budget 60]

MiniLM on the sentences of the quickstart, both arms untreated. Run it with nothing else running.
"""

import argparse
import tempfile

from oelm.bench.run import bench
from oelm.study.load import load_study, study_from_dict


def main() -> None:
    parser = argparse.ArgumentParser(description="the bench on two arms that are the same")
    parser.add_argument("--budget", type=float, default=60.0)
    options = parser.parse_args()
    data = load_study("quickstart").to_dict()
    arms = {name: {"init": "keep", "freeze": "none"} for name in ("baseline", "same")}
    study = study_from_dict({**data, "arms": arms, "hypotheses": None})
    with tempfile.TemporaryDirectory() as folder:
        found = bench(study, budget=options.budget, memory=False, out=folder)
    print(found)
    ratio = found.arms["same"].ratios["step"]
    print(f"the interval {'holds' if ratio.low <= 1 <= ratio.high else 'does not hold'} 1")


if __name__ == "__main__":
    main()
