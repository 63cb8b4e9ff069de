"""Cost: what the cells of a study ask of a cluster, by arithmetic.

    python benchmarks/cost.py

Prints the tables of docs/clusters.md. What goes in is measured (`launching.py`) or assumed, and stands below: put your
own figures there.

Cells that are started together do the same things at the same time. Then each of their phases takes as long as it takes
one of them alone, or as long as what they share is busy with all of them, whichever is longer. At best they are out of
step, and wait only for what is busy all the time.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from oelm.format import format_columns, format_duration

_FLOAT = 4  # bytes: weights, gradients and the optimizer's state are float32, whatever the arithmetic is in
_MOMENTS = 2  # that Adam keeps of every weight that learns
_FORWARD = 1 / 3  # of a step


@dataclass(frozen=True, kw_only=True)
class Weights:
    """How many weights there are, and how many of them learn."""

    total: int
    learning: int


@dataclass(frozen=True, kw_only=True)
class Load:
    """What one cell does, wherever it runs."""

    steps: int
    passes: float
    """Batches that are only evaluated."""
    checkpoints: int
    model: Weights
    files: int
    """Opened until the first step, nearly all of them Python's."""
    read: int
    """Bytes of model and data."""
    keeps_model: bool = True
    """At the end: `checkpoint.keep` of a recipe."""

    @property
    def checkpoint(self) -> int:
        """Bytes of a checkpoint: weights, what Adam keeps, and the weights of the best model so far."""
        return _FLOAT * (2 * self.model.total + _MOMENTS * self.model.learning)

    @property
    def written(self) -> int:
        """Bytes from start to end, at most: as if the model had been better at every measurement."""
        return self.checkpoints * self.checkpoint + _FLOAT * self.model.total * self.keeps_model


@dataclass(frozen=True, kw_only=True)
class Site:
    """Where cells run: what a cell finds there alone, and what all of them have together."""

    step_seconds: float
    queue_seconds: float
    """From a GPU that is free to a process on it."""
    start_seconds: float
    """From the start of a process to its first step, with nobody else there."""
    read_speed: float
    """Bytes a second, of one cell."""
    write_speed: float
    """Bytes of a checkpoint a second, of one cell: with checksums, and until they are on the disk."""
    starts: float
    """Processes a second that the queue starts."""
    opens: float
    """Files a second that the shared file system opens."""
    bandwidth: float
    """Bytes a second that the shared file system reads or writes."""


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A part of a cell's life."""

    alone: float
    """Seconds, of one cell."""
    shared: float = 0.0
    """Seconds for which one cell keeps busy what all of them share."""

    def seconds(self, at_once: int) -> float:
        return max(self.alone, at_once * self.shared)

    @property
    def saturates_at(self) -> float:
        """Cells at once from which on they wait for each other."""
        return self.alone / self.shared if self.shared else math.inf


def phases(load: Load, site: Site) -> dict[str, Phase]:
    """The life of a cell, in order."""
    return {
        "queue": Phase(alone=site.queue_seconds, shared=1 / site.starts),
        "start": Phase(alone=site.start_seconds, shared=load.files / site.opens),
        "read": Phase(alone=load.read / site.read_speed, shared=load.read / site.bandwidth),
        "train": Phase(alone=load.steps * site.step_seconds),
        "evaluate": Phase(alone=load.passes * site.step_seconds * _FORWARD),
        "save": Phase(alone=load.written / site.write_speed, shared=load.written / site.bandwidth),
    }


def wave_seconds(load: Load, site: Site, at_once: int, *, in_step: bool = True) -> float:
    """Of so many cells that are started together."""
    life = phases(load, site).values()
    if in_step:
        return sum(phase.seconds(at_once) for phase in life)
    return max(sum(phase.alone for phase in life), at_once * max(phase.shared for phase in life))


def study_seconds(load: Load, site: Site, *, stages: Sequence[int], gpus: int, in_step: bool = True) -> float:
    """Of a study, in waves of a cell on every GPU.

    `stages` are numbers of cells, each of which waits for the one before: those of the tuning, and all others.
    """
    waves = [number for cells in stages for number in (*[gpus] * (cells // gpus), cells % gpus) if number]
    return sum(wave_seconds(load, site, number, in_step=in_step) for number in waves)


@dataclass(frozen=True, kw_only=True)
class Share:
    """Bytes on each of the GPUs that hold a model together (FSDP), without activations."""

    parameters: float
    gradients: float
    optimizer: float
    gathered: float
    """For a moment: weights and gradients of the layers at work, which every GPU then has whole."""

    @property
    def kept(self) -> float:
        """What is there all the time."""
        return self.parameters + self.gradients + self.optimizer


def share_of(model: Weights, *, gpus: int, at_work: Weights, bf16: bool = False) -> Share:
    """What each GPU holds of a model under Adam.

    `at_work` are the weights that are gathered at once, which are in bf16 where the arithmetic is.
    """
    return Share(
        parameters=_FLOAT * model.total / gpus,
        gradients=_FLOAT * model.learning / gpus,
        optimizer=_MOMENTS * _FLOAT * model.learning / gpus,
        gathered=(_FLOAT / 2 if bf16 else _FLOAT) * (at_work.total + at_work.learning) if gpus > 1 else 0.0,
    )


# -- the tables of docs/clusters.md --------------------------------------------------------------------------------

BERT = Load(
    steps=6222,  # 3 epochs of 66,349 examples, 32 at a time
    passes=(13 * 1000 + 2 * 872) / 32,  # 13 evaluations of 1,000 examples, 2 of the dev set
    checkpoints=13,  # one after each evaluation
    model=Weights(total=109_483_778, learning=109_483_778),
    files=5300,  # measured, opened until the first step
    read=4 * 109_483_778 + 5_063_000,  # the model; its tokens as measured
)
SERVER = Site(
    step_seconds=0.05,  # assumed, of an A100 in fp32, on short sentences
    queue_seconds=10,  # assumed, from a free GPU to a process on it
    start_seconds=8,  # measured, from there to the first step
    read_speed=1.4e9,  # measured, a checkpoint with its checksums
    write_speed=5e8,  # measured, a checkpoint with its checksums, until it is on the disk
    starts=5,  # assumed, of tasks in a second
    opens=20_000,  # assumed, of files in a second
    bandwidth=1.25e9,  # assumed, of one file server: 10 Gb/s
)
PARALLEL = replace(SERVER, bandwidth=20e9)  # assumed, of a parallel file system
SPARING = replace(BERT, checkpoints=1, keeps_model=False)  # recipe.checkpoint={every: 10000, keep: none}
NEAR = replace(SPARING, files=100, read=0)  # environment, model and tokens on the node
STAGES = (72, 928)  # cells of the tuning, and all others


def format_waves() -> str:
    """Seconds of a full wave by phase, the study as a whole, and the share of the GPUs' time in which they train."""
    rows = [("", "GPUs", *phases(BERT, SERVER), "study", "at best", "training")]
    for name, load, site in (
        ("server", BERT, SERVER),
        ("parallel", BERT, PARALLEL),
        ("server, sparing", SPARING, SERVER),
        ("parallel, sparing, near", NEAR, PARALLEL),
    ):
        for gpus in (8, 64, 512):
            wave = {phase: part.seconds(gpus) for phase, part in phases(load, site).items()}
            study, best = (
                study_seconds(load, site, stages=STAGES, gpus=gpus, in_step=in_step) for in_step in (True, False)
            )
            share = f"{sum(STAGES) * wave['train'] / (gpus * study):.0%}"
            seconds = [f"{each:.0f}" for each in wave.values()]
            rows.append((name, str(gpus), *seconds, format_duration(study), format_duration(best), share))
    return "\n".join(format_columns(rows, left=[""]))


def format_saturation() -> str:
    """From how many cells at once on they wait for each other, and what checkpoints take."""
    shared = ("queue", "start", "read", "save")
    rows = [("", *shared)]
    for name, load, site in (("server", BERT, SERVER), ("parallel", BERT, PARALLEL), ("near", NEAR, PARALLEL)):
        rows.append((name, *(f"{phases(load, site)[phase].saturates_at:.0f}" for phase in shared)))
    seconds, models = BERT.checkpoint / SERVER.write_speed, sum(STAGES) * _FLOAT * BERT.model.total
    best = (2 * seconds * 86_400) ** 0.5  # Young's rule, if a task is lost once a day
    trains = phases(BERT, SERVER)["train"].alone
    lines = [
        f"A checkpoint: {BERT.checkpoint / 1e9:.2f} GB, {seconds:.0f} s; best every {format_duration(best)}. "
        f"A cell: {format_duration(trains)}.",
        f"Written: {BERT.written / 1e9:.1f} GB a cell, as many TB in all; sparing, {SPARING.written / 1e9:.2f} TB.",
        f"Kept: {models / 1e9:.0f} GB of models; checkpoints of 512 cells: {512 * 2 * BERT.checkpoint / 1e12:.1f} TB.",
    ]
    return "\n".join([*format_columns(rows, left=[""]), "", *lines])


def format_7b_shares() -> str:
    """GiB on each GPU of a model in the shape of Llama-2-7B, without activations."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    import oelm
    from oelm.heads.count import freezing_savings

    with torch.device("meta"):  # counting needs no weights
        llama = LlamaForCausalLM(LlamaConfig())
    total, layer = oelm.count(llama).total, oelm.count(llama.model.layers[0]).total
    frozen = freezing_savings(llama, oelm.Treatment(init="orthogonal", freeze="qk")).frozen
    saved, everything = 12 * frozen / 2**30, 16 * total / 2**30
    rows = [("GPUs", "Q/K", "weights", "gradients", "Adam", "kept", "gathered", "or bf16")]
    rows += _share_rows(total=total, layer=layer, frozen=frozen)
    lines = [
        f"{total:,} weights, {frozen:,} of them queries and keys: {frozen / total:.1%}",
        f"Freezing them spares {saved:.2f} of {everything:.2f} GiB: {saved / everything:.1%}",
    ]
    return "\n".join([*lines, "", *format_columns(rows, left=["Q/K"])])


def _share_rows(*, total: int, layer: int, frozen: int, layers: int = 32) -> Iterator[tuple[str, ...]]:
    rest = total - layers * layer  # embeddings, head and last norm
    for gpus in (1, 2, 4, 8, 64):
        for name, number in (("learn", 0), ("frozen", frozen)):
            model = Weights(total=total, learning=total - number)
            at_work = Weights(total=rest + 2 * layer, learning=rest + 2 * layer - 2 * number // layers)
            fp32, bf16 = (share_of(model, gpus=gpus, at_work=at_work, bf16=low) for low in (False, True))
            sizes = (fp32.parameters, fp32.gradients, fp32.optimizer, fp32.kept, fp32.gathered, bf16.gathered)
            yield (str(gpus), name, *(f"{size / 2**30:.2f}" for size in sizes))


if __name__ == "__main__":
    print(format_waves(), format_saturation(), format_7b_shares(), sep="\n\n")
