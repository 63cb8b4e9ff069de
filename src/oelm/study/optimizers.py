"""Optimizers: every one that a recipe can name, and the options it takes. No torch: `train/optim.py` builds them.

`register_optimizer` adds to the table.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, make_dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge, Interval, Le

from oelm.errors import StudyError, did_you_mean
from oelm.study.forbid_extra import ForbidExtra

_Fraction = Annotated[float, Interval(ge=0, lt=1)]

BuildOptimizer = Callable[..., Any]
"""`build(groups, lr=..., **options)` returns a `torch.optim.Optimizer`; so does the class of any."""


@dataclass(frozen=True, kw_only=True)
class NoOptions(ForbidExtra):
    """AdamW and Adam have `betas` and `eps`, and no other options."""


@dataclass(frozen=True, kw_only=True)
class SgdOptions(ForbidExtra):
    momentum: _Fraction = 0.0
    dampening: _Fraction = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        if self.nesterov and (not self.momentum or self.dampening):
            raise ValueError("nesterov needs a momentum, and no dampening")


@dataclass(frozen=True, kw_only=True)
class AdafactorOptions(ForbidExtra):
    """Of torch's own: its rate is `lr` times the size of the weight, and never above 1 / sqrt(step) times it."""

    beta2_decay: Annotated[float, Le(0)] = -0.8
    clip_threshold: Annotated[float, Ge(1)] = 1.0
    """Largest root mean square of an update."""
    min_scale: Annotated[float, Ge(0)] = 1e-3
    """Smallest size of a weight that its rate is taken times."""


@dataclass(frozen=True, kw_only=True)
class MuonOptions(ForbidExtra):
    """Of matrices inside the blocks; embeddings, heads and vectors are AdamW's, with `betas` and `eps`."""

    momentum: _Fraction = 0.95
    nesterov: bool = True
    ns_steps: Annotated[int, Interval(ge=1, le=99)] = 5
    """Newton-Schulz iterations."""
    adjust_lr: Literal["match_rms_adamw", "original"] = "match_rms_adamw"
    """Both kinds of weights have one learning rate; `match_rms_adamw` makes Muon's updates as large as AdamW's."""


@dataclass(frozen=True, kw_only=True)
class OptimizerEntry:
    """A row of the table."""

    name: str
    options: type = NoOptions
    """The dataclass of its own options."""
    has_betas: bool = False
    """Whether `betas` and `eps` are for it."""
    is_elementwise: bool = False
    """Whether what it keeps of a weight has the weight's shape, so that it can be sharded like the weight."""
    build: BuildOptimizer | None = None
    """Of a registered one; the others are built in `train/optim.py`."""


OPTIMIZERS: dict[str, OptimizerEntry] = {
    entry.name: entry
    for entry in (
        OptimizerEntry(name="adamw", has_betas=True, is_elementwise=True),
        OptimizerEntry(name="adam", has_betas=True, is_elementwise=True),
        OptimizerEntry(name="sgd", options=SgdOptions, is_elementwise=True),
        OptimizerEntry(name="adafactor", options=AdafactorOptions),
        OptimizerEntry(name="muon", options=MuonOptions, has_betas=True),
    )
}


def register_optimizer(name: str, build: BuildOptimizer, *, options: Mapping[str, Any] | None = None) -> None:
    """Add an optimizer that recipes can name: `oelm.register_optimizer("rmsprop", torch.optim.RMSprop)`.

    `build(groups, lr=..., **options)` is given groups of parameters that learn, with their `weight_decay`. A recipe may
    change the `options`, whose values here are the defaults and say the types. What the optimizer keeps of each weight
    (in `state`) and numbers in its groups are in every checkpoint; it should keep nothing elsewhere.
    """
    if not re.fullmatch(r"[A-Za-z][\w-]*", name):
        raise StudyError(f"'{name}' cannot be the name of an optimizer", hint="letters, digits, '_' and '-'")
    if name in OPTIMIZERS:
        raise StudyError(f"optimizer '{name}' exists already", hint="another name")
    if not callable(build):
        raise StudyError(f"optimizer '{name}' cannot be built", why=f"{build!r} is not a function or a class")
    OPTIMIZERS[name] = OptimizerEntry(name=name, options=_options_class(name, options or {}), build=build)


def find_optimizer(name: str) -> OptimizerEntry:
    if name not in OPTIMIZERS:
        known = ", ".join(OPTIMIZERS)
        raise StudyError(f"unknown optimizer '{name}'{did_you_mean(name, OPTIMIZERS)}", hint=f"one of {known}")
    return OPTIMIZERS[name]


def _options_class(name: str, defaults: Mapping[str, Any]) -> type:
    rows = []
    for option, value in defaults.items():
        if not option.isidentifier() or option in ("groups", "params", "lr"):
            raise StudyError(f"optimizer '{name}' cannot have an option '{option}'")
        if not isinstance(value, bool | int | float | str | None):
            raise StudyError(f"option '{option}' of optimizer '{name}' must be a single value, got {value!r}")
        kind: Any = Any if value is None else type(value)
        rows.append((option, kind, field(default=value)))
    return make_dataclass(
        f"{name.title()}Options",
        rows,
        bases=(ForbidExtra,),
        frozen=True,
        kw_only=True,
        namespace={"__module__": __name__},
    )
