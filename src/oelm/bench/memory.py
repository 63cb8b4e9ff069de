"""Memory: what a training step needs, by theory, by the tensors that are there, and at the peak of a fresh process.

Run as a program, this module is that fresh process.
"""

import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from oelm.bench.isolate import ArmQuestion, arm_loop, run_in_child, serve_child
from oelm.runs.bench import CheckpointBytes, MeasuredMemory, StepMemory
from oelm.runs.provenance import peak_memory, reset_peak_memory
from oelm.study.recipe import OptimizerConfig
from oelm.study.study import Study
from oelm.train.checkpoint import optimizer_tensors, weights_of
from oelm.train.loop import Loop
from oelm.train.optim import learning_parameters, optimizer_state_bytes
from oelm.train.signals import StopRequest

STEPS = 3
"""Enough for a peak: the optimizer's state is there from the first step on, and the second has it beside gradients."""
_ADAMW = OptimizerConfig(lr=1.0)


def theoretical_memory(model: nn.Module, optimizer: OptimizerConfig = _ADAMW) -> StepMemory:
    """By arithmetic: a gradient for every weight that learns, and what the optimizer keeps of it.

    The state of an optimizer that is not known is estimated as that of AdamW.
    """
    gradients = _bytes(learning_parameters(model))
    state = optimizer_state_bytes(model, optimizer)
    if state is None:
        state = optimizer_state_bytes(model, _ADAMW)
    assert state is not None
    return StepMemory(parameters=_bytes(model.parameters()), gradients=gradients, optimizer=state)


def count_memory(model: nn.Module, optimizer: torch.optim.Optimizer) -> StepMemory:
    """By the tensors that are there now. Between backward pass and step, gradients are; after a step, moments are."""
    states = (value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor))
    return StepMemory(
        parameters=_bytes(model.parameters()),
        gradients=_bytes(p.grad for p in model.parameters() if p.grad is not None),
        optimizer=_bytes(states),
    )


def checkpoint_bytes(model: nn.Module, optimizer: torch.optim.Optimizer) -> CheckpointBytes:
    """What a checkpoint would hold: all weights, and the optimizer's state."""
    return CheckpointBytes(
        weights=_bytes(weights_of(model).values()), optimizer=_bytes(optimizer_tensors(model, optimizer).values())
    )


def measure_peak_memory(
    study: Study, arm: str, *, steps: int = STEPS, stop: StopRequest | None = None
) -> MeasuredMemory:
    """Train some steps of an arm in a process of its own, and return what it measured.

    The `activations` are what is left of `peak - before` without gradients and optimizer; on a CPU also the libraries'
    own buffers, so that small ones drown.
    """
    question = ArmQuestion(study=study.to_dict(), arm=arm, steps=steps)
    failing = f"the memory of arm '{arm}' could not be measured"
    return run_in_child("oelm.bench.memory", question, MeasuredMemory, failing=failing, stop=stop)


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


# -- the process ---------------------------------------------------------------------------------------------------


def _answer_memory(question: ArmQuestion) -> MeasuredMemory:
    with arm_loop(question) as loop:
        return _train(loop, min(question.steps, loop.total))


def _train(loop: Loop, steps: int) -> MeasuredMemory:
    with_gradients: list[StepMemory] = []

    def look(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        with_gradients.append(count_memory(loop.model, optimizer))

    handle = loop.optimizer.register_step_pre_hook(look)
    reset_peak_memory()
    before = _peak()
    for _ in range(steps):
        loop.step()
    peak = _peak()
    handle.remove()
    gradients = max(memory.gradients for memory in with_gradients)
    after = count_memory(loop.model, loop.optimizer)
    # What is not known is not claimed.
    is_known = optimizer_state_bytes(loop.model, loop.recipe.optimizer) is not None
    return MeasuredMemory(
        device=loop.accelerator.device.type,
        steps=steps,
        before=before,
        peak=peak,
        parameters=after.parameters,
        gradients=gradients,
        optimizer=after.optimizer,
        activations=max(0, peak - before - gradients - after.optimizer),
        theory=theoretical_memory(loop.model, loop.recipe.optimizer) if is_known else None,
        checkpoint=checkpoint_bytes(loop.model, loop.optimizer),
    )


def _peak() -> int:
    peak = peak_memory()
    return peak.process if peak.gpu is None else peak.gpu


if __name__ == "__main__":
    sys.exit(serve_child(ArmQuestion, _answer_memory))
