"""Optimizer of a recipe: built from its name, on what learns and on nothing else."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from oelm.errors import ModelError, StudyError
from oelm.heads.find import find_projections
from oelm.heads.projection import param_slices
from oelm.study.optimizers import AdafactorOptions, MuonOptions, SgdOptions, find_optimizer
from oelm.study.recipe import OptimizerConfig

_Options = TypeVar("_Options")
Groups = list[dict[str, Any]]
"""What torch takes: `params`, and their `weight_decay`. Queries and keys with a learning rate of their own also have
`lr_scale`, its share of the others, and `expects`: ids of all that belong to the group once they learn."""
_STEP_COUNTER = 4  # bytes: torch counts steps in a float32 for every tensor


def make_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    """The optimizer that a recipe names, in at most two groups: what decays and what does not; Muon has four. With
    `qk_lr`, queries and keys have as many of their own."""
    entry = find_optimizer(config.name)
    options = own_options(config, entry.options)  # refuses those that it does not have
    if entry.build is None:
        return _BUILD[config.name](model, config)
    made = entry.build(_groups(model, config), lr=config.lr, **asdict(options))
    if not isinstance(made, torch.optim.Optimizer):
        raise StudyError(f"optimizer '{config.name}' cannot be built", why=f"{made!r} is not a torch.optim.Optimizer")
    return made


def own_options(config: OptimizerConfig, options: Callable[..., _Options]) -> _Options:
    """Those of this optimizer alone: what a recipe gives, and defaults for the others."""
    return options(**config.options)


def learning_parameters(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def _groups(model: nn.Module, config: OptimizerConfig, some: Sequence[nn.Parameter] | None = None) -> Groups:
    """Those of `some` parameters, by default of all. The first are never those of queries and keys alone."""
    some = list(model.parameters()) if some is None else some
    qk = _separate_qk(model) if config.qk_lr is not None else set()
    groups = _by_decay([p for p in some if p.requires_grad and id(p) not in qk], config)
    for group in _by_decay([p for p in some if id(p) in qk], config):
        expected = group["params"]
        rates = {"lr": config.lr * config.qk_lr, "lr_scale": config.qk_lr} if config.qk_lr is not None else {}
        learns = [p for p in expected if p.requires_grad]
        groups.append({**group, **rates, "params": learns, "expects": tuple(map(id, expected))})
    return groups


def _separate_qk(model: nn.Module) -> set[int]:
    """Ids of queries and keys, frozen or not, each of which is a parameter of nothing else; but for fused ones that are
    frozen as a whole, and so have no rate."""
    slices = [one for projection in find_projections(model) for one in param_slices(projection)]
    held = Counter[int]()
    for one in slices:
        held[id(one.parameter)] += one.numel
    for one in slices:
        if one.parameter.requires_grad and held[id(one.parameter)] != one.parameter.numel():
            raise ModelError(
                "queries and keys cannot have a learning rate of their own",
                where=one.key,
                why="the tensor has other rows too, and one rate for all of them",
                hint="oelm.apply(model, ..., separate_qk=True), or no recipe.optimizer.qk_lr",
            )
    return set(held)


def _by_decay(parameters: Sequence[nn.Parameter], config: OptimizerConfig) -> Groups:
    decays = [p for p in parameters if config.weight_decay_on == "all" or p.ndim >= 2]
    rest = [p for p in parameters if config.weight_decay_on != "all" and p.ndim < 2]
    return [
        {"params": some, "weight_decay": decay} for some, decay in ((decays, config.weight_decay), (rest, 0.0)) if some
    ]


def _adam(
    kind: Callable[..., torch.optim.Optimizer],
    model: nn.Module,
    config: OptimizerConfig,
    some: Sequence[nn.Parameter] | None = None,
) -> torch.optim.Optimizer:
    groups = _groups(model, config, some)
    fused = _can_fuse(learning_parameters(model))
    return kind(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=fused)


def _sgd(model: nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    options = own_options(config, SgdOptions)
    return torch.optim.SGD(_groups(model, config), lr=config.lr, **asdict(options))


def _adafactor(model: nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    options = own_options(config, AdafactorOptions)
    return torch.optim.Adafactor(
        _groups(model, config),
        lr=config.lr,
        beta2_decay=options.beta2_decay,
        eps=(None, options.min_scale),
        d=options.clip_threshold,
    )


def _muon(model: nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    if not hasattr(torch.optim, "Muon"):
        raise StudyError("this torch has no Muon", why=f"it is {torch.__version__}", hint="torch 2.9 or newer")
    return MuonAdamW(model, config)


_BUILD: dict[str, Callable[[nn.Module, OptimizerConfig], torch.optim.Optimizer]] = {
    "adamw": lambda model, config: _adam(torch.optim.AdamW, model, config),
    "adam": lambda model, config: _adam(torch.optim.Adam, model, config),
    "sgd": _sgd,
    "adafactor": _adafactor,
    "muon": _muon,
}


def _can_fuse(parameters: Iterable[nn.Parameter]) -> bool:
    return all(p.device.type in ("cpu", "cuda", "xpu", "mps") and p.is_floating_point() for p in parameters)


class MuonAdamW(torch.optim.Optimizer):
    """Muon on the matrices inside the blocks, AdamW on embeddings, heads and vectors: one optimizer to the outside.

    Groups and state are those of the two optimizers themselves, so that a parameter added to a group, a state that is
    loaded and a learning rate that is set reach the one that works with them.
    """

    def __init__(self, model: nn.Module, config: OptimizerConfig):
        hidden = _block_matrices(model)
        if not any(parameter.requires_grad for parameter in hidden):
            raise ModelError(
                "Muon has nothing to train in this model",
                why="no matrix inside a list of blocks (nn.ModuleList) learns",
                hint="recipe.optimizer.name: adamw",
            )
        taken = {id(parameter) for parameter in hidden}
        rest = [parameter for parameter in model.parameters() if id(parameter) not in taken]
        options = own_options(config, MuonOptions)
        self.muon = torch.optim.Muon(
            _groups(model, config, hidden),
            lr=config.lr,
            momentum=options.momentum,
            nesterov=options.nesterov,
            ns_steps=options.ns_steps,
            adjust_lr_fn=options.adjust_lr,
        )
        self.adamw = _adam(torch.optim.AdamW, model, config, rest)
        super().__init__([*self.muon.param_groups, *self.adamw.param_groups], {})
        self._share()

    def _share(self) -> None:
        number = len(self.muon.param_groups)
        self.muon.param_groups, self.adamw.param_groups = self.param_groups[:number], self.param_groups[number:]
        self.muon.state = self.adamw.state = self.state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._share()

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.muon.step()  # type: ignore[no-untyped-call]
        self.adamw.step()
        return loss


def hidden_matrices(model: nn.Module) -> list[nn.Parameter]:
    """Matrices that learn inside the blocks of a model, embeddings excluded: what Muon is made for."""
    return [parameter for parameter in _block_matrices(model) if parameter.requires_grad]


def _block_matrices(model: nn.Module) -> list[nn.Parameter]:
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    inside = {id(parameter) for blocks in lists for parameter in blocks.parameters()}
    embeddings = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, nn.Embedding)
        for parameter in module.parameters(recurse=False)
    }
    return [p for p in model.parameters() if p.ndim == 2 and id(p) in inside and id(p) not in embeddings]


def optimizer_state_bytes(model: nn.Module, config: OptimizerConfig) -> int | None:
    """Bytes that the optimizer keeps after a step, by arithmetic; None for a registered one, which nobody knows."""
    learns = learning_parameters(model)
    if config.name in ("adamw", "adam"):
        return sum(map(_adam_bytes, learns))
    if config.name == "sgd":
        return sum(p.nbytes for p in learns) if own_options(config, SgdOptions).momentum else 0
    if config.name == "adafactor":
        return sum(map(_factored_bytes, learns))
    if config.name == "muon":
        hidden = {id(parameter) for parameter in hidden_matrices(model)}
        return sum(p.nbytes if id(p) in hidden else _adam_bytes(p) for p in learns)
    return None


def _adam_bytes(weight: Tensor) -> int:
    return 2 * weight.nbytes + _STEP_COUNTER


def _factored_bytes(weight: Tensor) -> int:
    """Of a matrix a row and a column of second moments, of a vector all of them."""
    if weight.ndim < 2:
        return weight.nbytes + _STEP_COUNTER
    return weight.nbytes // weight.shape[-1] + weight.nbytes // weight.shape[-2] + _STEP_COUNTER
