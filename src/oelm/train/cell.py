"""Run one cell: data, model, treatment, training, report, record; from the start, or from where it was left."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import signal
import time
import traceback
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oelm.errors import AuditFailed, CellError, OelmError, Stopped
from oelm.runs.layout import CELL_SPEC, CHECKPOINTS, FINISHED, LOG, RECORD, STEPS, read_json
from oelm.runs.lease import Lease, acquire, holder_of, remove_stale
from oelm.runs.provenance import collect_provenance, peak_memory, reset_peak_memory
from oelm.runs.record import Record, read_record, write_record
from oelm.study.cells import CellSpec
from oelm.study.schema import Recipe
from oelm.train.preflight import check_data, check_files_unchanged, check_spec_unchanged
from oelm.train.process import avoid_spinning, keep_memory
from oelm.train.progress import Progress, log_to_file

if TYPE_CHECKING:
    from oelm.train.distributed import ProcessGroup
    from oelm.train.loop import Loop
    from oelm.train.signals import StopRequest

_LR_ROWS = 200


def train_cell(resolved: CellSpec, *, root: Path, progress: Progress) -> Record:
    """Bring a cell to its end and return its record; one that is finished is only read.

    `root` is the folder of the study. Several processes that were started together do it together.
    """
    avoid_spinning()  # before torch is imported
    from oelm.train.distributed import init_distributed

    folder = root / resolved.cell.folder
    check_spec_unchanged(resolved, root)
    record = read_record(folder)
    if record is not None and record.status in FINISHED:
        check_files_unchanged(resolved, root, record)
        checkpoints = folder / CHECKPOINTS
        with suppress(OelmError):  # it is not for whoever only reads to complain
            if holder_of(folder) is not None or (record.status == "done" and checkpoints.exists()):
                with acquire(folder) as own:  # killed between its record and its end
                    if record.status == "done":
                        own.remove(checkpoints)
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
            raise problem or CellError(f"the first process could not begin {resolved.cell}", hint="see what it says")
        record = read_record(folder)  # another process may have come to the end of it just now
        if group.any(record is not None and record.status in FINISHED):
            assert record is not None
            return record
        if record is not None and lease is not None:
            # It failed; what it said is kept, and it is tried again from its last checkpoint.
            lease.rename(RECORD, f"failed-{time.strftime('%Y%m%d-%H%M%S')}.json")
        if lease is None:
            return _train_cell(resolved, root, None, Progress(), group)
        with log_to_file(progress, folder / LOG) as progress:
            return _train_cell(resolved, root, lease, progress, group)


def _train_cell(resolved: CellSpec, root: Path, lease: Lease | None, progress: Progress, group: ProcessGroup) -> Record:
    from oelm.train.evaluate import evaluate_final
    from oelm.train.loop import Diverged
    from oelm.train.signals import catch_signals

    folder = root / resolved.cell.folder
    reset_peak_memory()
    loop: Loop | None = None
    status, error = "done", None
    heads: dict[str, Any] = {}
    with catch_signals() as stop:
        if lease is not None:
            lease.on_stop_request = stop.ask_from_outside
        try:
            loop = build_loop(resolved, root, progress, stop, lease=lease, group=group)
            progress.on_cell_start(resolved.cell, step=loop.state.step, total=loop.total)
            if resolved.recipe.trackers:
                named = {"arm": resolved.arm.name, "seed": resolved.cell.seed}
                loop.accelerator.init_trackers(resolved.study.name, config=named)
            stop.at_once = False
            loop.run()
            heads = {"final": loop.heads()}
            reported = evaluate_final(loop)
        except Diverged as happened:
            status, error = "diverged", {"what": str(happened), "traceback": None}
        except AuditFailed as happened:
            status, error = "audit-failed", {"what": str(happened), "traceback": traceback.format_exc()}
        except OelmError:
            raise
        except KeyboardInterrupt:
            number = stop.signal or signal.SIGINT
            what = f"stopped at once; {resolved.cell} is as its last checkpoint left it"
            raise Stopped(what, signal=number) from None
        except Exception as happened:
            what = f"{type(happened).__name__}: {happened}"
            status, error = "failed", {"what": what, "traceback": traceback.format_exc()}
        finally:
            if lease is not None:
                lease.on_stop_request = None
            if loop is not None:
                loop.close_log()
        if error is not None:
            reported = {}
        record = _record(resolved, folder, loop, status, reported, heads, error)
        if lease is not None:
            write_record(lease, record)
    for tracker in loop.accelerator.trackers if loop is not None else ():
        tracker.finish()  # not by `end_training`, which parts the processes while others still ask for something
    if lease is not None and record.status == "done":
        lease.remove(folder / CHECKPOINTS)
    progress.on_cell_end(resolved.cell, status=status)
    if status == "failed" and group.world_size > 1:  # the others may wait for this process in the middle of a step
        assert error is not None
        raise CellError(f"{resolved.cell} failed", why=error["what"])
    if stop.signal is not None:  # it came too late for this cell, and in time for the next
        raise Stopped(f"stopped after {resolved.cell}", signal=stop.signal)
    return record


def build_loop(
    resolved: CellSpec,
    root: Path,
    progress: Progress,
    stop: StopRequest,
    *,
    lease: Lease | None = None,
    group: ProcessGroup | None = None,
) -> Loop:
    """The loop of a cell, restored from its last checkpoint if it has one. Without a lease it writes nothing."""
    from oelm.heads.apply import apply
    from oelm.train.checkpoint import latest_checkpoint
    from oelm.train.device import describe_device
    from oelm.train.distributed import SINGLE_PROCESS
    from oelm.train.loop import Loop
    from oelm.train.preparation import build_cell_model, load_data

    group = group or SINGLE_PROCESS
    keep_memory()
    folder = root / resolved.cell.folder
    recipe, seed = resolved.recipe, resolved.cell.seed
    if recipe.precision == "bf16" and not supports_bf16():
        progress.on_message(
            "this CPU has no instructions for bf16, which is many times slower here than fp32: "
            "--set recipe.precision=fp32"
        )
    with group.main_process_first():  # the others find the tokens made
        prepared = load_data(recipe, progress)
    check_data(resolved, root, prepared)
    accelerator = _accelerator(recipe, folder)
    model = build_cell_model(recipe, prepared, seed=seed)
    weights = _hash_of(model)
    if not group.all_equal(weights):
        raise CellError(
            "the processes have drawn different weights",
            why="their machines, or the versions of their libraries, differ",
            hint="the same environment on all of them",
        )
    applied = apply(model, resolved.arm.treatment, seed=seed, keep_undo=False)
    loop = Loop(
        resolved,
        prepared=prepared,
        applied=applied,
        accelerator=accelerator,
        folder=folder,
        lease=lease,
        progress=progress,
        stop=stop,
        group=group,
    )
    facts = {
        "weights": weights,
        "steps": loop.total,
        "padding": round(loop.padding(), 4),
        "device": describe_device(),
    }
    heads = {"start": loop.heads()}
    if lease is not None:
        content = {**resolved.to_dict(), "data": asdict(prepared.facts), "start": facts, "heads": heads}
        lease.write_json(CELL_SPEC, content)
    with group.main_process_first():  # the others find damaged ones put aside
        checkpoint = latest_checkpoint(folder / CHECKPOINTS, log=progress.on_message)
    if checkpoint is not None:
        loop.restore(checkpoint)
        progress.on_message(f"{resolved.cell} goes on from step {checkpoint.step} of {loop.total}")
    loop.open_log()
    loop.state.starts.append({"step": loop.state.step, **_briefly(collect_provenance()), "processes": group.world_size})
    return loop


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
    """SHA-256 of all weights as they are before the treatment: the same for every arm of a seed."""
    import torch

    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _briefly(facts: dict[str, Any]) -> dict[str, Any]:
    return {name: facts.get(name) for name in ("time", "host", "threads", "device", "versions")}


def _record(
    resolved: CellSpec,
    folder: Path,
    loop: Any,
    status: Any,
    evaluate_final: dict[str, Any],
    heads: dict[str, Any],
    error: dict[str, Any] | None,
) -> Record:
    content = read_json(folder / CELL_SPEC) or {}
    state = loop.state if loop is not None else None
    return Record(
        status=status,
        spec=resolved.to_dict(),
        start={**content.get("start", {}), "batches": state.batches if state else None},
        data=content.get("data") or {},
        counts=loop.applied.counts.to_dict() if loop is not None else {},
        evaluations=state.evaluations if state else [],
        report=evaluate_final,
        lr=_lr_rows(folder),
        seconds=dict(loop.clock.seconds) if loop is not None else {},
        peak_memory=peak_memory(),
        audits=state.audits if state else [],
        provenance={
            **collect_provenance(),
            "seed": resolved.cell.seed,
            "starts": state.starts if state else [],
            "processes": loop.processes() if loop is not None else None,
        },
        heads={**content.get("heads", {}), **heads},
        error=error,
    )


def _lr_rows(folder: Path) -> list[list[float]]:
    path = folder / STEPS
    if not path.exists():
        return []
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    stride = max(1, -(-len(rows) // _LR_ROWS))
    kept = rows[::stride] + ([rows[-1]] if rows and (len(rows) - 1) % stride else [])
    return [[row["step"], row["lr"]] for row in kept]
