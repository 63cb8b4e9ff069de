"""Stepper: one arm, timed step by step, and in a step forward, backward and optimiser apart."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from oelm.data.batches import Batch
from oelm.train.evaluate import losses
from oelm.train.loop import Loop

PARTS = ("forward", "backward", "optimizer")


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
    """An arm with its own model and optimiser."""

    def __init__(self, loop: Loop, *, now: Callable[[], float] = time.perf_counter):
        self.loop, self._now = loop, now
        loop.model.train()
        for group in loop.optimizer.param_groups:
            group["lr"] = loop.recipe.optimizer.lr

    def visit(self, steps: Sequence[Sequence[Batch]]) -> NDArray[np.float64]:
        """Train these steps, each of one or more passes; the seconds of their parts, (steps, 3)."""
        marks = [self._step(passes) for passes in steps]
        return np.array([_by_part(one.seconds()) for one in marks])

    def _step(self, passes: Sequence[Batch]) -> Marks:
        loop, marks = self.loop, Marks(self.loop.accelerator.device, now=self._now)
        counted = sum(batch.targets.numel() for batch in passes)
        marks.mark()
        for batch in passes:
            loss = losses(loop.runner, batch)[0].sum() / counted
            marks.mark()
            loop.accelerator.backward(loss)
            marks.mark()
        loop.clip()
        loop.stepper.step()
        loop.stepper.zero_grad()
        marks.mark()
        return marks


def _by_part(seconds: list[float]) -> tuple[float, float, float]:
    """Forward and backward take turns, once a pass; the optimiser is last."""
    *passes, optimizer = seconds
    return sum(passes[0::2]), sum(passes[1::2]), optimizer
