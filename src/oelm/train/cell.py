"""Run one cell: data, model, treatment, training, report, record; from the start, or from where it was left."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
import signal
import time
import traceback
from pathlib import Path
from typing import Any

from oelm.data.sources import find_source
from oelm.data.tasks import task_named
from oelm.data.tokenizer import load_tokenizer, train_tokenizer
from oelm.data.tokens import Prepared, prepare
from oelm.errors import AuditFailed, CellError, OelmError, Stopped, StudyError
from oelm.records.provenance import forget_peak_memory, peak_memory, provenance
from oelm.records.record import Record, read_record, write_record
from oelm.records.store import (
    CHECKPOINTS,
    FINISHED,
    HOLDER,
    MAKINGS,
    MODEL,
    PREDICTIONS,
    RECORD,
    STEPS,
    cell_folders,
    holding,
    read_json,
    write_json,
    writing,
)
from oelm.study.plan import Resolved, what_changed
from oelm.study.recipe import Recipe
from oelm.train.watch import Watch

_LR_ROWS = 200


def run(resolved: Resolved, *, folder: Path, watch: Watch) -> Record:
    """Bring a cell to its end and return its record; one that is finished is only read."""
    check_makings(resolved, folder)
    record = read_record(folder)
    if record is not None and record.status in FINISHED:
        _check_files(resolved, record, folder)
        _tidy(folder, record)  # it may have been killed between its record and this
        return record
    with holding(folder):
        record = read_record(folder)  # another process may have come to the end of it just now
        if record is not None and record.status in FINISHED:
            return record
        if record is not None:  # it failed; what it said is kept, and it is tried again from its last checkpoint
            (folder / RECORD).rename(folder / f"failed-{time.strftime('%Y%m%d-%H%M%S')}.json")
        return _run(resolved, folder, watch)


def check_arms(arms: list[Resolved], *, watch: Watch) -> None:
    """Apply every arm's treatment once, so that one that does not fit the model is refused before hours of others."""
    from oelm.train.signals import listening

    with listening() as stop:
        try:
            _check_arms(arms, watch)
        except KeyboardInterrupt:
            raise Stopped("stopped at once; no cell was started", signal=stop.signal or signal.SIGINT) from None


def _check_arms(arms: list[Resolved], watch: Watch) -> None:
    from oelm.heads.apply import apply
    from oelm.models.build import build_model

    models: dict[str, Any] = {}
    for resolved in arms:
        recipe = resolved.recipe
        key = repr((recipe.model, recipe.data))
        if key not in models:
            prepared = prepared_for(recipe, watch)
            models[key] = build_model(
                recipe.model,
                task=prepared.task,
                tokenizer=prepared.tokenizer,
                max_length=recipe.data.max_length,
                seed=resolved.cell.seed,
            )
        try:
            apply(models[key], resolved.arm.treatment, seed=resolved.cell.seed).undo()
        except OelmError as error:
            raise StudyError(f"arm '{resolved.arm.name}' does not fit the model", why=str(error)) from error


def _tidy(folder: Path, record: Record) -> None:
    """Remove what only an unfinished cell needs."""
    if record.status == "done":
        shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
    for rest in (folder / HOLDER, *folder.glob(".*.json*.*"), *folder.glob(".*.partial")):
        rest.unlink(missing_ok=True)


def check_makings(resolved: Resolved, folder: Path) -> None:
    """Refuse to mix a cell with one that was made differently."""
    makings = read_json(folder / MAKINGS)
    if makings is None:
        return
    now = resolved.to_dict()
    changed = what_changed({name: makings.get(name) for name in now}, now)
    if changed:
        raise StudyError(
            f"the study has changed since {resolved.cell} was started; nothing was started",
            where=str(folder),
            why="\n".join(changed[:12]),
            hint="another --out, another name of the study, or the study as it was",
        )


def _run(resolved: Resolved, folder: Path, watch: Watch) -> Record:
    from oelm.train.loop import Diverged, Loop
    from oelm.train.signals import listening

    forget_peak_memory()
    loop: Loop | None = None
    status, error = "done", None
    with listening() as stop:
        try:
            loop = assembled(resolved, folder, watch, stop)
            watch.begins(resolved.cell, step=loop.state.step, total=loop.total)
            if resolved.recipe.trackers:
                named = {"arm": resolved.arm.name, "seed": resolved.cell.seed}
                loop.accelerator.init_trackers(resolved.study.name, config=named)
            stop.at_once = False
            loop.run()
            report = _report(loop)
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
        if error is not None:
            report = {}
        record = _record(resolved, folder, loop, status, report, error)
        write_record(folder, record)
    if loop is not None:
        loop.accelerator.end_training()
    _tidy(folder, record)
    watch.ends(resolved.cell, status=status)
    if stop.signal is not None:  # it came too late for this cell, and in time for the next
        raise Stopped(f"stopped after {resolved.cell}", signal=stop.signal)
    return record


def prepared_for(recipe: Recipe, watch: Watch) -> Prepared:
    """The tokens of a recipe's data, for its model."""
    from oelm.models.build import place_of

    data = recipe.data
    chosen = data.tokenizer

    def tokenizer(texts: Any, made_from: Any) -> Any:
        if chosen is not None and chosen.train is not None:
            watch.prepares("training a tokenizer", 0, 0)
            return train_tokenizer(texts, vocab=chosen.vocab, made_from=made_from)
        if chosen is not None:
            return load_tokenizer(str(chosen.name))
        return load_tokenizer(place_of(recipe.model.name), revision=recipe.model.revision)

    return prepare(
        find_source(task_named(data.task), data.path),
        tokenizer=tokenizer,
        max_length=data.max_length,
        select=data.select,
        joiner=data.joiner,
        watch=watch.prepares,
    )


def assembled(resolved: Resolved, folder: Path, watch: Watch, stop: Any) -> Any:
    """The loop of a cell, restored from its last checkpoint if it has one."""
    from oelm.heads.apply import apply
    from oelm.models.build import build_model
    from oelm.train.checkpoint import latest_checkpoint
    from oelm.train.loop import Loop

    recipe, seed = resolved.recipe, resolved.cell.seed
    if recipe.precision == "bf16" and not computes_bf16():
        watch.says(
            "this CPU has no instructions for bf16, which is many times slower here than fp32: "
            "--set recipe.precision=fp32"
        )
    prepared = prepared_for(recipe, watch)
    _check_data(resolved, folder, prepared)
    accelerator = _accelerator(recipe, folder)
    model = build_model(
        recipe.model,
        task=prepared.task,
        tokenizer=prepared.tokenizer,
        max_length=recipe.data.max_length,
        seed=seed,
    )
    weights = _hash_of(model)
    applied = apply(model, resolved.arm.treatment, seed=seed, keep_undo=False)
    loop = Loop(
        resolved, prepared=prepared, applied=applied, accelerator=accelerator, folder=folder, watch=watch, stop=stop
    )
    facts = {"weights": weights, "steps": loop.total}
    write_json(folder / MAKINGS, {**resolved.to_dict(), "data": prepared.facts, "start": facts})
    checkpoint = latest_checkpoint(folder / CHECKPOINTS, told=watch.says)
    if checkpoint is not None:
        loop.restore(checkpoint)
        watch.says(f"{resolved.cell} goes on from step {checkpoint.step} of {loop.total}")
    loop.cut_steps()
    loop.state.starts.append({"step": loop.state.step, **_briefly(provenance())})
    return loop


def _check_data(resolved: Resolved, folder: Path, prepared: Prepared) -> None:
    """Data and tokenizer must be those that the cell was started with, and those of the study's other cells."""
    cells = [folder]
    root = folder
    for part in reversed(resolved.cell.folder.parts):
        root = root.parent if root.name == part else folder
    if root != folder:
        cells += cell_folders(root)
    mine = resolved.to_dict()["recipe"]
    for cell in cells:
        makings = read_json(cell / MAKINGS) or {}
        before, recipe = makings.get("data"), makings.get("recipe")
        if not isinstance(before, dict) or not isinstance(recipe, dict) or not _reads_alike(recipe, mine):
            continue
        for name, text in (("data", "the data are not those"), ("tokenizer", "the tokenizer is not the one")):
            if before.get(name) != prepared.facts[name]:
                raise StudyError(
                    f"{text} that {cell} was started with; nothing was started",
                    why=f"fingerprint was {before.get(name)}, is {prepared.facts[name]}",
                    hint="another --out, or the files as they were",
                )


def _check_files(resolved: Resolved, record: Record, folder: Path) -> None:
    """A finished cell may not pass for one on other files. Where they are gone, there is nothing to say."""
    data = resolved.recipe.data
    if isinstance(data.path, str) and not Path(data.path).expanduser().exists():
        return
    if data.path is not None and find_source(task_named(data.task), data.path).fingerprint() != record.data["files"]:
        raise StudyError(
            f"the data are not those that {folder} was made with; nothing was started",
            where=str(data.path),
            hint="another --out, or the files as they were",
        )


def _reads_alike(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two recipes ask for the same tokens, wherever the files lie."""
    data = [{**(recipe.get("data") or {}), "path": None} for recipe in (one, other)]
    return data[0] == data[1] and one.get("model") == other.get("model")


def computes_bf16() -> bool:
    """Whether this machine has arithmetic in bf16, and not only a slow imitation of it."""
    import torch

    return torch.accelerator.is_available() or torch.ops.mkldnn._is_mkldnn_bf16_supported()


def _accelerator(recipe: Recipe, folder: Path) -> Any:
    import torch
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    for name in recipe.trackers:
        if importlib.util.find_spec(name) is None:
            raise CellError(f"the tracker '{name}' is not installed", hint=f"pip install {name}")
    if recipe.precision == "fp16" and not torch.accelerator.is_available():
        raise CellError(
            "fp16 needs a GPU", where="recipe.precision", hint="--set recipe.precision=bf16 on a machine without one"
        )
    AcceleratorState._reset_state(reset_partial_state=True)  # cells of one process may differ in precision
    accelerator = Accelerator(
        mixed_precision="no" if recipe.precision == "fp32" else recipe.precision,
        log_with=list(recipe.trackers) or None,
        project_dir=str(folder),
    )
    if accelerator.num_processes > 1:
        raise CellError("a cell runs in one process", why=f"{accelerator.num_processes} were launched")
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


def _report(loop: Any) -> dict[str, Any]:
    """Measure the final model, then the chosen one, on every reported split; keep predictions and a model."""
    import numpy as np
    import pyarrow as pa
    from pyarrow import parquet

    from oelm.train.checkpoint import load_weights_, weights_of

    steps = {"final": loop.total, "chosen": loop.state.chosen["step"]}
    final_weights = weights_of(loop.model)
    report: dict[str, Any] = {}
    tables: list[pa.Table] = []
    for which, step in steps.items():
        if which == "chosen" and step == loop.total:
            report[which] = {**report["final"], "step": step}
            tables += [table.set_column(0, "model", pa.array(["chosen"] * table.num_rows)) for table in list(tables)]
            continue
        if which == "chosen":
            load_weights_(loop.model, loop.chosen_weights)
        splits = {}
        for name, split in loop.prepared.report.items():
            measured = loop.measure(split, name)
            splits[name] = measured.metrics
            number = len(measured.predictions["row"])
            columns = {"model": np.full(number, which), "split": np.full(number, name), **measured.predictions}
            tables.append(pa.table(columns))
        report[which] = {"step": step, "splits": splits}
    with writing(loop.folder):
        partial = loop.folder / f".{PREDICTIONS}.partial"
        parquet.write_table(pa.concat_tables(tables), partial, compression="zstd")
        partial.replace(loop.folder / PREDICTIONS)
    keep = loop.recipe.checkpoint.keep
    load_weights_(loop.model, loop.chosen_weights if keep == "best" else final_weights)
    if keep != "none":
        with writing(loop.folder):
            loop.applied.save_pretrained(loop.folder / MODEL)
            loop.prepared.tokenizer.save_pretrained(loop.folder / MODEL)
    return report


def _record(
    resolved: Resolved, folder: Path, loop: Any, status: Any, report: dict[str, Any], error: dict[str, Any] | None
) -> Record:
    makings = read_json(folder / MAKINGS) or {}
    state = loop.state if loop is not None else None
    return Record(
        status=status,
        made_with=resolved.to_dict(),
        start={**makings.get("start", {}), "batches": state.batches if state else None},
        data=makings.get("data") or {},
        counts=loop.applied.counts.to_dict() if loop is not None else {},
        evaluations=state.evaluations if state else [],
        report=report,
        lr=_lr_rows(folder),
        seconds=dict(loop.clock.seconds) if loop is not None else {},
        peak_memory=peak_memory(),
        audits=state.audits if state else [],
        provenance={**provenance(), "seed": resolved.cell.seed, "starts": state.starts if state else []},
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
