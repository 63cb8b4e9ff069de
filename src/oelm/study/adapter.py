"""Adapter: what an arm trains instead of all weights, new ones beside them (by PEFT) or a part of them. No torch."""

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from typing import Any, Literal

from oelm.errors import did_you_mean
from oelm.format import format_count
from oelm.study.problems import Problems, report_unknown, shorten

Trains = Literal["all", "biases", "head", "norms"]
"""What of the model itself learns. The task head always does."""

# The class of its configuration in PEFT.
KINDS = {
    "lora": "LoraConfig",
    "adalora": "AdaLoraConfig",
    "ia3": "IA3Config",
    "loha": "LoHaConfig",
    "lokr": "LoKrConfig",
    "oft": "OFTConfig",
}
# What oelm itself gives to PEFT.
_OURS = {"modules_to_save": "the task head always trains", "total_step": "it is that of the budget"}
# Where an adapter may begin: with what PEFT draws by itself and leaves the weights below as they are.
_INITS = {"lora": (True, False, "gaussian", "orthogonal"), "adalora": (True, False)}
# Options that take more than PEFT's model: without it they would be something else than their name says.
_NEEDS = {
    **dict.fromkeys(("eva_config", "corda_config", "lora_ga_config"), "a pass over data before the training"),
    **dict.fromkeys(("kasa_config", "monteclora_config"), "a part of the loss of its own"),
    "loftq_config": "a quantized model",
    "arrow_config": "adapters that are trained already",
}


@dataclass(frozen=True, kw_only=True)
class Adapter:
    kind: str
    """One of PEFT's: `lora`, `adalora`, `ia3`, `loha`, `lokr`, `oft`."""
    options: dict[str, Any] = field(default_factory=dict)
    """Keywords of PEFT's own configuration: `r`, `lora_alpha`, `target_modules`, ..."""

    def to_dict(self) -> dict[str, Any]:
        """In the form of a study file."""
        return {"kind": self.kind, **self.options}

    def __str__(self) -> str:
        shown = {name: " ".join(map(str, v)) if isinstance(v, list) else v for name, v in self.options.items()}
        options = ", ".join(f"{name} {value}" for name, value in shown.items())
        return f"{self.kind} ({options})" if options else self.kind


def read_adapter(raw: Any, at: str, problems: Problems) -> Adapter | None:
    """The `adapter:` of an arm; its options are looked up in PEFT if that is installed."""
    if raw is None:
        return None
    if not isinstance(raw, Mapping) or not isinstance(raw.get("kind"), str):
        problems.add(at, f"must be a mapping such as {{kind: lora, r: 8}}, got {shorten(raw)}")
        return None
    kind, options = raw["kind"], {str(name): value for name, value in raw.items() if name != "kind"}
    if kind not in KINDS:
        problems.add(f"{at}.kind", f"'{kind}' is not known{did_you_mean(kind, KINDS)}; one of {', '.join(KINDS)}")
        return None
    for name in options.keys() & _OURS.keys():
        problems.add(f"{at}.{name}", f"is not for a study to say: {_OURS[name]}")
    for name, value in options.items():
        if isinstance(value, float) and not isfinite(value):
            problems.add(f"{at}.{name}", f"must be a finite number, got {value}")
    if kind == "adalora" and "r" in options:
        problems.add(f"{at}.r", "is not read by AdaLoRA; use init_r and target_r")
    for name in options.keys() & _NEEDS.keys():
        problems.add(f"{at}.{name}", f"needs {_NEEDS[name]}, which oelm does not make; leave it out")
    inits = _INITS.get(kind, ())
    if inits and (init := options.get("init_lora_weights", True)) not in inits:
        works = ", ".join(str(one).lower() for one in inits)
        reason = "others need a pass over data or change the weights below"
        problems.add(f"{at}.init_lora_weights", f"{shorten(init)} does not work here; one of {works} ({reason})")
    known = option_names(kind)
    if known is not None:
        report_unknown({name: None for name in options if name not in _OURS}, known, f"{at}.", problems)
    return Adapter(kind=kind, options=options)


def rank_steps_problem(*, tinit: int, tfinal: int, total: int) -> str | None:
    """What is wrong with AdaLoRA's schedule in a training of `total` steps: ranks are taken away after step `tinit`, by
    what at least one step has measured, until `tfinal` steps before the end."""
    least = max(tinit, 1) + tfinal + 1
    if total >= least:
        return None
    taken = f", of which tinit takes {tinit} and tfinal {tfinal}" if tinit or tfinal else ""
    other = ", or a smaller tinit or tfinal" if tinit or tfinal else ""
    return (
        f"AdaLoRA has no step to take ranks away in: the budget is {format_count(total, 'step')}{taken}; "
        f"use at least {least}{other}"
    )


def option_names(kind: str) -> set[str] | None:
    """The fields of PEFT's configuration of this kind, from its source: to import it takes torch, and seconds.

    None where PEFT is not installed.
    """
    peft = find_spec("peft")
    if peft is None or peft.origin is None:
        return None
    try:
        return _fields(KINDS[kind], Path(peft.origin).parent / "tuners" / kind / "config.py") - _OURS.keys()
    except OSError:  # a PEFT whose files lie elsewhere: it says itself what it does not know
        return None


def _fields(name: str, source: Path) -> set[str]:
    """Those of a dataclass and of its parents, wherever they are imported from; without those of every adapter, which
    oelm gives."""
    if name == "PeftConfig":
        return set()
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            lines = [line.target for line in node.body if isinstance(line, ast.AnnAssign)]
            parents = [base.id for base in node.bases if isinstance(base, ast.Name)]
            own = {target.id for target in lines if isinstance(target, ast.Name)}
            return own.union(*(_fields(parent, source) for parent in parents))
        if isinstance(node, ast.ImportFrom) and name in {alias.name for alias in node.names}:
            return _fields(name, _imported(node, source))
    return set()


def _imported(node: ast.ImportFrom, source: Path) -> Path:
    """The file that `from ... import` in a module of PEFT reads."""
    package = next(folder for folder in source.parents if folder.name == "peft")
    start = source.parents[node.level - 1] if node.level else package.parent
    path = start.joinpath(*(node.module or "").split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
