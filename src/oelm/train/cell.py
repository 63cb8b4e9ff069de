"""Run one cell: data, model, treatment, training, report, record; from the start, or from where it was left."""

from __future__ import annotations

import hashlib
import importlib.util
import signal
import time
import traceback
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from oelm.data.splits import SplitReader
from oelm.data.tokenize import TokenizedTask, load_tokenizer, tokenize_task, train_tokenizer
from oelm.errors import AuditFailed, CellError, OelmError, Stopped
from oelm.facts import AttentionStats
from oelm.hub import commit_of
from oelm.runs.cell_start import CELL_FILE, CellStart, StartedCell, read_cell
from oelm.runs.files import digest_file
from oelm.runs.layout import CHECKPOINTS, FINISHED, LOG, PREDICTIONS, RECORD, STEPS, Status
from oelm.runs.lease import Lease, acquire, holder_of, remove_stale
from oelm.runs.provenance import collect_provenance, peak_memory, reset_peak_memory
from oelm.runs.record import Failure, ModelScores, Record, Which, read_record, write_record
from oelm.runs.steps import read_written_steps
from oelm.runs.train_state import TrainState
from oelm.study.cells import CellSpec
from oelm.study.data_task import source_of
from oelm.study.recipe import ModelConfig, Recipe, TokenizerConfig
from oelm.train.origin import (
    check_frozen_as_saved,
    check_origin_unchanged,
    check_record_of_origin,
    check_tokenizer,
    describe_origin,
    locate_origin,
)
from oelm.train.preflight import check_data, check_files_unchanged, check_metric, check_spec_unchanged
from oelm.train.process import avoid_spinning, keep_memory
from oelm.train.progress import Progress, log_to_file

if TYPE_CHECKING:
    from torch import Tensor, nn

    from oelm.train.distributed import ProcessGroup
    from oelm.train.loop import Loop
    from oelm.train.signals import StopRequest

_LR_ROWS = 200


def train_cell(
    spec: CellSpec,
    *,
    root: Path,
    lock: str,
    progress: Progress,
    trial: Path | None = None,
    keep_checkpoint: bool = False,
) -> Record:
    """Bring a cell to its end and return its record; one that is finished is only read.

    `root` is the folder of the study, `lock` the digest of its plan. Several processes that were started together do it
    together. `trial` is the folder of a cell that was made with all the same: this one goes on from its last
    checkpoint, if it still has one.
    """
    avoid_spinning()  # before torch is imported
    from oelm.train.distributed import init_distributed

    folder = root / spec.cell.folder
    check_spec_unchanged(spec, root, lock=lock)
    record = read_record(folder)
    if record is not None and record.status in FINISHED:
        check_files_unchanged(spec, root, record)
        check_record_of_origin(spec, record)
        if record.status == "done" and not keep_checkpoint:
            remove_checkpoints(folder)  # killed between its record and its end
        elif holder_of(folder) is not None:
            with suppress(OelmError), acquire(folder):
                pass
        remove_stale(folder)
        return record
    with init_distributed() as group, ExitStack() as stack:
        lease, problem = None, None
        if group.is_main:
            try:
                lease = stack.enter_context(acquire(folder))
            except OelmError as error:
                problem = error
        if group.any(problem is not None):
            raise problem or CellError(f"the first process could not begin {spec.cell}", hint="see what it says")
        record = read_record(folder)  # another process may have come to the end of it just now
        if group.any(record is not None and record.status in FINISHED):
            assert record is not None
            return record
        if record is not None and lease is not None:
            # It failed; what it said is kept, and it is tried again from its last checkpoint.
            lease.rename(RECORD, f"failed-{time.strftime('%Y%m%d-%H%M%S')}.json")
        progress = Progress() if lease is None else stack.enter_context(log_to_file(progress, folder / LOG))
        return _train_cell(spec, root, lock, lease, progress, group, trial, keep_checkpoint)


def remove_checkpoints(folder: Path) -> None:
    """Those of a finished cell, if there are any. A cell that somebody else holds is left to them."""
    with suppress(OelmError):
        if holder_of(folder) is not None or (folder / CHECKPOINTS).exists():
            with acquire(folder) as lease:
                lease.remove(folder / CHECKPOINTS)


def _train_cell(
    spec: CellSpec,
    root: Path,
    lock: str,
    lease: Lease | None,
    progress: Progress,
    group: ProcessGroup,
    trial: Path | None,
    keep_checkpoint: bool,
) -> Record:
    from oelm.train.evaluate import Diverged, evaluate_final
    from oelm.train.signals import catch_signals

    folder = root / spec.cell.folder
    reset_peak_memory()
    loop: Loop | None = None
    status: Status = "done"
    error: Failure | None = None
    heads: AttentionStats | None = None
    test: dict[Which, ModelScores] = {}
    with catch_signals() as stop:
        if lease is not None:
            lease.on_stop_request = stop.ask_from_outside
        try:
            loop = build_loop(spec, root, progress, stop, lock=lock, lease=lease, group=group, trial=trial)
            progress.on_cell_start(spec.cell, step=loop.state.step, total=loop.total)
            if spec.recipe.trackers:
                named = {"arm": spec.arm, "seed": spec.seed}
                loop.accelerator.init_trackers(spec.study, config=named)
            stop.at_once = False
            loop.run()
            heads = loop.heads()
            if spec.tuning is None:  # a trial never sees a test split
                test = evaluate_final(loop)
        except Diverged as happened:
            status, error = "diverged", Failure(what=str(happened), traceback=None)
        except AuditFailed as happened:
            status, error = "audit-failed", Failure(what=str(happened), traceback=traceback.format_exc())
        except OelmError:
            raise
        except KeyboardInterrupt:
            number = stop.signal or signal.SIGINT
            what = f"stopped at once; {spec.cell} is as its last checkpoint left it"
            raise Stopped(what, signal=number) from None
        except Exception as happened:
            what = f"{type(happened).__name__}: {happened}"
            status, error = "failed", Failure(what=what, traceback=traceback.format_exc())
        finally:
            if lease is not None:
                lease.on_stop_request = None
            if loop is not None:
                loop.close_log()
        record = _record(spec, folder, loop, status=status, test=test, heads=heads, error=error)
        if lease is not None:
            write_record(lease, record)
    for tracker in loop.accelerator.trackers if loop is not None else ():
        tracker.finish()  # not by `end_training`, which parts the processes while others still ask for something
    if lease is not None and record.status == "done" and not keep_checkpoint:
        lease.remove(folder / CHECKPOINTS)
    progress.on_cell_end(spec.cell, status=status)
    if status == "failed" and group.world_size > 1:  # the others may wait for this process in the middle of a step
        assert error is not None
        raise CellError(f"{spec.cell} failed", why=error.what)
    if stop.signal is not None:  # it came too late for this cell, and in time for the next
        raise Stopped(f"stopped after {spec.cell}", signal=stop.signal)
    return record


def build_loop(
    spec: CellSpec,
    root: Path,
    progress: Progress,
    stop: StopRequest,
    *,
    lock: str = "",
    lease: Lease | None = None,
    group: ProcessGroup | None = None,
    trial: Path | None = None,
) -> Loop:
    """The loop of a cell, restored from its last checkpoint if it has one. Without a lease it writes nothing."""
    from oelm.heads.attention import UntreatedMaps, sample_maps
    from oelm.models.load import replaced_head
    from oelm.train.adapters import treat_arm
    from oelm.train.checkpoint import latest_checkpoint
    from oelm.train.device import check_bf16_usable, describe_device
    from oelm.train.distributed import SINGLE_PROCESS
    from oelm.train.loop import Loop

    group = group or SINGLE_PROCESS
    keep_memory()
    folder = root / spec.cell.folder
    origin = describe_origin(spec)
    check_origin_unchanged(spec, root, origin)
    located = locate_origin(spec)
    recipe, seed = located.recipe, spec.seed
    if recipe.precision == "bf16":
        check_bf16_usable()
    if recipe.precision == "bf16" and not supports_bf16():
        progress.on_message(
            "this CPU has no instructions for bf16, which is many times slower here than fp32: "
            "--set recipe.precision=fp32"
        )
    with group.main_process_first():  # the others find the tokens made
        prepared = load_data(recipe, progress)
    check_metric(spec, prepared.task)
    check_data(spec, root, prepared.facts)
    check_tokenizer(origin, prepared)
    accelerator = _accelerator(recipe, folder)
    model = build_cell_model(recipe, prepared, seed=seed)
    weights = _hash_of(model)
    if not group.all_equal(weights):
        raise CellError(
            "the processes have drawn different weights",
            why="their machines, or the versions of their libraries, differ",
            hint="the same environment on all of them",
        )
    inputs = first_inputs(prepared)
    untreated = None
    if spec.tuning is None:
        untreated = UntreatedMaps.measure(model, {name: tensor[:, :_MAPPED] for name, tensor in inputs.items()})
    applied = treat_arm(model, located, task=prepared.task, inputs=inputs)
    check_frozen_as_saved(spec, applied)
    loop = Loop(
        spec,
        prepared=prepared,
        applied=applied,
        accelerator=accelerator,
        folder=folder,
        lease=lease,
        progress=progress,
        stop=stop,
        group=group,
        untreated=untreated,
    )
    start = CellStart(
        lock=lock,
        data=prepared.facts,
        weights=weights,
        new_weights=replaced_head(model).new,
        dropped_weights=replaced_head(model).dropped,
        steps=loop.total,
        padding=round(loop.padding(), 4),
        device=describe_device(),
        heads=loop.heads(),
        untreated=() if untreated is None else sample_maps(untreated.maps),
        origin=origin,
        hub=_hub_commits(recipe),
    )
    if lease is not None:
        lease.write(CELL_FILE, StartedCell(spec=spec, start=start))
    history = folder
    with group.main_process_first():  # the others find damaged ones put aside
        checkpoint = latest_checkpoint(folder / CHECKPOINTS, log=progress.on_message)
        if checkpoint is None and trial is not None and _is_same_training(trial, spec, start):
            history, checkpoint = trial, latest_checkpoint(trial / CHECKPOINTS, log=progress.on_message)
    if checkpoint is not None:
        loop.restore(checkpoint)
        progress.on_message(f"{spec.cell} resumes from step {checkpoint.step} of {loop.total}")
    loop.open_log(history)
    loop.record_launch(collect_provenance())
    return loop


def load_data(recipe: Recipe, progress: Progress) -> TokenizedTask:
    """The tokens of a recipe's data, for its model; one that another study left behind must be located."""
    from oelm.models.folder import check_model_folder, resolve_name

    data = recipe.data
    chosen = data.tokenizer

    def tokenizer(texts: Any, made_from: Any) -> Any:
        if chosen is not None and chosen.train is not None:
            progress.on_prepare("training a tokenizer", 0, 0)
            kind, vocab = chosen.train, chosen.vocab
            return train_tokenizer(texts, kind=kind, vocab=vocab, made_from=made_from, log=progress.on_message)
        name = resolve_name(str(recipe.model.name if chosen is None else chosen.name))
        check_model_folder(name)  # it may read the model's configuration, before anyone else does
        return load_tokenizer(name, revision=recipe.model.revision if chosen is None else chosen.revision)

    return tokenize_task(
        source_of(data),
        tokenizer=tokenizer,
        max_length=data.max_length,
        validation=data.validation,
        pair_separator=data.pair_separator,
        overlap=data.overlap,
        group=data.group,
        limit=data.limit,
        progress=progress.on_prepare,
        log=progress.on_message,
    )


def _hub_commits(recipe: Recipe) -> dict[Literal["model", "tokenizer"], str]:
    """Of the model and the tokenizer, where they are the hub's."""
    from oelm.models.folder import resolve_name

    named: dict[Literal["model", "tokenizer"], ModelConfig | TokenizerConfig] = {
        "model": recipe.model,
        "tokenizer": recipe.data.tokenizer or recipe.model,
    }
    of_hub = {what: one for what, one in named.items() if one.name not in (None, "oelm-gpt")}  # others are made here
    found = {what: commit_of(resolve_name(str(one.name)), revision=one.revision) for what, one in of_hub.items()}
    return {what: commit for what, commit in found.items() if commit is not None}


def open_splits(recipe: Recipe) -> SplitReader:
    """The rows of a recipe's data, as texts."""
    data = recipe.data
    return SplitReader(source_of(data), data.validation, overlap=data.overlap, group=data.group, limit=data.limit)


_TRIED = 4  # examples that a treatment is tried on
_MAPPED = 64  # tokens of each whose attention maps are compared: these grow with the square


def first_inputs(prepared: TokenizedTask) -> dict[str, Tensor]:
    """Some examples of the validation split as a model takes them, to try it on."""
    import numpy as np
    import torch

    from oelm.data.batches import collate

    rows = np.arange(min(_TRIED, len(prepared.validation)))
    return collate(prepared.validation, rows, pad=prepared.tokenizer.pad_token_id, device=torch.device("cpu")).inputs


def build_cell_model(recipe: Recipe, prepared: TokenizedTask, *, seed: int) -> nn.Module:
    """The model of a recipe for its data; all that is not pretrained is drawn from the seed."""
    from oelm.models.build import build_model

    return build_model(
        recipe.model,
        task=prepared.task,
        tokenizer=prepared.tokenizer,
        max_length=recipe.data.max_length,
        seed=seed,
    )


def _is_same_training(trial: Path, spec: CellSpec, start: CellStart) -> bool:
    """Whether a trial was made with just what this cell is made with, from the same weights and data."""
    started = read_cell(trial)
    if started is None or replace(started.spec, tuning=None) != spec:
        return False
    other = started.start
    return (other.weights, other.data, other.steps) == (start.weights, start.data, start.steps)


def supports_bf16() -> bool:
    """Whether this machine has arithmetic in bf16, and not only a slow imitation of it."""
    import torch

    return torch.accelerator.is_available() or torch.ops.mkldnn._is_mkldnn_bf16_supported()


def _accelerator(recipe: Recipe, folder: Path) -> Any:
    import torch
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState
    from accelerate.utils import DistributedDataParallelKwargs

    for name in recipe.trackers:
        if importlib.util.find_spec(name) is None:
            raise CellError(f"the tracker '{name}' is not installed", hint=f"pip install {name}")
    if recipe.precision == "fp16" and not torch.accelerator.is_available():
        raise CellError(
            "fp16 needs a GPU", where="recipe.precision", hint="--set recipe.precision=bf16 on a machine without one"
        )
    AcceleratorState._reset_state(reset_partial_state=True)  # cells of one process may differ in precision
    accelerator = Accelerator(
        cpu=not torch.accelerator.is_available(),  # without it, several processes on a CPU are taken for one
        mixed_precision="no" if recipe.precision == "fp32" else recipe.precision,
        log_with=list(recipe.trackers) or None,
        project_dir=str(folder),
        kwargs_handlers=[DistributedDataParallelKwargs(broadcast_buffers=False, gradient_as_bucket_view=True)],
    )
    return accelerator


def _hash_of(model: Any) -> str:
    """SHA-256 of all weights as they are before adapter and treatment: the same for every arm of a seed."""
    import torch

    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _record(
    spec: CellSpec,
    folder: Path,
    loop: Loop | None,
    *,
    status: Status,
    test: dict[Which, ModelScores],
    heads: AttentionStats | None,
    error: Failure | None,
) -> Record:
    started = read_cell(folder)
    state = loop.state if loop is not None else TrainState()
    return Record(
        status=status,
        spec=spec,
        start=started.start if started is not None else None,
        batches=state.batches or None,
        counts=loop.applied.counts if loop is not None else None,
        evaluations=state.evaluations,
        test=test if error is None else {},
        lr=_lr_rows(folder),
        seconds=dict(loop.clock.seconds) if loop is not None else {},
        peak_memory=peak_memory().at_least(state.peak_memory),
        audits=state.audits,
        provenance=collect_provenance(),
        launches=state.launches,
        processes=loop.processes() if loop is not None else None,
        heads=heads,
        files={name: digest for name in (STEPS, PREDICTIONS) if (digest := digest_file(folder / name)) is not None},
        error=error,
    )


def _lr_rows(folder: Path) -> tuple[tuple[int, float], ...]:
    rows = [(step.step, step.lr) for step in read_written_steps(folder)]
    stride = max(1, -(-len(rows) // _LR_ROWS))
    last = rows[-1:] if rows and (len(rows) - 1) % stride else []
    return (*rows[::stride], *last)
