"""Stepper: one arm, timed step by step, and in a step forward, backward and optimizer apart."""

import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

from oelm.bench.interleave import TimedBlock
from oelm.data.batches import Batch, collate
from oelm.train.loop import Loop


class Marks:
    """Points in time on a device, read when all of them are over.

    On a GPU they are events of its own queue, so that marking does not make it wait.
    """

    def __init__(self, device: torch.device, *, now: Callable[[], float] = time.perf_counter):
        self._device, self._now = device, now
        self._points: list[float] = []
        self._events: list[torch.cuda.Event] = []

    def mark(self) -> None:
        if self._device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            self._events.append(event)
        else:
            if self._device.type != "cpu":
                torch.accelerator.synchronize(self._device)
            self._points.append(self._now())

    def seconds(self) -> list[float]:
        """Between each mark and the next."""
        if self._device.type != "cuda":
            return [end - begin for begin, end in zip(self._points, self._points[1:], strict=False)]
        torch.accelerator.synchronize(self._device)
        pairs = zip(self._events, self._events[1:], strict=False)
        return [begin.elapsed_time(end) / 1000 for begin, end in pairs]


class Stepper:
    """An arm with its own model and optimizer."""

    def __init__(self, loop: Loop, *, now: Callable[[], float] = time.perf_counter):
        self.loop, self._now = loop, now
        loop.model.train()
        for group in loop.optimizer.param_groups:
            group["lr"] = loop.recipe.optimizer.lr * group.get("lr_scale", 1.0)

    def time_steps(self, first: int, steps: int) -> TimedBlock:
        """Train on the batches of these steps of the study, which are made before the clock runs."""
        batches = [self._batches(step) for step in range(first, first + steps)]
        marks = [self._step(passes) for passes in batches]
        return TimedBlock(
            seconds=np.array([_by_part(one.seconds()) for one in marks]),
            lengths=tuple(batch.inputs["input_ids"].shape[1] for passes in batches for batch in passes),
        )

    def _batches(self, step: int) -> list[Batch]:
        """The passes of a step, on the device."""
        loop = self.loop
        device = loop.accelerator.device
        return [collate(loop.prepared.train, rows, pad=loop.pad, device=device) for rows in loop.order.at(step)]

    def _step(self, passes: Sequence[Batch]) -> Marks:
        loop, marks = self.loop, Marks(self.loop.accelerator.device, now=self._now)
        counted = sum(batch.targets.numel() for batch in passes)
        marks.mark()
        for batch in passes:
            loss = loop.wrapped_model(batch.inputs, batch.targets) / counted
            marks.mark()
            loop.accelerator.backward(loss)
            marks.mark()
        loop.clip()
        loop.wrapped_optimizer.step()
        loop.wrapped_optimizer.zero_grad()
        marks.mark()
        return marks


def _by_part(seconds: list[float]) -> tuple[float, float, float]:
    """Forward and backward take turns, once a pass; the optimizer is last."""
    *passes, optimizer = seconds
    return sum(passes[0::2]), sum(passes[1::2]), optimizer
