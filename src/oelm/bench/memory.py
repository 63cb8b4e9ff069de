"""Memory: what a training step needs, by theory, by the tensors that are there, and at the peak of a fresh process.

And whether all arms fit at once into the memory that is free. Run as a program, this module is that fresh process.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from oelm.bench.isolate import arm_loop, run_in_child, serve_child
from oelm.runs.provenance import peak_memory, reset_peak_memory
from oelm.study.schema import OptimizerConfig
from oelm.train.checkpoint import optimizer_tensors, weights_of
from oelm.train.loop import Loop
from oelm.train.optim import learning_parameters, optimizer_state_bytes
from oelm.train.signals import StopRequest

STEPS = 3
"""Enough for a peak: the optimizer's state is there from the first step on, and the second has it beside gradients."""
_USABLE = 0.8  # of what is free: longer batches may come, and allocators keep some for themselves
_SYSTEM, _GROUPS = Path("/proc"), Path("/sys/fs/cgroup")
# Limit and use of a group of processes, in both versions of the system.
_LIMITS = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))
_ADAMW = OptimizerConfig(lr=1.0)


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


def theoretical_memory(model: nn.Module, optimizer: OptimizerConfig = _ADAMW) -> Memory:
    """By arithmetic: a gradient for every weight that learns, and what the optimizer keeps of it.

    The state of an optimizer that is not known is estimated as that of AdamW.
    """
    gradients = _bytes(learning_parameters(model))
    state = optimizer_state_bytes(model, optimizer)
    if state is None:
        state = optimizer_state_bytes(model, _ADAMW)
    assert state is not None
    return Memory(
        parameters=_bytes(model.parameters()),
        gradients=gradients,
        optimizer=state,
    )


def count_memory(model: nn.Module, optimizer: torch.optim.Optimizer) -> Memory:
    """By the tensors that are there now. Between backward pass and step, gradients are; after a step, moments are."""
    states = (value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor))
    return Memory(
        parameters=_bytes(model.parameters()),
        gradients=_bytes(p.grad for p in model.parameters() if p.grad is not None),
        optimizer=_bytes(states),
    )


def checkpoint_bytes(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """What a checkpoint would hold: all weights, tied ones once, and the optimizer's state."""
    weights = _bytes(weights_of(model).values())
    state = _bytes(optimizer_tensors(model, optimizer).values())
    return {"weights": weights, "optimizer": state, "total": weights + state}


def measure_peak_memory(
    study: str | Path | Mapping[str, Any],
    arm: str,
    seed: int,
    *,
    steps: int = STEPS,
    overrides: Sequence[str] = (),
    stop: StopRequest | None = None,
) -> dict[str, Any]:
    """Train some steps of an arm in a process of its own, and return what it measured, in bytes.

    `study` is a file, the name of a shipped study, or plain data in that form (which takes no `overrides`). The peak is
    that of the process on a CPU, and of tensors on a GPU: `before` the first step and after the last (`peak`). The
    `activations` are what is left of their difference without gradients and optimizer; on a CPU also the libraries'
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
    return run_in_child("oelm.bench.memory", question, failing=failing, stop=stop)


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


# -- what is free ---------------------------------------------------------------------------------------------------


class InsufficientMemory(MemoryError):
    """The arms would not fit into memory together."""


def reason_to_isolate(arms: Sequence[Mapping[str, Any]], *, device: str, allocated: int = 0) -> str | None:
    """Why these arms cannot be in memory together; None if they can, or if nobody says what is free.

    `arms` are bytes by what they are for, as `memory.Memory` has them; `allocated` of them are taken already.
    """
    need, free = needed_bytes(arms) - allocated, free_bytes(device)
    if free is None or need <= _USABLE * free:
        return None
    limit = f"{_USABLE:.0%} of the {_format_bytes(free)} that are free may be used"
    return f"all {len(arms)} arms need {_format_bytes(need)} more, and {limit}"


def needed_bytes(arms: Sequence[Mapping[str, Any]]) -> int:
    """Bytes of several arms in one process: all weights and moments, but gradients and activations of one at a time."""
    passing = max(arm["gradients"] + (arm["activations"] or 0) for arm in arms)
    return int(sum(arm["parameters"] + arm["optimizer"] for arm in arms) + passing)


def free_bytes(device: str) -> int | None:
    """What a process could still take, on a GPU or of the machine's memory; None where the system does not say."""
    if device == "cuda":
        return int(torch.cuda.mem_get_info()[0])
    return min((*_free_on_machine(), *_free_in_cgroups()), default=None)


def _free_on_machine() -> Iterator[int]:
    for line in _read(_SYSTEM / "meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            yield int(line.split()[1]) * 1024


def _free_in_cgroups() -> Iterator[int]:
    """What the limits of containers and batch systems leave: that of our own group, and of all groups around it."""
    for line in _read(_SYSTEM / "self" / "cgroup").splitlines():
        _, kinds, path = line.split(":", 2)
        if kinds not in ("", "memory"):
            continue
        root = _GROUPS / kinds
        own = root / path.lstrip("/")  # seen from inside a container, it may not be there: then only its root is
        for folder in (own, *own.parents):
            if not folder.is_relative_to(root):
                break
            for limit, used in _LIMITS:
                numbers = [_read(folder / name).strip() for name in (limit, used)]
                if all(number.isdigit() for number in numbers):
                    most, now = map(int, numbers)
                    yield max(0, most - now + _page_cache(folder))


def _page_cache(folder: Path) -> int:
    """Bytes of a group that are only files kept at hand, and given up when memory is short."""
    rows = (line.split() for line in _read(folder / "memory.stat").splitlines())
    return next((int(row[1]) for row in rows if row[0] in ("inactive_file", "total_inactive_file")), 0)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _format_bytes(number: int) -> str:
    return f"{number / 2**30:.1f} GiB" if number >= 2**30 else f"{number / 2**20:.0f} MiB"


# -- the process ---------------------------------------------------------------------------------------------------


def _answer_memory(question: dict[str, Any]) -> dict[str, Any]:
    with arm_loop(question) as loop:
        return {"arm": question["arm"], "seed": question["seed"], **_train(loop, question["steps"])}


def _train(loop: Loop, steps: int) -> dict[str, Any]:
    with_gradients: list[Memory] = []

    def look(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        with_gradients.append(count_memory(loop.model, optimizer))

    handle = loop.optimizer.register_step_pre_hook(look)
    reset_peak_memory()
    before = _peak()
    number = min(steps, loop.total)
    for _ in range(number):
        loop.step()
    peak = _peak()
    handle.remove()
    gradients = max(memory.gradients for memory in with_gradients)
    after = count_memory(loop.model, loop.optimizer)
    # What is not known is not claimed.
    is_known = optimizer_state_bytes(loop.model, loop.recipe.optimizer) is not None
    return {
        "device": loop.accelerator.device.type,
        "steps": number,
        "before": before,
        "peak": peak,
        "parameters": after.parameters,
        "gradients": gradients,
        "optimizer": after.optimizer,
        "activations": max(0, peak - before - gradients - after.optimizer),
        "theory": theoretical_memory(loop.model, loop.recipe.optimizer).to_dict() if is_known else None,
        "checkpoint": checkpoint_bytes(loop.model, loop.optimizer),
    }


def _peak() -> int:
    peak = peak_memory()
    on_gpu, process = peak["gpu"], peak["process"]
    assert process is not None
    return process if on_gpu is None else on_gpu


if __name__ == "__main__":
    sys.exit(serve_child(_answer_memory))
