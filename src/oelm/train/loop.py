"""Loop: the training of one cell, the same for all arms and tasks, from wherever it was left.

Everything random is a function of the seed and the step, so what is not in a checkpoint is not needed.
"""

import hashlib
import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from oelm.data.batches import BatchSampler, collate
from oelm.data.kinds.kind import Encoded, Rows
from oelm.data.kinds.table import TASK_KINDS
from oelm.data.tokenize import Split, TokenizedTask
from oelm.errors import CellError, Stopped
from oelm.facts import AttentionStats
from oelm.heads.applied import Applied
from oelm.heads.attention import UntreatedMaps, measure_heads
from oelm.heads.sharded import is_sharded
from oelm.runs.files import writing
from oelm.runs.layout import STEPS
from oelm.runs.lease import Lease
from oelm.runs.provenance import Provenance, peak_memory
from oelm.runs.record import AuditOutcome, Launch, ProcessStats, ValidationScore
from oelm.runs.steps import Step, format_step, read_written_steps
from oelm.runs.train_state import BestScore, CheckpointState, TrainState
from oelm.seeds import seed_for
from oelm.study.cells import CellSpec
from oelm.study.recipe import Recipe
from oelm.study.schedule import lr_at
from oelm.train.adalora import find_rank_budget
from oelm.train.checkpoint import (
    Checkpoint,
    group_values,
    load_group_values_,
    load_optimizer_,
    load_weights_,
    optimizer_tensors,
    save_checkpoint,
    weights_of,
)
from oelm.train.distributed import (
    SINGLE_PROCESS,
    ProcessGroup,
    allreduce_bytes,
    ddp_ignore_frozen,
    local_bytes,
    no_sync,
    shard_,
)
from oelm.train.evaluate import Diverged, Evaluation, evaluate
from oelm.train.objective import Objective
from oelm.train.optim import make_optimizer
from oelm.train.progress import Progress
from oelm.train.signals import StopRequest

PHASES = ("training", "evaluation", "data", "checkpoints")
_LOOKED_AT = 200  # steps
_FLUSH = 10  # steps between two looks at the loss: each look makes a GPU wait
_HEADS_ROWS, _HEADS_TOKENS = 8, 128  # examples, and tokens of each, on which attention is measured


class Clock:
    """Adds up seconds by kind. Kinds do not nest: the inner one is taken out of the outer."""

    def __init__(self, seconds: dict[str, float] | None = None, *, now: Callable[[], float] = time.perf_counter):
        self.seconds = dict.fromkeys(PHASES, 0.0) | (seconds or {})
        self._now = now
        self._inner = 0.0

    @contextmanager
    def measure(self, kind: str) -> Iterator[None]:
        outer, self._inner = self._inner, 0.0
        start = self._now()
        try:
            yield
        finally:
            passed = self._now() - start
            self.seconds[kind] += passed - self._inner
            self._inner = outer + passed


def plan_steps(recipe: Recipe, prepared: TokenizedTask, *, seed: int) -> tuple[BatchSampler, int]:
    """The batches of a training, and how many steps its budget has."""
    batch = recipe.batch
    order = BatchSampler(prepared.train.lengths, batch_size=batch.size, accumulate=batch.accumulate, seed=seed)
    return order, order.steps_for(**asdict(recipe.budget))


class Loop:
    def __init__(
        self,
        spec: CellSpec,
        *,
        prepared: TokenizedTask,
        applied: Applied,
        accelerator: Accelerator,
        folder: Path,
        progress: Progress,
        stop: StopRequest,
        lease: Lease | None = None,
        group: ProcessGroup = SINGLE_PROCESS,
        untreated: UntreatedMaps | None = None,
    ):
        """Without a lease it writes nothing: of several processes, one has it."""
        self.spec, self.recipe, self.seed = spec, spec.recipe, spec.seed
        self.prepared, self.applied, self.folder = prepared, applied, folder
        self.accelerator, self.progress, self.stop = accelerator, progress, stop
        self.lease, self.group, self.untreated = lease, group, untreated
        self.task, self.pad = prepared.task, prepared.tokenizer.pad_token_id
        self.model: nn.Module = applied.model
        if self.recipe.gradient_checkpointing:
            checkpointing: Any = applied.model
            checkpointing.gradient_checkpointing_enable({"use_reentrant": False})
        self.sharded = self.recipe.parallel == "fsdp" and group.world_size > 1
        if self.sharded:
            shard_(self.model, accelerator.device)
        else:
            self.model.to(accelerator.device)
        self.optimizer = make_optimizer(self.model, self.recipe.optimizer)
        self.objective = Objective(self.model, TASK_KINDS.get(self.task.kind))
        self.wrapped_optimizer = accelerator.prepare_optimizer(self.optimizer)
        self.wrapped_model = self._wrap_model()
        self.order, self.total = plan_steps(self.recipe, prepared, seed=self.seed)
        self.ranks = find_rank_budget(self.model, total=self.total)
        self.state = TrainState()
        self.clock = Clock()
        self.best_weights: dict[str, Tensor] | None = None
        self._best_saved = False
        self._checkpointed = -1
        self._unseen: list[tuple[int, float, Tensor, Tensor, float]] = []
        self._held: tuple[dict[str, int], dict[str, int]] | None = None
        self._log: IO[str] | None = None

    def _wrap_model(self) -> nn.Module:
        """The objective as it is called: with automatic precision, and over several processes with one gradient."""
        if self.group.world_size > 1 and not self.sharded:
            ddp_ignore_frozen(self.objective)
        wrapped = self.accelerator.prepare_model(self.objective, evaluation_mode=self.sharded)  # FSDP wraps nothing
        if self.recipe.compile:
            wrapped.compile()
        return wrapped  # type: ignore[no-any-return]

    def _unfreeze_due(self, progress: float) -> None:
        """Layers that are due learn from here on, and their gradients are added up like all others."""
        if self.applied.advance(progress, optimizer=self.optimizer) and self.group.world_size > 1:
            self.accelerator.unwrap_model(self.wrapped_model, keep_fp32_wrapper=False)
            self.wrapped_model = self._wrap_model()

    # -- training ----------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Train to the end of the budget, measuring, auditing and saving on the way."""
        if self.state.step == 0:
            self._audit()
        while True:
            self._evaluate_if_due()
            self._save_if_due()
            if self.state.step == self.total:
                return
            with self.clock.measure("training"):
                self.step()
            if self.group.any(self.stop.signal is not None):
                self._stop()

    def step(self) -> None:
        began = time.perf_counter()
        step = self.state.step
        if self.applied.treatment.unfreeze is not None:
            self._unfreeze_due(step / self.total)
        lr = lr_at(step, total=self.total, peak=self.recipe.optimizer.lr, schedule=self.recipe.schedule)
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group.get("lr_scale", 1.0)
        passes = self.order.at(step)
        counted = sum(self._weight(rows) for rows in passes)  # examples, or tokens
        loss = torch.zeros((), device=self.accelerator.device)
        for number, rows in enumerate(passes):
            mine = self.group.share(rows)
            with self.clock.measure("data"):
                some = mine if len(mine) else rows[:1]  # who has nothing to do keeps in step with the others
                batch = collate(self.prepared.train, some, pad=self.pad, device=self.accelerator.device)
            apart = () if self.group.world_size == 1 else (self.group.rank,)
            torch.manual_seed(seed_for(self.seed, "dropout", step, number, *apart))
            adds_up = number == len(passes) - 1
            with nullcontext() if adds_up else self._no_sync():
                share = self.wrapped_model(batch.inputs, batch.targets) / counted
                share = share if len(mine) else share * 0
                penalty = self.ranks.penalty() if self.ranks is not None and adds_up else 0.0
                # Gradients are averaged over processes, and should be added.
                self.accelerator.backward(share * self.group.world_size + penalty)
            loss += share.detach()
        norm = self.clip()
        self.wrapped_optimizer.step()
        self.applied.retract()
        if self.ranks is not None:
            self.ranks.advance(step + 1, skipped=self.wrapped_optimizer.step_was_skipped)
        if self.sharded and self._held is None:
            self._held = local_bytes(self.model, self.optimizer)
        self.wrapped_optimizer.zero_grad()
        self.state = replace(self.state, step=step + 1, batches=_chained(self.state.batches, passes))
        self._unseen.append((step, float(self.optimizer.param_groups[0]["lr"]), loss, norm, began))
        if len(self._unseen) == _FLUSH:
            self._flush()

    def _no_sync(self) -> AbstractContextManager[None]:
        """Passes inside add up no gradients over the processes."""
        return no_sync(self.model) if self.sharded else self.accelerator.no_sync(self.wrapped_model)

    def padding(self) -> float:
        """The share of positions that hold no token, in the first batches: what a clock would measure in vain."""
        steps = min(self.total, _LOOKED_AT)
        lengths = [self.prepared.train.lengths[rows] for step in range(steps) for rows in self.order.at(step)]
        return 1 - sum(int(each.sum()) for each in lengths) / sum(len(each) * int(each.max()) for each in lengths)

    def _weight(self, rows: Rows) -> int:
        if isinstance(self.prepared.train, Encoded):
            return self.prepared.train.count_targets(rows)
        return int(self.prepared.train.lengths[rows].sum()) if self.task.kind == "language-modeling" else len(rows)

    def clip(self) -> Tensor:
        """The length of the gradient before clipping."""
        learns = [p for p in self.model.parameters() if p.requires_grad]
        self.accelerator.unscale_gradients()
        norm = torch.nn.utils.get_total_norm([p.grad for p in learns if p.grad is not None])
        sharded: Any = norm
        norm = sharded.full_tensor() if is_sharded(norm) else norm
        # Where looking costs nothing, gradients that are short enough are left alone; elsewhere they are times 1.
        if self.recipe.max_grad_norm is not None and (norm.device.type != "cpu" or norm > self.recipe.max_grad_norm):
            torch.nn.utils.clip_grads_with_norm_(learns, self.recipe.max_grad_norm, norm)
        return norm

    def _flush(self) -> None:
        """Look at the losses since the last look, and write them down."""
        if not self._unseen:
            return
        seen, self._unseen = self._unseen, []
        losses = self.group.all_reduce_sum_(
            torch.stack([loss for _, _, loss, _, _ in seen])
        ).tolist()  # waits for the device
        values = [(loss, float(norm)) for loss, (_, _, _, norm, _) in zip(losses, seen, strict=True)]
        ends = [*(began for *_, began in seen[1:]), time.perf_counter()]
        lines = []
        for (step, lr, _, _, began), (loss, norm), end in zip(seen, values, ends, strict=True):
            row = Step(step=step + 1, loss=loss, lr=lr, grad_norm=norm, seconds=round(end - began, 6))
            lines.append(format_step(row))
        if self._log is not None:
            with writing(self.folder):
                self._log.write("".join(lines))
                self._log.flush()
                os.fsync(self._log.fileno())  # it must not be behind a checkpoint, whatever happens to the machine
        for (step, lr, *_), (loss, norm) in zip(seen, values, strict=True):
            if not math.isfinite(loss):
                raise Diverged(f"the loss of step {step + 1} is {loss} (learning rate {lr:.3g})")
            self.accelerator.log({"train/loss": loss, "train/lr": lr, "train/grad_norm": norm}, step=step + 1)
        self.progress.on_step(self.state.step, loss=values[-1][0])

    def processes(self) -> ProcessStats:
        """How many processes train the cell and how, and the bytes that they exchange in a step, or keep."""
        if self.group.world_size == 1:
            return ProcessStats(number=1)
        if self.sharded:
            held, whole = self._held or (None, None)
            return ProcessStats(number=self.group.world_size, parallel="fsdp", held_bytes=held, whole_bytes=whole)
        reduced, spared = allreduce_bytes(self.wrapped_model)
        return ProcessStats(number=self.group.world_size, parallel="ddp", reduced_bytes=reduced, spared_bytes=spared)

    # -- evaluating --------------------------------------------------------------------------------------------

    def _evaluate_if_due(self) -> None:
        step = self.state.step
        due = step == self.total or (step > 0 and step % self.recipe.evaluate.every == 0)
        if not due or any(row.step == step for row in self.state.evaluations):
            return
        self._flush()
        measured = self.evaluate(self.prepared.validation, "validation")
        score = ValidationScore(step=step, metrics=measured.metrics)
        self.state = replace(self.state, evaluations=(*self.state.evaluations, score))
        self.accelerator.log({f"validation/{name}": value for name, value in measured.metrics.items()}, step=step)
        compare = self.spec.compare
        value = measured.metrics[compare.metric]
        best = self.state.best
        better = best is None or (value > best.value if compare.direction == "higher" else value < best.value)
        if better:
            self.state = replace(self.state, best=BestScore(step=step, value=value))
            self.best_weights, self._best_saved = weights_of(self.model), False
        self.progress.on_evaluation_end(step, measured.metrics)

    def evaluate(self, split: Split, name: str) -> Evaluation:
        def tick(done: int, total: int) -> None:
            self.progress.on_evaluate(name, done, total)
            if self.stop.signal is not None and self.group.world_size == 1:  # several stop after the same step
                self._stop()

        with self.clock.measure("evaluation"), self.accelerator.autocast():
            measured = evaluate(
                self.objective,
                split,
                task=self.task,
                batch_size=self.recipe.batch.size,
                pad=self.pad,
                device=self.accelerator.device,
                group=self.group,
                tick=tick,
            )
        if not math.isfinite(measured.metrics["loss"]):
            raise Diverged(f"the loss on the {name} split is {measured.metrics['loss']} at step {self.state.step}")
        return measured

    def heads(self) -> AttentionStats:
        """The heads as they are now, and what they attend to in the first examples of the validation split."""
        # Never more examples than a step has, so that it is not this that takes the most memory.
        rows = np.arange(min(_HEADS_ROWS, self.recipe.batch.size, len(self.prepared.validation)))
        batch = collate(self.prepared.validation, rows, pad=self.pad, device=self.accelerator.device)
        inputs = {name: tensor[:, :_HEADS_TOKENS] for name, tensor in batch.inputs.items()}
        stats = measure_heads(self.model, inputs)
        return stats if self.untreated is None else self.untreated.compare(self.model, stats)

    def _audit(self) -> None:
        # That every tensor has moved is a promise for the end: early in a warm-up, steps are below rounding.
        audit = self.applied.audit(optimizer=self.optimizer, stepped=self.state.step == self.total)
        findings = tuple(str(finding) for finding in audit.findings)
        outcome = AuditOutcome(step=self.state.step, passed=audit.ok, findings=findings)
        self.state = replace(self.state, audits=(*self.state.audits, outcome))
        audit.check()

    # -- nothing is lost ---------------------------------------------------------------------------------------

    def _save_if_due(self) -> None:
        step = self.state.step
        every = self.recipe.checkpoint.every or self.recipe.evaluate.every
        if (step == self.total or (step > 0 and step % every == 0)) and step != self._checkpointed:
            self._save()

    def _save(self) -> None:
        """Audit, then write a checkpoint."""
        self._flush()
        with self.clock.measure("checkpoints"):
            if self.state.step > 0:
                self._audit()
            self._checkpointed = self.state.step
            writes = self.lease is not None
            if not writes and not self.sharded:
                return
            tensors = {
                "optimizer": optimizer_tensors(self.model, self.optimizer, keep=writes),
                "model": weights_of(self.model),
            }
            if self.lease is None:
                return
            if self.best_weights is not None:
                tensors["best"] = self.best_weights
            if self.ranks is not None:
                tensors["ranks"] = self.ranks.tensors()
            scaler = self.accelerator.scaler.state_dict() if self.accelerator.scaler is not None else None
            memory = peak_memory().at_least(self.state.peak_memory)
            self.state = replace(self.state, seconds=dict(self.clock.seconds), peak_memory=memory)
            state = CheckpointState(
                train=self.state,
                frozen=self.applied.frozen_hashes,
                scaler=scaler,
                groups=group_values(self.optimizer),
                tensors={},
            )
            save_checkpoint(self.lease, state, tensors, same=["best"] if self._best_saved else [])
            self._best_saved = True

    def _stop(self) -> None:
        if self.state.step != self._checkpointed:
            self._save()
        self.group.any(False)  # torchrun ends all when one leaves: nobody does before it is written
        raise Stopped(
            f"stopped at step {self.state.step} of {self.total}; the checkpoint is written",
            signal=self.stop.signal or signal.SIGTERM,  # which another process got
            step=self.state.step,
            total=self.total,
        )

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint, as if there had been no stop."""
        saved = checkpoint.state
        self.state = saved.train
        if self.applied.treatment.unfreeze is not None and self.state.step > 0:
            # The step before the checkpoint is the last at which layers may have been unfrozen.
            self._unfreeze_due((self.state.step - 1) / self.total)
        if saved.frozen != self.applied.frozen_hashes:
            raise CellError(
                "the frozen weights are not those this cell was started with",
                where=str(self.folder),
                why="another version of a library or another machine has drawn them differently",
                hint="resume where it was started, or remove the folder to start again",
            )
        load_weights_(self.model, checkpoint.tensors["model"])
        load_optimizer_(self.model, self.optimizer, checkpoint.tensors["optimizer"])
        load_group_values_(self.optimizer, saved.groups)
        if self.ranks is not None:
            self.ranks.restore(checkpoint.tensors["ranks"])
        if saved.scaler is not None and self.accelerator.scaler is not None:
            self.accelerator.scaler.load_state_dict(saved.scaler)
        self.best_weights = checkpoint.tensors.get("best")
        self._best_saved = True
        self._checkpointed = checkpoint.step
        self.clock = Clock(self.state.seconds)

    def record_launch(self, facts: Provenance) -> None:
        """Keep that the cell goes on here, in this process."""
        launch = Launch(
            step=self.state.step,
            time=facts.time,
            host=facts.host,
            device=facts.device,
            threads=facts.threads,
            processes=self.group.world_size,
            versions=facts.versions,
            oelm=facts.oelm,
            code=facts.code,
            python=facts.python,
        )
        self.state = replace(self.state, launches=(*self.state.launches, launch))

    def open_log(self, history: Path) -> None:
        """Begin the log of steps with those of a folder, without those that will be done again."""
        if self.lease is None:
            return
        done = [format_step(step) for step in read_written_steps(history) if step.step <= self.state.step]
        if len(done) < self.state.step:
            self.progress.on_message(f"{STEPS} is damaged: of {self.state.step} steps, {len(done)} can be read")
        self._log = self.lease.rewrite(STEPS, "".join(done))

    def close_log(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None


def _chained(before: str, passes: list[Rows]) -> str:
    digest = hashlib.sha256(before.encode())
    for rows in passes:
        digest.update(rows.tobytes())
        digest.update(b"|")
    return digest.hexdigest()
