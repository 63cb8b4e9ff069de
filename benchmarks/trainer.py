"""Our training against `transformers.Trainer`: MiniLM on sentences, examples a second, at the same precision.

    python benchmarks/trainer.py [--sst2 FOLDER] [--precision fp32] [--budget 360]

Trainer pads dynamically, once with random batches and once with its length grouping; all else of it is as it comes. It
is started once: its start-up, and what it does to sort the sentences, is outside the clock.

A visit is 50 steps. Within 50 batches we sort by length and shuffle, and Trainer sorts and begins with the longest:
fewer steps would show it at its long batches only.
"""

import argparse
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
from transformers import DataCollatorWithPadding, PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from oelm.train.cell import supports_bf16
from oelm.train.loop import Loop
from result import Result, Target, parser_for, tell
from sentences import BATCH, add_sst2, described, loop_of, study_of, their_model
from side_by_side import seconds_of, take_turns

BATCHES = 50
# So often Trainer has the sentences in its epoch: it then sorts by as many batches as of a whole SST-2.
COPIES = 40


def measure(options: argparse.Namespace) -> Iterator[Result]:
    batches = 2 if options.quick else BATCHES
    study = study_of(options.sst2, precision=options.precision)
    with (
        loop_of(study, batches=batches) as loop,
        _Turn(loop, batches, sampling="random").running() as dynamic,
        _Turn(loop, batches, sampling="group_by_length").running() as grouped,
    ):
        visits = {
            "ours": lambda: seconds_of(loop.step, batches),
            "Trainer": lambda: seconds_of(dynamic.visit) / batches,
            "Trainer, grouped": lambda: seconds_of(grouped.visit) / batches,
        }
        turns = take_turns(visits, budget=options.budget)
        for name, how, target in (("Trainer", "dynamic padding", 1.5), ("Trainer, grouped", "length grouping", 1.1)):
            yield turns.result(
                name,
                "ours",
                question=f"fine-tuning, MiniLM, {options.precision}",
                what=f"examples a second, ours / transformers.Trainer with {how}",
                target=Target(rule="at least", number=target),
                note=described(study, loop, batches),
            )


class _Turn(TrainerCallback):
    """One training by Trainer, in a thread of its own, that rests after every so many steps until it has its turn."""

    def __init__(self, loop: Loop, steps: int, *, sampling: str):
        self._loop, self._steps, self._sampling = loop, steps, sampling
        self._go, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self._stop = False

    @contextmanager
    def running(self) -> Iterator["_Turn"]:
        with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as pool:
            trainer = self._trainer(folder)
            self._training = pool.submit(trainer.train)
            self._training.add_done_callback(lambda _: self._done.release())
            self._rest()
            try:
                yield self
            finally:
                self._stop = True
                self._go.release()

    def visit(self) -> None:
        self._go.release()
        self._rest()

    def _rest(self) -> None:
        self._done.acquire()
        if self._training.done():
            self._training.result()  # raises what went wrong
            raise RuntimeError("Trainer came to an end")

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 0:  # all is set up
            self._wait(control)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step % self._steps == 0:
            self._wait(control)

    def _wait(self, control: Any) -> None:
        self._done.release()
        self._go.acquire()
        control.should_training_stop = self._stop

    def _trainer(self, folder: str) -> Trainer:
        loop, split = self._loop, self._loop.prepared.train
        number = self._steps * BATCH
        rows = [
            {"input_ids": split.tokens[start:end].tolist(), "labels": int(label)}
            for start, end, label in zip(split.offsets[:number], split.offsets[1:], split.labels, strict=False)
        ]
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=1_000_000,
            per_device_train_batch_size=BATCH,
            train_sampling_strategy=self._sampling,
            # A small rate: sentences that are known by heart have gradients too small to be computed at full speed.
            learning_rate=1e-6,
            weight_decay=0.01,
            bf16=loop.recipe.precision == "bf16",
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            remove_unused_columns=False,  # there are none to look for
            dataloader_pin_memory=torch.accelerator.is_available(),
            use_cpu=not torch.accelerator.is_available(),
        )
        trainer = Trainer(
            model=their_model(loop),
            args=arguments,
            train_dataset=rows * COPIES,
            data_collator=DataCollatorWithPadding(loop.prepared.tokenizer),
            callbacks=[self],
        )
        trainer.remove_callback(PrinterCallback)
        return trainer


if __name__ == "__main__":
    parser = add_sst2(parser_for(__doc__, budget=360))
    parser.add_argument("--precision", default="bf16" if supports_bf16() else "fp32", choices=["fp32", "bf16"])
    tell(measure, parser)
