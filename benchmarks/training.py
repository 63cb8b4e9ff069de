"""Our training loop against others, on sentences with MiniLM: examples a second, overhead, and time to the first step.

    python benchmarks/training.py [--sst2 FOLDER] [--precision fp32] [--pairs 6]

Without a folder of SST-2 (train and validation as Parquet, CSV, TSV or JSON lines) the sentences of the quickstart are
taken, which are longer: there is less padding to save. Turns are taken in ABBA order, and all are in one process but
for the time to the first step.

- "padded to 128" is how the project before this one trained: fp32, every batch padded to 128 tokens.
- "Trainer" is transformers.Trainer with its own optimiser and dynamic padding, at the same precision.
- The overhead is what our loop takes beyond forward, backward, clipping and optimiser.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import transformers
from transformers import DataCollatorWithPadding, Trainer, TrainerCallback, TrainingArguments

from interleave import Ratio, ratio_of
from oelm.data.batches import collate
from oelm.study.load import load_study
from oelm.study.plan import Cell, resolve
from oelm.study.recipe import Recipe
from oelm.train.cell import assembled
from oelm.train.loop import Loop
from oelm.train.preparation import model_for
from oelm.train.signals import Stop
from oelm.train.watch import Watch

BATCH, PADDED = 32, 128


def main() -> None:
    parser = argparse.ArgumentParser(description="our loop against others")
    parser.add_argument("--sst2", type=Path, help="a folder with SST-2")
    parser.add_argument("--precision", default="fp32", choices=["fp32", "bf16"])
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--steps", type=int, default=20, help="steps of ours in a turn")
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()

    overrides = ["tune=null", f"recipe.precision={options.precision}", "recipe.data.max_length=128"]
    overrides += [f"recipe.batch.size={BATCH}", "recipe.budget.epochs=3", "recipe.evaluate.every=100000"]
    if options.sst2 is not None:
        overrides.append(f"recipe.data.path={options.sst2}")
    name = "minilm-sst2" if options.sst2 is not None else "quickstart"
    study = load_study(name, overrides)
    with tempfile.TemporaryDirectory() as folder:
        cell = Cell(arm="baseline", seed=0)
        (Path(folder) / cell.folder).mkdir(parents=True)
        loop = assembled(resolve(study, cell), Path(folder), Watch(), Stop())
        mean = loop.prepared.train.lengths.mean()
        print(f"MiniLM, {name}: {mean:.1f} tokens a sentence, batch {BATCH}, {torch.get_num_threads()} threads")

        def ours() -> float:
            began = time.perf_counter()
            for _ in range(options.steps):
                loop.step()
            return (time.perf_counter() - began) / options.steps

        padded = _padded(loop, study.recipe)
        show("padded to 128, fp32", pairs(lambda: _each(padded, 2), ours, options.pairs), options.precision)
        trainer = _trainer(loop, study.recipe, options.steps, Path(folder))
        show("Trainer", pairs(trainer, ours, options.pairs), options.precision)
        _overhead(loop, options.pairs * 10)
    _first_step(study.name, overrides)


def show(other: str, ratio: Ratio, precision: str) -> None:
    print(
        f"examples a second, ours ({precision}) / {other}: {ratio.median:.2f} "
        f"(95 % interval {ratio.low:.2f} to {ratio.high:.2f}, {ratio.pairs} pairs; "
        f"{BATCH / ratio.seconds_b:.0f} against {BATCH / ratio.seconds_a:.0f})"
    )


def pairs(a: Callable[[], float], b: Callable[[], float], number: int) -> Ratio:
    """Both say how long a step took. The first pair warms up."""
    times_a, times_b = [], []
    for pair in range(number + 1):
        if pair % 2:
            times_b.append(b())
        times_a.append(a())
        if not pair % 2:
            times_b.append(b())
    return ratio_of(times_a[1:], times_b[1:])


def _each(step: Callable[[], None], number: int) -> float:
    began = time.perf_counter()
    for _ in range(number):
        step()
    return (time.perf_counter() - began) / number


def _padded(loop: Loop, recipe: Recipe) -> Callable[[], None]:
    model = model_for(recipe, loop.prepared, seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, weight_decay=0.01)
    split = loop.prepared.train
    random = torch.Generator().manual_seed(0)

    def step() -> None:
        rows = torch.randint(len(split), (BATCH,), generator=random).numpy()
        batch = collate(split, rows, pad=loop.pad, device=torch.device("cpu"))
        missing = PADDED - batch.inputs["input_ids"].shape[1]
        inputs = {
            name: torch.nn.functional.pad(tensor, (0, missing), value=loop.pad if name == "input_ids" else 0)
            for name, tensor in batch.inputs.items()
        }
        model(**inputs, labels=batch.targets).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


class _Clock(TrainerCallback):
    began = ended = 0.0

    def on_step_begin(self, args, state, control, **kwargs):
        self.began = self.began or time.perf_counter()

    def on_step_end(self, args, state, control, **kwargs):
        self.ended = time.perf_counter()


def _trainer(loop: Loop, recipe: Recipe, steps: int, folder: Path) -> Callable[[], float]:
    model = model_for(recipe, loop.prepared, seed=0)
    split = loop.prepared.train
    rows = [
        {"input_ids": split.tokens[start:end].tolist(), "labels": int(label)}
        for start, end, label in zip(split.offsets[:-1], split.offsets[1:], split.labels, strict=True)
    ]

    def turn() -> float:
        clock = _Clock()
        arguments = TrainingArguments(
            output_dir=str(folder / "trainer"),
            max_steps=steps,
            per_device_train_batch_size=BATCH,
            learning_rate=1e-4,
            weight_decay=0.01,
            bf16=recipe.precision == "bf16",
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            use_cpu=not torch.accelerator.is_available(),
        )
        collator = DataCollatorWithPadding(loop.prepared.tokenizer)
        Trainer(model=model, args=arguments, train_dataset=rows, data_collator=collator, callbacks=[clock]).train()
        return (clock.ended - clock.began) / steps

    return turn


def _overhead(loop: Loop, steps: int) -> None:
    """The same loop with clocks around its parts: what none of them has is ours."""
    import oelm.train.loop as module

    places = ((loop.accelerator, "backward"), (module, "losses"), (loop.stepper, "step"), (loop, "_clip"))
    seconds = dict.fromkeys((name for _, name in places), 0.0)

    def timed(name: str, work: Callable[..., object]) -> Callable[..., object]:
        def run(*words: object, **named: object) -> object:
            start = time.perf_counter()
            try:
                return work(*words, **named)
            finally:
                seconds[name] += time.perf_counter() - start

        return run

    before = [getattr(place, name) for place, name in places]
    for (place, name), work in zip(places, before, strict=True):
        setattr(place, name, timed(name, work))
    began = time.perf_counter()
    for _ in range(steps):
        loop.step()
    total = time.perf_counter() - began
    for (place, name), work in zip(places, before, strict=True):
        setattr(place, name, work)
    print(
        f"overhead of the loop: {100 * (total - sum(seconds.values())) / total:.2f} % of a step over {steps} steps, "
        f"beyond forward, backward, clipping ({100 * seconds['_clip'] / total:.2f} %) and optimiser"
    )


def _first_step(study: str, overrides: list[str]) -> None:
    code = (
        "import time, sys; from oelm.study.load import load_study; from oelm.launch.local import run_cell\n"
        "from oelm.train.watch import Watch\n"
        "class First(Watch):\n"
        "    def stepped(self, step, *, loss): print(time.time())\n"
        f"study = load_study({study!r}, {[*overrides, 'recipe.budget.steps=1', 'seeds=[0]']!r})\n"
        "run_cell(study, arm='baseline', seed=0, out=sys.argv[1], watch=First())\n"
    )
    times = []
    for _ in range(3):
        with tempfile.TemporaryDirectory() as folder:
            began = time.time()
            done = subprocess.run(
                [sys.executable, "-c", code, folder], capture_output=True, text=True, check=True, env=os.environ
            )
            times.append(float(done.stdout.split()[0]) - began)
    imports = "import torch; from transformers import AutoTokenizer, BertForSequenceClassification"
    floor = []
    for _ in range(3):
        began = time.time()
        subprocess.run([sys.executable, "-c", imports], check=True, env=os.environ)
        floor.append(time.time() - began)
    print(
        f"from the start of a process to the end of its first step, tokens cached: {min(times):.1f} s (best of 3); "
        f"importing torch and transformers alone: {min(floor):.1f} s"
    )


if __name__ == "__main__":
    main()
