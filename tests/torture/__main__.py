"""Attack oelm for some minutes, and tell what it survived: `make torture`.

    python tests/torture [--minutes 60] [--seed 0] [--only kills,races] [--trial 0-17]

Every trial has a seed of its own, and is repeated by it. Exit code 1 if anything was not survived.
"""

import argparse
import itertools
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1])]
os.environ.update({"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"})

import transformers  # noqa: E402

from torture.attack import Attack, Trial, remove_prepared, run_trial  # noqa: E402
from torture.reading import ATTACKS as READING  # noqa: E402
from torture.training import ATTACKS as TRAINING  # noqa: E402

ATTACKS = {attack.name: attack for attack in (*TRAINING, *READING)}


def run_attacks(attacks: Sequence[Attack], *, seed: int, seconds: float) -> Iterator[Trial]:
    """Trials until the time is over. The attack that had the least of it is next."""
    spent = {attack.name: 0.0 for attack in attacks}
    numbers = {attack.name: itertools.count() for attack in attacks}
    end = time.monotonic() + seconds
    while attacks and time.monotonic() < end:
        attack = min(attacks, key=lambda one: spent[one.name])
        trial = run_trial(attack, f"{seed}-{next(numbers[attack.name])}")
        spent[attack.name] += trial.seconds
        yield trial


def format_table(trials: Sequence[Trial], skipped: dict[str, str]) -> str:
    lines = ["| attack | tried | survived | failed |", "|---|---:|---:|---:|"]
    for name in ATTACKS:
        mine = [trial for trial in trials if trial.attack == name]
        failed = sum(bool(trial.problem) for trial in mine)
        if mine:
            lines.append(f"| {name} | {len(mine)} | {len(mine) - failed} | {failed} |")
        elif name in skipped:
            lines.append(f"| {name} | not tried: {skipped[name]} | | |")
    failed = sum(bool(trial.problem) for trial in trials)
    lines.append(f"| all | {len(trials)} | {len(trials) - failed} | {failed} |")
    return "\n".join(lines)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tests/torture", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0, help="time budget (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of all trials (%(default)s)")
    parser.add_argument("--only", default=",".join(ATTACKS), help="some of %(default)s")
    parser.add_argument("--trial", help="a single trial by its seed, e.g. 0-17")
    options = parser.parse_args(words)
    for name in options.only.split(","):
        if name not in ATTACKS:
            parser.error(f"unknown attack '{name}': one of {', '.join(ATTACKS)}")
    transformers.utils.logging.set_verbosity(40)
    transformers.utils.logging.disable_progress_bar()
    chosen = [ATTACKS[name] for name in options.only.split(",")]
    skipped = {attack.name: why for attack in chosen if (why := attack.is_possible())}
    attacks = [attack for attack in chosen if attack.name not in skipped]
    trials: list[Trial] = []
    began = time.monotonic()
    try:
        if options.trial:
            found: Iterator[Trial] = (run_trial(attack, options.trial) for attack in attacks)
        else:
            found = run_attacks(attacks, seed=options.seed, seconds=60 * options.minutes)
        for trial in found:
            trials.append(trial)
            _tell(trial, trials, left=60 * options.minutes - (time.monotonic() - began))
    except KeyboardInterrupt:
        print("\nstopped")
    finally:
        remove_prepared()
    failures = [trial for trial in trials if trial.problem]
    print(f"\n{format_table(trials, skipped)}\n")
    for trial in failures:
        print(f"{trial.repeat}\n  {trial.problem.strip().splitlines()[-1]}")
    return int(bool(failures))


def _tell(trial: Trial, trials: Sequence[Trial], *, left: float) -> None:
    if trial.problem:
        print(f"\nFAILED {trial.repeat}\n{trial.problem.strip()}\n", flush=True)
    elif sys.stdout.isatty():
        failed = sum(bool(one.problem) for one in trials)
        print(f"\r{len(trials)} tried, {failed} failed, {max(0, left) / 60:.0f} min left ", end="", flush=True)


if __name__ == "__main__":
    sys.exit(main())
