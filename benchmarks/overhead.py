"""What a step of our loop takes beyond forward, backward, clipping and optimizer.

    python benchmarks/overhead.py [--sst2 FOLDER] [--budget 60]

A step of the loop also makes its batch, sets rate and seed, hashes the examples, and writes down the loss. Beside it,
in turns, the same model and optimizer do their arithmetic on batches that are already there, of the same sentences.
"""

import argparse
from collections.abc import Iterator

from oelm.data.batches import Batch, collate
from oelm.train.loop import Loop
from result import Result, parser_for, tell
from sentences import add_sst2, described, loop_of, study_of
from side_by_side import seconds_of, take_turns


def measure(options: argparse.Namespace) -> Iterator[Result]:
    study, number = study_of(options.sst2), 1 if options.quick else 10
    with loop_of(study, batches=number) as loop:
        batches = [
            collate(loop.prepared.train, rows, pad=loop.pad, device=loop.accelerator.device)
            for step in range(number)
            for rows in loop.order.at(step)
        ]
        visits = {
            "loop": lambda: seconds_of(loop.step, number),
            "arithmetic": lambda: seconds_of(lambda: _arithmetic(loop, batches)) / number,
        }
        yield take_turns(visits, budget=options.budget).result(
            "loop",
            "arithmetic",
            question="overhead of our loop, MiniLM",
            what="step time, the whole loop / forward, backward, clipping and optimizer alone",
            note=described(study, loop, number),
        )


def _arithmetic(loop: Loop, batches: list[Batch]) -> None:
    for batch in batches:
        loop.accelerator.backward(loop.wrapped_model(batch.inputs, batch.targets) / len(batch.targets))
        loop.clip()
        loop.wrapped_optimizer.step()
        loop.wrapped_optimizer.zero_grad()


if __name__ == "__main__":
    tell(measure, add_sst2(parser_for(__doc__, budget=60)))
