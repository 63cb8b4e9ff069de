"""Adapters: the model of an arm, with an adapter of PEFT or with all frozen but a part; and how it is saved."""

import copy
import logging
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from oelm.analysis.design import is_pretrained
from oelm.data.kinds.table import TASK_KINDS
from oelm.data.tasks import Task
from oelm.errors import ModelError, require
from oelm.facts import Counts
from oelm.heads.applied import Applied, fingerprint
from oelm.heads.apply import apply
from oelm.heads.count import count, freezing_savings, saved_buffers
from oelm.heads.freeze import has_adapters, in_task_head, task_head_parameters
from oelm.heads.save import save_pretrained
from oelm.models.folder import BASE
from oelm.models.load import replaced_head
from oelm.seeds import seed_for
from oelm.study.adapter import KINDS, Adapter, Trains
from oelm.study.cells import CellSpec


def treat_arm(model: nn.Module, spec: CellSpec, *, task: Task, inputs: Mapping[str, Tensor]) -> Applied:
    """The model as its arm trains it: an adapter is added or a part frozen, then queries and keys are treated.

    In this order the base weights below an adapter are treated, and what is frozen already is seen by every audit.
    """
    model = adapt_model(model, adapter=spec.adapter, trains=spec.trains, task=task, seed=spec.seed)
    by_design = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    separate_qk = spec.recipe.optimizer.qk_lr is not None
    applied = apply(model, spec.treatment, seed=spec.seed, inputs=inputs, keep_undo=False, separate_qk=separate_qk)
    applied.frozen_by_design = frozenset(by_design)
    for name in [name for name in applied.fingerprints if ".lora_E." in name]:
        del applied.fingerprints[name]  # AdaLoRA takes ranks away by what they began with, 0
    return applied


def adapt_model(model: nn.Module, *, adapter: Adapter | None, trains: Trains, task: Task, seed: int) -> nn.Module:
    """The model before its treatment: with its adapter, or with all frozen but what it trains."""
    if adapter is not None:
        return _add_adapter(model, adapter, head=_task_head(model, task), task=task, seed=seed)
    if trains != "all":
        _freeze_all_but(model, trains, head=_task_head(model, task))
    return model


def _task_head(model: nn.Module, task: Task) -> dict[str, nn.Parameter]:
    """What always trains: of a classifier all outside the base model, and of any model what its files did not have.

    A pretrained pooler is a part of the base, and so is the output head of a language model.
    """
    parameters = dict(model.named_parameters())
    head = set(replaced_head(model).new)
    if task.kind != "language-modeling" and (task.kind not in TASK_KINDS or TASK_KINDS[task.kind].has_head):
        inside = f"{getattr(model, 'base_model_prefix', '')}."
        head |= {name for name in in_task_head(model, parameters) if not name.startswith(inside)}
    return {name: parameter for name, parameter in parameters.items() if name in head}


# -- a part of the model -------------------------------------------------------------------------------------------


def _freeze_all_but(model: nn.Module, trains: Trains, *, head: Mapping[str, nn.Parameter]) -> None:
    if trains == "head":
        chosen = list((head or task_head_parameters(model)).values())
    else:
        always = set(map(id, head.values()))
        chosen = [parameter for parameter in _part(model, trains) if id(parameter) not in always]
    if not chosen:
        raise ModelError(f"{type(model).__name__} has no {trains} to train", where=f"trains: {trains}")
    learns = {*map(id, chosen), *map(id, head.values())}
    for parameter in model.parameters():
        parameter.requires_grad_(id(parameter) in learns)


def _part(model: nn.Module, trains: Trains) -> Iterable[nn.Parameter]:
    if trains == "biases":
        return [parameter for name, parameter in model.named_parameters() if name.endswith("bias")]
    norms = [module for module in model.modules() if "norm" in type(module).__name__.lower()]
    return [parameter for module in norms for parameter in module.parameters(recurse=False)]


# -- an adapter ----------------------------------------------------------------------------------------------------


def _peft_task(task: Task) -> str:
    if task.kind in TASK_KINDS:
        return TASK_KINDS[task.kind].peft_task
    return "CAUSAL_LM" if task.kind == "language-modeling" else "SEQ_CLS"


def _add_adapter(
    model: nn.Module, adapter: Adapter, *, head: Mapping[str, nn.Parameter], task: Task, seed: int
) -> nn.Module:
    require("adapters", needed_by=f"an adapter ({adapter.kind})")
    peft = _import_peft()
    before = [(parameter, fingerprint(parameter)) for parameter in model.parameters() if not parameter.is_meta]
    new_head = sum(parameter.numel() for parameter in head.values())
    inside = f"{getattr(model, 'base_model_prefix', '')}."
    modules = {name.rpartition(".")[0] if name.startswith(inside) else name.split(".")[0] for name in head}
    options = {
        **adapter.options,
        "task_type": _peft_task(task),
        "modules_to_save": sorted(modules - {"classifier", "score"}),  # which PEFT adds to a task of classes
    }
    if adapter.kind == "adalora":
        options["total_step"] = 2**31  # until the loop knows it
    names = _linear_names(model)  # as long as it has no others
    try:
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what it sets right by itself: `fan_in_fan_out`
            torch.manual_seed(seed_for(seed, "adapter"))
            adapted: nn.Module = peft.get_peft_model(model, getattr(peft, KINDS[adapter.kind])(**options))
    except Exception as error:  # a library may raise anything about its options
        what = f"PEFT cannot add the adapter to a {type(model).__name__}"
        why = " ".join(str(error).split())[:300]
        hint = f"target_modules: [{', '.join(names)}], or some of them" if "target" in why.lower() else None
        raise ModelError(what, where=f"adapter: {adapter}", why=why, hint=hint) from error
    config: Any = adapted.peft_config["default"]  # type: ignore[index]
    if adapter.kind == "adalora" and config.init_r <= config.target_r:
        raise ModelError(
            "AdaLoRA has no ranks to take away",
            where=f"adapter: {adapter}",
            why=f"it begins with init_r {config.init_r} and is to end with target_r {config.target_r}",
            hint="a larger init_r, or kind: lora",
        )
    if any(fingerprint(parameter) != bits for parameter, bits in before):
        raise ModelError(
            "the adapter changes the weights below it",
            where=f"adapter: {adapter}",
            why="what is trained would not start from the same weights as in the other arms",
            hint="another initialization of the adapter",
        )
    saved = [p for name, p in adapted.named_parameters() if p.requires_grad and ".modules_to_save." in name]
    if sum(parameter.numel() for parameter in saved) != new_head:
        raise ModelError("PEFT trains another task head than the model's", where=f"{sorted(head)}")
    return adapted


def _import_peft() -> Any:
    """Of what is imported with it, bitsandbytes warns on some machines that kernels are missing, for quantized models;
    nothing else is silenced."""
    logger = logging.getLogger("bitsandbytes.backends.cpu.ops")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        import peft
    finally:
        logger.setLevel(level)
    return peft


def _linear_names(model: nn.Module) -> list[str]:
    """What `target_modules` may name: the linear layers of the blocks, by the last part of their names; ten at most."""
    paths = [name.split(".") for name, module in model.named_modules() if type(module).__name__ in ("Linear", "Conv1D")]
    return list(dict.fromkeys(path[-1] for path in paths if any(map(str.isdecimal, path))))[:10]


# -- saving --------------------------------------------------------------------------------------------------------


def keeps_base(spec: CellSpec) -> bool:
    """Whether the model below an adapter is kept with it: it is nobody else's if it was treated, drawn, or left behind
    by another study."""
    model = spec.recipe.model
    return spec.treatment.init != "keep" or not is_pretrained(model) or model.from_ is not None


def save_arm(applied: Applied, folder: Path, *, spec: CellSpec) -> None:
    """A vanilla checkpoint and `oelm.json`. Of an adapter, PEFT's own files; the model below is in a folder of it."""
    if spec.adapter is None:
        applied.save_pretrained(folder)
        return
    model: Any = applied.model
    below = keeps_base(spec)
    config = model.peft_config[model.active_adapter]
    config.base_model_name_or_path = BASE if below else spec.recipe.model.name
    config.revision = None if below else spec.recipe.model.revision
    if spec.adapter.kind == "adalora":
        config.rank_pattern = None  # by the ranks of the end PEFT would cut off those of a best model before
    model.save_pretrained(folder, save_embedding_layers=False)  # else it asks the hub about the base
    (folder / "README.md").unlink(missing_ok=True)  # a form that nobody has filled in
    if below:
        save_pretrained(applied, folder / BASE, below=copy.deepcopy(model).unload())


def counted_and_stored(model: nn.Module, spec: CellSpec, *, task: Task) -> tuple[Counts, int]:
    """(weights that an arm has and trains, bytes that its saved model takes), of a model that is not changed."""
    own = copy.deepcopy(model)
    adapted = adapt_model(own, adapter=spec.adapter, trains=spec.trains, task=task, seed=spec.seed)
    counts = count(adapted)
    counts = replace(counts, trainable=counts.trainable - freezing_savings(adapted, spec.treatment).frozen)
    whole = sum(tensor.nbytes for tensor in (*model.parameters(), *saved_buffers(model)))
    if not has_adapters(adapted):
        return counts, whole
    small = sum(parameter.nbytes for parameter in adapted.parameters() if parameter.requires_grad)
    return counts, small + (whole if keeps_base(spec) else 0)
