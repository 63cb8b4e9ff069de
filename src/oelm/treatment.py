"""Treatment: what is done to the queries and keys of a model. Pure data; imports no torch."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from fractions import Fraction
from typing import Any, Literal, Self, get_args

from oelm.errors import TreatmentError, did_you_mean

Init = Literal[
    "keep",
    "orthogonalize",
    "orthogonal",
    "polar",
    "orthogonalize-global",
    "orthogonal-global",
    "frames",
    "identity",
    "gaussian",
    "zero",
]
Freeze = Literal["none", "q", "k", "qk"]
Bias = Literal["freeze", "train"]
UnfreezeOrder = Literal["top-down", "bottom-up"]
Role = Literal["q", "k"]

RowGeometry = Literal["orthonormal", "orthogonal", "any"]
Scale = Literal["unit", "match", "keep"]

# Inits whose weights do not depend on those that they replace.
DRAWN: frozenset[str] = frozenset({"orthogonal", "orthogonal-global", "identity", "gaussian", "zero"})
# Inits that turn a head into other coordinates, to which its query bias is carried.
TURNED: frozenset[str] = frozenset({"orthogonalize", "polar", "frames"})
# Inits that write biases too.
WRITES_BIAS: frozenset[str] = TURNED | {"zero"}
# Inits that factor all heads of a projection at once, so heads are orthogonal to each other too.
GLOBAL: frozenset[str] = frozenset({"orthogonalize-global", "orthogonal-global"})
# Inits that need H*D <= M: the rows of all heads together must fit into the width.
FITS_WIDTH: frozenset[str] = GLOBAL | {"identity"}


@dataclass(frozen=True, kw_only=True)
class Unfreeze:
    """Unfreeze frozen layers during training, one by one."""

    start: float
    """Fraction of the budget at which the first layer is unfrozen."""
    end: float
    """Fraction of the budget at which the last layer is unfrozen."""
    order: UnfreezeOrder = "top-down"
    """`top-down` starts with the layer nearest to the output."""

    def __post_init__(self) -> None:
        for name in ("start", "end"):
            value = getattr(self, name)
            if not _is_number(value) or not 0 <= value <= 1:
                raise TreatmentError(f"unfreeze.{name} must be a fraction of the budget from 0 to 1, got {value!r}")
        if self.start > self.end:
            raise TreatmentError(f"unfreeze.start ({self.start}) must not come after unfreeze.end ({self.end})")
        _check_choice("unfreeze.order", self.order, get_args(UnfreezeOrder))

    def unfrozen_layers(self, layers: Sequence[int], progress: float) -> list[int]:
        """Which of the frozen `layers` are trainable again at `progress` (0 to 1) of the budget."""
        if progress < self.start:
            return []
        span = self.end - self.start
        share = 1.0 if progress >= self.end or span == 0 else (progress - self.start) / span
        # The first layer is unfrozen at `start` and the last at `end`; the others evenly in between.
        number = 1 + math.floor(share * (len(layers) - 1) + 1e-9)
        ordered = sorted(layers, reverse=self.order == "top-down")
        return sorted(ordered[:number])


@dataclass(frozen=True, kw_only=True)
class Treatment:
    """What is done to Q/K. `init`, `scale` and `freeze` are independent."""

    init: Init = "keep"
    """How every head's block of weights is initialized, for queries and keys."""
    scale: Scale | float | None = None
    """`unit`: orthonormal rows unscaled (`gaussian`: entry std 1/sqrt(width)); `match`: the Frobenius norm of the
    replaced block, or of the form for `frames`; `keep`: the spectrum of `frames`; a number: the entry std of
    `gaussian`. The default is `keep` for `frames`, else `unit`."""
    blend: float = 1.0
    """How far to go, from 0 (as it was) to 1: of the weights, or of the spectrum of `frames`."""
    carry_bias: bool = True
    """Whether the query bias is carried to the new coordinates of its head (`orthogonalize`, `polar`, `frames`)."""
    keep_orthonormal: bool = False
    """Whether trainable rows are made orthonormal again after every optimizer step."""
    freeze: Freeze = "none"
    """What is frozen."""
    bias: Bias = "freeze"
    """Whether the biases of a frozen projection are frozen too."""
    layers: str | tuple[int, ...] = "all"
    """Which layers: `all`, `0-5`, `(0, 2, 4)`, `first:0.5`, `last:0.25`."""
    unfreeze: Unfreeze | None = None
    """A schedule that unfreezes layers, or a mapping of its fields."""

    def __post_init__(self) -> None:
        _check_choice("init", self.init, get_args(Init))
        _check_choice("freeze", self.freeze, get_args(Freeze))
        _check_choice("bias", self.bias, get_args(Bias))
        object.__setattr__(self, "scale", _checked_scale(self.init, self.scale))
        object.__setattr__(self, "blend", _checked_blend(self.init, self.scale, self.blend))
        for name in ("carry_bias", "keep_orthonormal"):
            if not isinstance(getattr(self, name), bool):
                raise TreatmentError(f"{name} must be true or false, got {getattr(self, name)!r}")
        if not self.carry_bias and self.init not in ("orthogonalize", "polar"):
            raise TreatmentError(
                f"carry_bias false: '{self.init}' carries none that it could leave",
                hint="omit carry_bias, or use init 'orthogonalize' or 'polar'",
            )
        object.__setattr__(self, "layers", _checked_layers(self.layers))
        unfreeze: object = self.unfreeze
        if unfreeze is not None and not isinstance(unfreeze, Unfreeze):
            object.__setattr__(self, "unfreeze", Unfreeze(**_known_fields(Unfreeze, unfreeze, "unfreeze.")))
        if self.freeze == "none":
            if self.bias == "train":
                raise TreatmentError(
                    "bias 'train' applies to frozen projections, but freeze is 'none'",
                    hint="omit bias, or use freeze 'q', 'k' or 'qk'",
                )
            if self.unfreeze is not None:
                raise TreatmentError(
                    "unfreeze needs frozen layers, but freeze is 'none'", hint="use freeze 'q', 'k' or 'qk'"
                )
        if (
            self.init == "zero"
            and self.blend == 1
            and (self.freeze != "qk" or self.bias == "train" or self.unfreeze is not None)
        ):
            raise TreatmentError(
                "init 'zero' needs freeze 'qk': queries and keys that are all zero have no gradient",
                hint="use freeze 'qk', without bias 'train' and unfreeze",
            )
        if self.keep_orthonormal and (self.rows != "orthonormal" or self.freeze != "none"):
            raise TreatmentError(
                "keep_orthonormal needs orthonormal rows that are trainable",
                hint="use an orthonormal init, scale 'unit' or 'match', blend 1 and freeze 'none'",
            )

    @property
    def rows(self) -> RowGeometry:
        """What the rows of every written head are; `orthonormal` up to the scale."""
        if self.init in ("keep", "gaussian", "zero"):
            return "any"
        if self.init == "frames":
            return "orthogonal" if self.scale == "keep" or self.blend < 1 else "orthonormal"
        return "orthonormal" if self.blend == 1 else "any"

    @property
    def frozen_roles(self) -> tuple[Role, ...]:
        roles: tuple[Role, ...] = ("q", "k")
        return tuple(role for role in roles if self.freeze != "none" and role in self.freeze)

    def to_dict(self) -> dict[str, object]:
        """Plain data for JSON and YAML; `Treatment.from_dict` reads it back."""
        data: dict[str, object] = asdict(self)
        if isinstance(self.layers, tuple):
            data["layers"] = list(self.layers)
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> Self:
        return cls(**_known_fields(cls, data, ""))

    def __str__(self) -> str:
        parts: list[str] = [self.init]
        if self.scale is not None:
            parts.append(f"scale {self.scale}")
        if self.blend != 1:
            parts.append(f"blend {self.blend:g}")
        if not self.carry_bias:
            parts.append("query bias not carried")
        if self.keep_orthonormal:
            parts.append("kept orthonormal")
        parts.append(f"freeze {self.freeze}" + (" (biases train)" if self.bias == "train" else ""))
        parts.append(f"layers {self.layers if isinstance(self.layers, str) else list(self.layers)}")
        if self.unfreeze is not None:
            parts.append(f"unfreeze {self.unfreeze.order} {self.unfreeze.start:g}-{self.unfreeze.end:g}")
        return ", ".join(parts)


def select_layers(layers: str | Iterable[int], num_layers: int) -> list[int]:
    """The layers that `layers` selects in a model of `num_layers`, in ascending order."""
    layers = _checked_layers(layers)
    if isinstance(layers, tuple):
        chosen = sorted(layers)
    elif layers == "all":
        chosen = list(range(num_layers))
    elif ":" in layers:
        side, share = layers.split(":")
        number = math.floor(Fraction(share) * num_layers + Fraction(1, 2))  # half a layer counts as one
        chosen = list(range(number)) if side == "first" else list(range(num_layers - number, num_layers))
    else:
        first, last = (int(text) for text in layers.split("-"))
        chosen = list(range(first, last + 1))
    beyond = [layer for layer in chosen if layer >= num_layers]
    if beyond:
        raise TreatmentError(
            f"layers {_format_layers(layers)} asks for layer {beyond[0]}, but the model has {num_layers} "
            f"attention layer{'s' if num_layers != 1 else ''}",
            hint=f"layers from 0 to {num_layers - 1}, or 'all'",
        )
    if not chosen:
        raise TreatmentError(
            f"layers {_format_layers(layers)} selects none of the model's {num_layers} layers",
            hint="a larger share, or freeze='none', init='keep' for an untreated model",
        )
    return chosen


_RANGE = re.compile(r"(\d+)-(\d+)")
_SHARE = re.compile(r"(first|last):(\d+(\.\d*)?|\.\d+)")


def _checked_layers(layers: object) -> str | tuple[int, ...]:
    if isinstance(layers, str):
        span = _RANGE.fullmatch(layers)
        if span and int(span[1]) > int(span[2]):
            raise TreatmentError(f"layers '{layers}' runs backwards", hint=f"'{span[2]}-{span[1]}'")
        share = _SHARE.fullmatch(layers)
        if share and not 0 <= Fraction(share[2]) <= 1:
            raise TreatmentError(f"layers '{layers}': the share must be at most 1")
        if layers == "all" or span or share:
            return layers
    elif isinstance(layers, Iterable):
        numbers = tuple(layers)
        if all(isinstance(number, int) and not isinstance(number, bool) and number >= 0 for number in numbers):
            if len(set(numbers)) < len(numbers):
                raise TreatmentError(f"layers {list(numbers)} names a layer twice")
            return numbers
    raise TreatmentError(
        f"invalid layers {_format_layers(layers)}",
        hint="use 'all', '0-5', [0, 2, 4], 'first:0.5' or 'last:0.25'",
    )


def _checked_scale(init: str, scale: object) -> object:
    if init in ("keep", "zero"):
        if scale is not None:
            why = "does not change the weights" if init == "keep" else "has no length"
            raise TreatmentError(
                f"scale {scale!r} needs another init: '{init}' {why}", hint="omit scale, or use another init"
            )
        return None
    if scale == "keep" and init != "frames":
        raise TreatmentError(
            f"scale 'keep' is the spectrum of a head's form, which '{init}' does not have",
            hint="scale 'unit' or 'match', or init 'frames'",
        )
    if scale is None:
        return "keep" if init == "frames" else "unit"
    if scale in ("unit", "match", "keep"):
        return scale
    if not _is_number(scale):
        raise TreatmentError(
            f"scale must be 'unit', 'match' or a number, got {scale!r}" + did_you_mean(scale, ["unit", "match"])
        )
    if init != "gaussian":
        raise TreatmentError(
            f"scale {scale!r}: a number is the entry std of 'gaussian'; '{init}' rows have a norm, not a std",
            hint="scale 'unit' or 'match', or init 'gaussian'",
        )
    if not (math.isfinite(scale) and scale > 0):  # type: ignore[operator, arg-type]
        raise TreatmentError(f"scale must be a positive number, got {scale!r}")
    return float(scale)  # type: ignore[arg-type]


def _checked_blend(init: str, scale: object, blend: object) -> float:
    if not _is_number(blend) or not 0 <= blend <= 1:  # type: ignore[operator]
        raise TreatmentError(f"blend must be a number from 0 to 1, got {blend!r}")
    if blend != 1 and "keep" in (init, scale):
        what = "init" if init == "keep" else "scale"
        raise TreatmentError(f"blend needs another {what}: 'keep' changes nothing that could be blended")
    return float(blend)  # type: ignore[arg-type]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_choice(field: str, value: object, choices: Sequence[str]) -> None:
    if value not in choices:
        raise TreatmentError(
            f"{field} {value!r} is not known{did_you_mean(value, choices)}", hint=f"one of {', '.join(choices)}"
        )


def _known_fields(cls: type[Treatment] | type[Unfreeze], data: object, prefix: str) -> dict[str, Any]:
    names = [field.name for field in fields(cls)]
    if not isinstance(data, Mapping):
        raise TreatmentError(f"expected a mapping of {', '.join(names)}, got {data!r}")
    for name in data:
        if name not in names:
            raise TreatmentError(
                f"unknown field '{prefix}{name}'{did_you_mean(name, names)}", hint=f"one of {', '.join(names)}"
            )
    for field in fields(cls):
        if field.default is MISSING and field.name not in data:
            raise TreatmentError(f"'{prefix}{field.name}' is missing")
    return dict(data)


def _format_layers(layers: object) -> str:
    return repr(list(layers)) if isinstance(layers, tuple) else repr(layers)
