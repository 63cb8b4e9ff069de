"""Loop: the training of one cell, the same for all arms and tasks, from wherever it was left.

Everything random is a function of the seed and the step, so what is not in a checkpoint is not needed.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import signal
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from oelm.data.batches import Order, Rows, collate
from oelm.data.tokens import Prepared, Split
from oelm.errors import CellError, Stopped
from oelm.heads.applied import Applied
from oelm.heads.attention import measure_heads
from oelm.records.lease import Lease
from oelm.records.store import STEPS, writing
from oelm.seeds import seed_for
from oelm.study.plan import Resolved
from oelm.study.schedule import lr_at
from oelm.train.checkpoint import (
    Checkpoint,
    load_optimizer_,
    load_weights_,
    optimizer_tensors,
    save_checkpoint,
    weights_of,
)
from oelm.train.clock import Clock
from oelm.train.evaluate import Measured, evaluate
from oelm.train.objective import Objective
from oelm.train.optim import make_optimizer
from oelm.train.ranks import ALONE, Ranks, spare_frozen, traffic
from oelm.train.shards import held, not_adding_up, shard_
from oelm.train.signals import Stop
from oelm.train.watch import Watch

_LOOKED_AT = 200  # steps
_FLUSH = 10  # steps between two looks at the loss: each look makes a GPU wait
_HEADS_ROWS, _HEADS_TOKENS = 8, 128  # examples, and tokens of each, on which attention is measured


class Diverged(Exception):
    """The loss is no number any more."""


@dataclass
class State:
    """What a cell has been through so far; all of it is in every checkpoint."""

    step: int = 0
    batches: str = ""
    """SHA-256 chained over the examples of every step."""
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    chosen: dict[str, Any] | None = None
    """Step and value of the best evaluation so far."""
    audits: list[dict[str, Any]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    starts: list[dict[str, Any]] = field(default_factory=list)
    """When, where and at which step the cell was started."""


class Loop:
    """The training of one cell."""

    def __init__(
        self,
        resolved: Resolved,
        *,
        prepared: Prepared,
        applied: Applied,
        accelerator: Accelerator,
        folder: Path,
        watch: Watch,
        stop: Stop,
        lease: Lease | None = None,
        ranks: Ranks = ALONE,
    ):
        """Without a lease it writes nothing: of several processes, one has it."""
        self.resolved, self.recipe, self.seed = resolved, resolved.recipe, resolved.cell.seed
        self.prepared, self.applied, self.folder = prepared, applied, folder
        self.accelerator, self.watch, self.stop = accelerator, watch, stop
        self.lease, self.ranks = lease, ranks
        self.task, self.pad = prepared.task, prepared.tokenizer.pad_token_id
        self.model: nn.Module = applied.model
        if self.recipe.gradient_checkpointing:
            checkpointing: Any = applied.model
            checkpointing.gradient_checkpointing_enable({"use_reentrant": False})
        self.sharded = self.recipe.parallel == "fsdp" and ranks.number > 1
        if self.sharded:
            shard_(self.model, accelerator.device)
        else:
            self.model.to(accelerator.device)
        self.optimizer = make_optimizer(self.model, self.recipe.optimizer)
        self.objective = Objective(self.model)
        self.stepper = accelerator.prepare_optimizer(self.optimizer)
        self.runner = self._wrapped()
        batch = self.recipe.batch
        self.order = Order(prepared.train.lengths, batch_size=batch.size, accumulate=batch.accumulate, seed=self.seed)
        self.total = self.order.steps_for(**asdict(self.recipe.budget))
        self.state = State()
        self.clock = Clock()
        self.chosen_weights: dict[str, Tensor] | None = None
        self._chosen_saved = False
        self._checkpointed = -1
        self._unseen: list[tuple[int, float, Tensor, Tensor, float]] = []
        self._held: dict[str, Any] = {}
        self._log: IO[str] | None = None

    def _wrapped(self) -> nn.Module:
        """The objective as it is called: with automatic precision, and over several processes with one gradient."""
        if self.ranks.number > 1 and not self.sharded:
            spare_frozen(self.objective)
        runner = self.accelerator.prepare_model(self.objective, evaluation_mode=self.sharded)  # FSDP wraps nothing
        if self.recipe.compile:
            runner.compile()
        return runner  # type: ignore[no-any-return]

    def _give_back(self, progress: float) -> None:
        """Layers that are due learn from here on, and their gradients are added up like all others."""
        if self.applied.advance(progress, optimizer=self.optimizer) and self.ranks.number > 1:
            self.accelerator.unwrap_model(self.runner, keep_fp32_wrapper=False)
            self.runner = self._wrapped()

    # -- the whole of it ---------------------------------------------------------------------------------------

    def run(self) -> None:
        """Train to the end of the budget, measuring, auditing and saving on the way."""
        if self.state.step == 0:
            self._audit()
        while True:
            self._measure_if_due()
            self._save_if_due()
            if self.state.step == self.total:
                return
            with self.clock.measure("training"):
                self.step()
            if self.ranks.any(self.stop.signal is not None):
                self._stop()

    def step(self) -> None:
        """One optimiser step."""
        began = time.perf_counter()
        step = self.state.step
        if self.applied.treatment.unfreeze is not None:
            self._give_back(step / self.total)
        lr = lr_at(step, total=self.total, peak=self.recipe.optimizer.lr, schedule=self.recipe.schedule)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        passes = self.order.at(step)
        counted = sum(self._weight(rows) for rows in passes)  # examples, or tokens
        loss = torch.zeros((), device=self.accelerator.device)
        for number, rows in enumerate(passes):
            mine = self.ranks.share(rows)
            with self.clock.measure("data"):
                some = mine if len(mine) else rows[:1]  # who has nothing to do keeps in step with the others
                batch = collate(self.prepared.train, some, pad=self.pad, device=self.accelerator.device)
            apart = () if self.ranks.number == 1 else (self.ranks.mine,)
            torch.manual_seed(seed_for(self.seed, "dropout", step, number, *apart))
            adds_up = number == len(passes) - 1
            with nullcontext() if adds_up else self._apart():
                share = self.runner(batch.inputs, batch.targets) / counted
                share = share if len(mine) else share * 0
                # Gradients are averaged over processes, and should be added.
                self.accelerator.backward(share * self.ranks.number)
            loss += share.detach()
        norm = self.clip()
        self.stepper.step()
        if self.sharded and not self._held:
            self._held = held(self.model, self.optimizer)
        self.stepper.zero_grad()
        self.state.step += 1
        self.state.batches = _chained(self.state.batches, passes)
        self._unseen.append((step, float(self.optimizer.param_groups[0]["lr"]), loss, norm, began))
        if len(self._unseen) == _FLUSH:
            self._flush()

    def _apart(self) -> AbstractContextManager[None]:
        """Passes inside add up no gradients over the processes."""
        return not_adding_up(self.model) if self.sharded else self.accelerator.no_sync(self.runner)

    def padding(self) -> float:
        """The share of positions that hold no token, in the first batches: what a clock would measure in vain."""
        steps = min(self.total, _LOOKED_AT)
        lengths = [self.prepared.train.lengths[rows] for step in range(steps) for rows in self.order.at(step)]
        return 1 - sum(int(each.sum()) for each in lengths) / sum(len(each) * int(each.max()) for each in lengths)

    def _weight(self, rows: Rows) -> int:
        return len(rows) if self.task.kind == "classification" else int(self.prepared.train.lengths[rows].sum())

    def clip(self) -> Tensor:
        """The length of the gradient before clipping."""
        learns = [p for p in self.model.parameters() if p.requires_grad]
        self.accelerator.unscale_gradients()
        norm = torch.nn.utils.get_total_norm([p.grad for p in learns if p.grad is not None])
        norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        # Where looking costs nothing, gradients that are short enough are left alone; elsewhere they are times 1.
        if self.recipe.clip is not None and (norm.device.type != "cpu" or norm > self.recipe.clip):
            torch.nn.utils.clip_grads_with_norm_(learns, self.recipe.clip, norm)
        return norm

    def _flush(self) -> None:
        """Look at the losses since the last look, and write them down."""
        if not self._unseen:
            return
        seen, self._unseen = self._unseen, []
        losses = self.ranks.add_(torch.stack([loss for _, _, loss, _, _ in seen])).tolist()  # waits for the device
        values = [(loss, float(norm)) for loss, (_, _, _, norm, _) in zip(losses, seen, strict=True)]
        ends = [*(began for *_, began in seen[1:]), time.perf_counter()]
        lines = []
        for (step, lr, _, _, began), (loss, norm), end in zip(seen, values, ends, strict=True):
            row = {"step": step + 1, "loss": loss, "lr": lr, "grad_norm": norm, "seconds": round(end - began, 6)}
            lines.append(json.dumps(row) + "\n")
        if self._log is not None:
            with writing(self.folder):
                self._log.write("".join(lines))
                self._log.flush()
                os.fsync(self._log.fileno())  # it must not be behind a checkpoint, whatever happens to the machine
        for (step, lr, *_), (loss, norm) in zip(seen, values, strict=True):
            if not math.isfinite(loss):
                raise Diverged(f"the loss of step {step + 1} is {loss} (learning rate {lr:.3g})")
            self.accelerator.log({"train/loss": loss, "train/lr": lr, "train/grad_norm": norm}, step=step + 1)
        self.watch.stepped(self.state.step, loss=values[-1][0])

    def processes(self) -> dict[str, Any]:
        """How many processes train the cell and how, and the bytes that they exchange in a step, or keep."""
        if self.ranks.number == 1:
            return {"number": 1}
        bytes_ = self._held if self.sharded else traffic(self.runner)
        return {"number": self.ranks.number, "parallel": self.recipe.parallel, **bytes_}

    # -- measuring ---------------------------------------------------------------------------------------------

    def _measure_if_due(self) -> None:
        step = self.state.step
        due = step == self.total or (step > 0 and step % self.recipe.evaluate.every == 0)
        if not due or any(row["step"] == step for row in self.state.evaluations):
            return
        self._flush()
        measured = self.measure(self.prepared.select, "select")
        if not math.isfinite(measured.metrics["loss"]):
            raise Diverged(f"the loss on the selection split is {measured.metrics['loss']} at step {step}")
        self.state.evaluations.append({"step": step, **measured.metrics})
        self.accelerator.log({f"select/{name}": value for name, value in measured.metrics.items()}, step=step)
        primary = self.resolved.study.compare.primary
        value = measured.metrics[primary.metric]
        best = self.state.chosen
        better = best is None or (value > best["value"] if primary.better == "higher" else value < best["value"])
        if better:
            self.state.chosen = {"step": step, "value": value}
            self.chosen_weights, self._chosen_saved = weights_of(self.model), False
        self.watch.evaluated(step, measured.metrics)

    def measure(self, split: Split, name: str) -> Measured:
        def tick(done: int, total: int) -> None:
            self.watch.evaluates(name, done, total)
            if self.stop.signal is not None and self.ranks.number == 1:  # several stop after the same step
                self._stop()

        with self.clock.measure("evaluation"), self.accelerator.autocast():
            return evaluate(
                self.objective,
                split,
                task=self.task,
                batch_size=self.recipe.batch.size,
                pad=self.pad,
                device=self.accelerator.device,
                ranks=self.ranks,
                tick=tick,
            )

    def heads(self) -> dict[str, Any]:
        """The heads as they are now, and what they attend to in the first examples of the selection split."""
        # Never more examples than a step has, so that it is not this that takes the most memory.
        rows = np.arange(min(_HEADS_ROWS, self.recipe.batch.size, len(self.prepared.select)))
        batch = collate(self.prepared.select, rows, pad=self.pad, device=self.accelerator.device)
        return measure_heads(self.model, {name: tensor[:, :_HEADS_TOKENS] for name, tensor in batch.inputs.items()})

    def _audit(self) -> None:
        # That every tensor has moved is a promise for the end: early in a warm-up, steps are below rounding.
        audit = self.applied.audit(optimizer=self.optimizer, stepped=self.state.step == self.total)
        findings = [str(finding) for finding in audit.findings]
        self.state.audits.append({"step": self.state.step, "passed": audit.ok, "findings": findings})
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
            if self.chosen_weights is not None:
                tensors["chosen"] = self.chosen_weights
            scaler = self.accelerator.scaler.state_dict() if self.accelerator.scaler is not None else None
            self.state.seconds = dict(self.clock.seconds)
            state = {**asdict(self.state), "frozen": self.applied.frozen_hashes, "scaler": scaler}
            save_checkpoint(
                self.lease,
                step=self.state.step,
                state=state,
                tensors=tensors,
                same=["chosen"] if self._chosen_saved else [],
            )
            self._chosen_saved = True

    def _stop(self) -> None:
        if self.state.step != self._checkpointed:
            self._save()
        self.ranks.any(False)  # torchrun ends all when one leaves: nobody does before it is written
        raise Stopped(
            f"stopped at step {self.state.step} of {self.total}; the checkpoint is written",
            signal=self.stop.signal or signal.SIGTERM,  # which another process got
        )

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint, as if there had been no stop."""
        state = dict(checkpoint.state)
        frozen, scaler = state.pop("frozen"), state.pop("scaler")
        self.state = State(**state)
        if self.applied.treatment.unfreeze is not None and self.state.step > 0:
            # The step before the checkpoint is the last at which layers may have been given back.
            self._give_back((self.state.step - 1) / self.total)
        if frozen != self.applied.frozen_hashes:
            raise CellError(
                "the frozen weights are not those this cell was started with",
                where=str(self.folder),
                why="another version of a library or another machine has drawn them differently",
                hint="go on where it was started, or remove the folder to start anew",
            )
        load_weights_(self.model, checkpoint.tensors["model"])
        load_optimizer_(self.model, self.optimizer, checkpoint.tensors["optimizer"])
        if scaler is not None and self.accelerator.scaler is not None:
            self.accelerator.scaler.load_state_dict(scaler)
        self.chosen_weights = checkpoint.tensors.get("chosen")
        self._chosen_saved = True
        self._checkpointed = checkpoint.step
        self.clock = Clock(self.state.seconds)

    def open_log(self) -> None:
        """Begin the log of steps, without those that will be done again."""
        if self.lease is None:
            return
        path = self.folder / STEPS
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
        done = [line for line in lines if 0 < _step_in(line) <= self.state.step]
        self._log = self.lease.rewrite(STEPS, "".join(f"{line}\n" for line in done))

    def close_log(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None


def _step_in(line: str) -> int:
    """The step that a line of the log is about; 0 for one that was not written whole."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, LookupError, TypeError):
        return 0


def _chained(before: str, passes: list[Rows]) -> str:
    digest = hashlib.sha256(before.encode())
    for rows in passes:
        digest.update(rows.tobytes())
        digest.update(b"|")
    return digest.hexdigest()
