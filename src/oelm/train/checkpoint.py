"""Checkpoint: everything a cell needs to resume as if it had never stopped.

A checkpoint is a folder `step-000500` with safetensors files and `state.json`, which has their checksums. It appears
complete or not at all, and the last two are kept: a damaged one falls back to the one before.
"""

import hashlib
import os
import shutil
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from oelm.errors import CellError
from oelm.heads.sharded import full_tensor, is_sharded, shard_like
from oelm.runs.files import disk_full, open_regular, writing
from oelm.runs.layout import CHECKPOINTS
from oelm.runs.lease import Lease
from oelm.runs.train_state import STATE_FILE, CheckpointState
from oelm.sync import sync

KEPT = 2
# What reading a damaged checkpoint raises.
# A file that cannot be read at the moment (no permission, too many open files) is not damaged.
_DAMAGED = (
    FileNotFoundError,
    NotADirectoryError,
    CellError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    RecursionError,
    SafetensorError,
)


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    state: CheckpointState
    tensors: dict[str, dict[str, Tensor]]
    """`model`, `optimizer`, and where there are any, `best` and the `ranks` of AdaLoRA."""

    @property
    def step(self) -> int:
        return self.state.train.step


def save_checkpoint(
    lease: Lease,
    state: CheckpointState,
    tensors: dict[str, dict[str, Tensor]],
    *,
    same: Collection[str] = (),
) -> None:
    """Write a checkpoint; the checksums of its tensors are filled in. What is in `same` has not changed since the last
    one, and is linked from there, where the file system has links."""
    folder = lease.folder / CHECKPOINTS
    name = f"step-{state.train.step:07d}"
    partial = lease.staging / f"new-{name}"
    before = _folders(folder)[:1]
    try:
        with writing(folder):
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            sums = {}
            for part, values in tensors.items():
                file = partial / f"{part}.safetensors"
                if not (part in same and before and _linked(before[0], file)):
                    _save(values, file)
                sums[part] = _checksum(file)
            STATE_FILE.write(partial, replace(state, tensors=sums))
            lease.publish(partial, f"{CHECKPOINTS}/{name}")
            sync(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        lease.check()  # if it is not ours any more, that is what happened
        raise
    for old in _folders(folder)[KEPT:]:
        lease.remove(old)


def latest_checkpoint(folder: Path, *, log: Callable[[str], None]) -> Checkpoint | None:
    """The newest checkpoint that is complete. Damaged ones are renamed, and `log` gets a line."""
    for path in _folders(folder):
        try:
            return _load(path)
        except _DAMAGED as error:
            aside = path.with_name(f"damaged-{path.name}")
            with writing(folder):
                if os.path.lexists(aside):
                    shutil.rmtree(aside) if aside.is_dir() and not aside.is_symlink() else aside.unlink()
                path.rename(aside)
            why = " ".join(str(error).split())[:200]
            log(f"checkpoint {path.name} is damaged ({why}); falling back to the one before")
    return None


def _read_state(path: Path) -> CheckpointState:
    file = path / STATE_FILE.name
    with open_regular(file) as handle:  # an OSError is no damage
        return STATE_FILE.parse(handle.read(), where=file)


def _load(path: Path) -> Checkpoint:
    state = _read_state(path)
    tensors = {}
    for name, expected in state.tensors.items():
        file = path / f"{name}.safetensors"
        if _checksum(file) != expected:
            raise ValueError(f"the checksum of {file.name} does not match")
        tensors[name] = load_file(file)
    return Checkpoint(state=state, tensors=tensors)


def _folders(folder: Path) -> list[Path]:
    """Newest first. What is in the place of one and is none is damaged, as all who read it find."""
    found = (path for path in folder.glob("step-*") if _step(path).isdecimal())
    return sorted(found, key=lambda path: int(_step(path)), reverse=True)


def _step(folder: Path) -> str:
    return folder.name.removeprefix("step-")


def _save(values: dict[str, Tensor], file: Path) -> None:
    try:
        save_file(values, file)
    except SafetensorError as error:
        if "os error 28" in str(error) or "os error 27" in str(error) or "os error 122" in str(error):
            raise disk_full(file.parent.parent) from error
        raise
    sync(file)


def _linked(before: Path, new: Path) -> bool:
    """Whether the file was there in the checkpoint before, still is what it was, and is now here too."""
    old = before / new.name
    try:
        if _checksum(old) != _read_state(before).tensors[new.stem]:
            return False
        os.link(old, new)
    except (*_DAMAGED, OSError):  # nor has every file system links
        return False
    return True


def _checksum(file: Path) -> str:
    with open_regular(file) as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


# What follows gathers what several processes keep shards of: they all call it, and the main one writes it.


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """A copy of all weights in memory, tied ones once."""
    seen: set[int] = set()
    copy = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if _place(tensor) not in seen or tensor.numel() == 0:
            seen.add(_place(tensor))
            copy[name] = full_tensor(tensor).detach().to("cpu", copy=True).contiguous()
    return copy


def load_weights_(model: nn.Module, weights: dict[str, Tensor]) -> None:
    own = model.state_dict(keep_vars=True)
    mine = {name: shard_like(tensor, own[name]) if name in own else tensor for name, tensor in weights.items()}
    missing, unexpected = model.load_state_dict(mine, strict=False)
    loaded = {_place(own[name]) for name in weights if name in own}
    lost = [name for name in missing if _place(own[name]) not in loaded]  # tied ones came under another name
    if lost or unexpected:
        raise ValueError(f"weights of another model: {[*lost, *unexpected][:3]}")


def _place(tensor: Tensor) -> int:
    """The same for tied weights."""
    return id(tensor) if is_sharded(tensor) else tensor.data_ptr()


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer, *, keep: bool = True) -> dict[str, Tensor]:
    """The state of every parameter, by name. Who is not to `keep` it has only given its shards."""
    tensors = {}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            if not isinstance(value, Tensor):
                tensors[f"{name}|{key}|{type(value).__name__}"] = _as_tensor(value, key, optimizer)
                continue
            all_of_it = full_tensor(value)
            if keep:
                tensors[f"{name}|{key}"] = all_of_it.detach().to("cpu", copy=True).contiguous()
    return tensors


# Numbers that an optimizer keeps in plain Python are of their own type again when they are read.
_NUMBERS: dict[str, tuple[type, torch.dtype]] = {
    "bool": (bool, torch.bool),
    "int": (int, torch.int64),
    "float": (float, torch.float64),
    "NoneType": (type(None), torch.bool),
}


def _as_tensor(value: Any, key: str, optimizer: torch.optim.Optimizer) -> Tensor:
    kind = type(value).__name__
    if kind not in _NUMBERS:
        raise CellError(
            f"the state of {type(optimizer).__name__} cannot be written into a checkpoint",
            why=f"'{key}' of a parameter is {kind}, not a tensor or a number",
        )
    return torch.tensor(False if value is None else value, dtype=_NUMBERS[kind][1])


def group_values(optimizer: torch.optim.Optimizer) -> tuple[dict[str, int | float], ...]:
    """The numbers in the groups of an optimizer: some keep what they have learned there."""
    return tuple({k: v for k, v in group.items() if type(v) in (int, float)} for group in optimizer.param_groups)


def load_optimizer_(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    parameters = dict(model.named_parameters())
    fused = {p for group in optimizer.param_groups if group.get("fused") for p in group["params"]}
    optimizer.state.clear()
    for name, value in tensors.items():
        parameter, key, *kind = name.split("|")
        owner = parameters[parameter]
        if kind:
            optimizer.state[owner][key] = None if kind == ["NoneType"] else _NUMBERS[kind[0]][0](value.item())
            continue
        # Adam counts its steps in a tensor of its own; fused kernels want it on the device, others on the CPU.
        if key != "step" or owner in fused:
            value = value.to(owner.device)
        optimizer.state[owner][key] = shard_like(value, owner) if value.ndim else value


def load_group_values_(optimizer: torch.optim.Optimizer, values: Sequence[dict[str, int | float]]) -> None:
    for group, numbers in zip(optimizer.param_groups, values, strict=True):
        group.update(numbers)
