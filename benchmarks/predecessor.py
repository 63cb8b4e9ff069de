"""Our training against the predecessor's way: MiniLM on sentences, examples a second.

    python benchmarks/predecessor.py [--sst2 FOLDER] [--budget 240]

The project before this one padded every batch to 128 tokens, trained in fp32, and ran every batch through the model a
second time for the training accuracy. Both sides have 32 examples a step, out of the same sentences.
"""

import argparse
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F

from oelm.data.batches import collate
from oelm.train.cell import supports_bf16
from oelm.train.loop import Loop
from result import Result, Target, parser_for, tell
from sentences import BATCH, add_sst2, described, loop_of, study_of, their_model
from side_by_side import seconds_of, take_turns

PADDED = 128
WHAT = "examples a second, ours / the predecessor's way"


def measure(options: argparse.Namespace) -> Iterator[Result]:
    budget = options.budget / (2 if supports_bf16() else 1)
    yield _against("fp32", Target(rule="at least", number=8.0), options, budget)
    target = Target(rule="at least", number=10.0)
    if supports_bf16():
        yield _against("bf16", target, options, budget)
    else:
        note = "this CPU has no instructions for bf16"
        yield Result(question="fine-tuning, MiniLM, ours in bf16", what=WHAT, target=target, note=note)


def _against(precision: str, target: Target, options: argparse.Namespace, budget: float) -> Result:
    batches, padded = (2, 1) if options.quick else (50, 2)
    study = study_of(options.sst2, precision=precision)
    with loop_of(study, batches=batches) as loop:
        theirs = _padded_step(loop, batches * BATCH)
        turns = take_turns(
            {"ours": lambda: seconds_of(loop.step, batches), "predecessor's": lambda: seconds_of(theirs, padded)},
            budget=budget,
        )
        return turns.result(
            "predecessor's",
            "ours",
            question=f"fine-tuning, MiniLM, ours in {precision}",
            what=WHAT,
            target=target,
            note=described(study, loop, batches),
        )


def _padded_step(loop: Loop, sentences: int) -> Callable[[], None]:
    device = loop.accelerator.device
    model = their_model(loop).to(device)
    # A small rate: sentences that are known by heart have gradients too small to be computed at full speed.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, weight_decay=0.01)
    random = torch.Generator().manual_seed(0)

    def step() -> None:
        rows = torch.randint(sentences, (BATCH,), generator=random).numpy()
        batch = collate(loop.prepared.train, rows, pad=loop.pad, device=device)
        missing = PADDED - batch.inputs["input_ids"].shape[1]
        inputs = {
            name: F.pad(tensor, (0, missing), value=loop.pad if name == "input_ids" else 0)
            for name, tensor in batch.inputs.items()
        }
        model(**inputs, labels=batch.targets).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            float((model(**inputs).logits.argmax(-1) == batch.targets).float().mean())

    return step


if __name__ == "__main__":
    tell(measure, add_sst2(parser_for(__doc__, budget=240)))
