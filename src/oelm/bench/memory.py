"""Memory: what a training step needs, by theory, by the tensors that are there, and at the peak of a fresh process.

Run as a program, it is that process.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oelm.bench.processes import answering, arm_in, ask

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from oelm.train.loop import Loop
    from oelm.train.signals import Stop

STEPS = 3
"""Enough for a peak: the optimiser's state is there from the first step on, and the second has it beside gradients."""
_MOMENTS = 2
_STEP_COUNTER = 4  # bytes: AdamW counts its steps in a float32 for every tensor


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes of a training step, by what they are for."""

    parameters: int
    """Weights, frozen or not."""
    gradients: int
    optimizer: int
    activations: int | None = None
    """All the rest at the peak, where it was measured."""

    @property
    def learning(self) -> int:
        """What only weights that learn need: 12 bytes for each in float32 under Adam."""
        return self.gradients + self.optimizer

    def to_dict(self) -> dict[str, int | None]:
        return asdict(self)


def theory(model: nn.Module) -> Memory:
    """By arithmetic, for AdamW: a gradient and two moments for every weight that learns."""
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    gradients = _bytes(learning)
    return Memory(
        parameters=_bytes(model.parameters()),
        gradients=gradients,
        optimizer=_MOMENTS * gradients + _STEP_COUNTER * len(learning),
    )


def held(model: nn.Module, optimizer: torch.optim.Optimizer) -> Memory:
    """By the tensors that are there now. Between backward pass and step, gradients are; after a step, moments are."""
    from torch import Tensor

    states = (value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor))
    return Memory(
        parameters=_bytes(model.parameters()),
        gradients=_bytes(p.grad for p in model.parameters() if p.grad is not None),
        optimizer=_bytes(states),
    )


def checkpoint_bytes(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """What a checkpoint would hold: all weights, tied ones once, and the optimiser's state."""
    from oelm.train.checkpoint import optimizer_tensors, weights_of

    weights = _bytes(weights_of(model).values())
    state = _bytes(optimizer_tensors(model, optimizer).values())
    return {"weights": weights, "optimizer": state, "total": weights + state}


def peak_of(
    study: str | Path | Mapping[str, Any],
    arm: str,
    seed: int,
    *,
    steps: int = STEPS,
    overrides: Sequence[str] = (),
    stop: Stop | None = None,
) -> dict[str, Any]:
    """Train some steps of an arm in a process of its own, and return what it measured, in bytes.

    `study` is a file, the name of a shipped study, or plain data in that form (which takes no `overrides`). The peak is
    that of the process on a CPU, and of tensors on a GPU: `before` the first step and after the last (`peak`). The
    `activations` are what is left of their difference without gradients and optimiser; on a CPU also the libraries'
    own buffers, so that small ones drown.
    """
    question = {
        "study": dict(study) if isinstance(study, Mapping) else str(study),
        "arm": arm,
        "seed": seed,
        "steps": steps,
        "overrides": list(overrides),
    }
    failing = f"the memory of arm '{arm}' could not be measured"
    return ask("oelm.bench.memory", question, failing=failing, stop=stop)


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


# -- the process ---------------------------------------------------------------------------------------------------


def _measured(question: dict[str, Any]) -> dict[str, Any]:
    with arm_in(question) as loop:
        return {"arm": question["arm"], "seed": question["seed"], **_trained(loop, question["steps"])}


def _trained(loop: Loop, steps: int) -> dict[str, Any]:
    from oelm.records.provenance import forget_peak_memory

    with_gradients: list[Memory] = []

    def look(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        with_gradients.append(held(loop.model, optimizer))

    handle = loop.optimizer.register_step_pre_hook(look)
    forget_peak_memory()
    before = _peak()
    number = min(steps, loop.total)
    for _ in range(number):
        loop.step()
    peak = _peak()
    handle.remove()
    gradients = max(memory.gradients for memory in with_gradients)
    after = held(loop.model, loop.optimizer)
    return {
        "device": loop.accelerator.device.type,
        "steps": number,
        "before": before,
        "peak": peak,
        "parameters": after.parameters,
        "gradients": gradients,
        "optimizer": after.optimizer,
        "activations": max(0, peak - before - gradients - after.optimizer),
        "theory": theory(loop.model).to_dict(),
        "checkpoint": checkpoint_bytes(loop.model, loop.optimizer),
    }


def _peak() -> int:
    from oelm.records.provenance import peak_memory

    peak = peak_memory()
    on_gpu, process = peak["gpu"], peak["process"]
    assert process is not None
    return process if on_gpu is None else on_gpu


if __name__ == "__main__":
    sys.exit(answering(_measured))
