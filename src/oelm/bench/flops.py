"""Ceiling: the arithmetic of a training step, and the largest share of it that a treatment can spare.

Counted are the matrix products, at two operations a multiply-add, and what the optimizer does to every weight that
learns. An embedding is a lookup and has no products; where it learns, it is in the optimizer's part. Elementwise work
(norms, activations, dropout, softmax, the loss) is the same with and without a treatment and is left out, which makes
the spared share too large rather than too small. Only attention may be less than is counted: see `Ceiling.at_most`.

The step runs on the meta device, where nothing is computed: it needs no weights and no memory. Our own arithmetic takes
the sizes from hooks and knows by itself what the backward pass needs; tests hold it to what torch counts of the same
step. There, torch sees attention as the plain products that it is, with full score matrices. Of the fused kernels, it
would miss the CPU's, and count a recomputation for the GPU's.
"""

import copy
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from oelm.errors import ModelError
from oelm.heads.find import find_projections
from oelm.heads.projection import Projection

OPTIMIZER_FLOPS = 16
"""For every weight that learns: AdamW's decay 1, first moment 3, second moment 4, denominator 3, step 3; 2 for the
length of the gradient."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """Floating-point operations of a training step."""

    linear_forward: float = 0.0
    linear_input_gradient: float = 0.0
    linear_weight_gradient: float = 0.0
    """Linear maps inside the layers."""
    attention: float = 0.0
    """Scores and weighted values of full score matrices, forward and backward."""
    head: float = 0.0
    """Linear maps outside the layers, forward and backward: output head, pooler."""
    optimizer: float = 0.0

    @property
    def linear(self) -> float:
        return self.linear_forward + self.linear_input_gradient + self.linear_weight_gradient

    @property
    def products(self) -> float:
        """All matrix products: what torch counts."""
        return self.linear + self.attention + self.head

    @property
    def total(self) -> float:
        return self.products + self.optimizer


@dataclass(frozen=True, kw_only=True)
class Ceiling:
    baseline: Work
    treated: Work

    @property
    def saving(self) -> float:
        """The largest share of a step's arithmetic that the treatment can spare."""
        return _spared(self.baseline.total, self.treated.total)

    @property
    def linear_saving(self) -> float:
        """The same of the linear maps inside the layers alone: 2 of 36 for queries and keys of a BERT."""
        return _spared(self.baseline.linear, self.treated.linear)

    @property
    def optimizer_saving(self) -> float:
        """The share of weights that the optimizer need not visit."""
        return _spared(self.baseline.optimizer, self.treated.optimizer)

    def at_most(self, optimizer_share: float) -> float:
        """What a clock should not exceed, if the optimizer takes this share of the baseline's measured step.

        All products are taken to be equally fast, as large ones are, and attention's to cost nothing: a kernel may skip
        the masked half of them.
        """
        before, after = (work.products - work.attention for work in (self.baseline, self.treated))
        return (1 - optimizer_share) * _spared(before, after) + optimizer_share * self.optimizer_saving


def _spared(before: float, after: float) -> float:
    return 1 - after / before if before else 0.0


def work_of(model: nn.Module, *, batch: int, length: int, target_length: int | None = None) -> Work:
    """The work of a step of this model as it is, with what learns in it now.

    A model that writes from what it reads has a `target_length` as well.
    """
    meta_model = _to_meta(model)
    tally = _Tally(meta_model, batch=batch)
    with tally.watching():
        _step(meta_model, batch, length, target_length, turned=tally.turn)
    learning = sum(parameter.numel() for parameter in meta_model.parameters() if parameter.requires_grad)
    return Work(**tally.work, optimizer=OPTIMIZER_FLOPS * learning)


def _step(
    meta_model: nn.Module, batch: int, length: int, target_length: int | None, *, turned: Callable[[], None]
) -> None:
    """One forward and one backward pass; `turned` is called between them."""
    tokens, targets = (torch.zeros(batch, n or 1, dtype=torch.long, device="meta") for n in (length, target_length))
    try:
        # Dropout would move the generator that others draw from.
        with torch.random.fork_rng(devices=[]), sdpa_kernel(SDPBackend.MATH), _Assured():  # type: ignore[no-untyped-call]
            output = meta_model(tokens, **({} if target_length is None else {"decoder_input_ids": targets}))
            logits = output if isinstance(output, Tensor) else output[0]
            turned()
            logits.sum().backward()
    except (RuntimeError, ValueError, TypeError, AttributeError) as error:
        first = str(error).strip().partition("\n")[0]
        raise ModelError(
            f"the work of a {type(meta_model).__name__} cannot be counted without computing it",
            why=f"{type(error).__name__}: {first}",
        ) from error


class _Assured(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Says yes where a model asks for a value that is not there: is this all one sequence, is none of it padding?"""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default and args[0].is_meta:
            return True
        return func(*args, **(kwargs or {}))


def _to_meta(model: nn.Module) -> nn.Module:
    """A copy in training mode on the meta device."""
    instead: dict[int, Any] = {}
    for parameter in model.parameters():
        empty = torch.empty_like(parameter, device="meta")
        instead[id(parameter)] = nn.Parameter(empty, parameter.requires_grad)
    for buffer in model.buffers():
        instead[id(buffer)] = torch.empty_like(buffer, device="meta")
    meta_model = copy.deepcopy(model, instead).train()
    config: Any = getattr(meta_model, "config", None)
    if config is not None:
        config.use_cache = False  # as in training
    return meta_model


# -- our own arithmetic --------------------------------------------------------------------------------------------


class _Tally:
    """Counts the products of one step from the sizes that go through a model.

    The gradient of a product costs as much as the product, for each of its two factors, and autograd computes it for
    those that need one. In the backward pass only forward work is seen, and only where layers are checkpointed.
    """

    def __init__(self, model: nn.Module, *, batch: int) -> None:
        self.batch = batch
        self.work = dict.fromkeys(
            ("linear_forward", "linear_input_gradient", "linear_weight_gradient", "attention", "head"), 0.0
        )
        self._seen: dict[nn.Module, tuple[Tensor, Tensor]] = {}
        """(input, output) of the modules that hold queries and keys."""
        self._backward = False
        self._model = model
        self._handles: list[Any] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        attentions: dict[nn.Module, list[Projection]] = {}
        for projection in find_projections(self._model):
            attentions.setdefault(projection.attention, []).append(projection)
        layers = {_layer_of(path) for path, module in self._model.named_modules() if module in attentions}
        for path, module in self._model.named_modules():
            inside = any(not layer or f"{path}.".startswith(f"{layer}.") for layer in layers)
            if isinstance(module, nn.MultiheadAttention):
                self._watch(module, functools.partial(self._multihead, inside))
            elif not isinstance(module, nn.Embedding) and _matrices(module):
                self._watch(module, functools.partial(self._linear, inside))
        for attention, projections in attentions.items():
            if not isinstance(attention, nn.MultiheadAttention):
                for holder in {getattr(attention, projection.path) for projection in projections}:
                    self._watch(holder, self._hold)
                self._watch(attention, functools.partial(self._attend, projections))
        try:
            yield
        finally:
            for handle in self._handles:
                handle.remove()

    def turn(self) -> None:
        """From here on it is the backward pass."""
        self._backward = True

    def _watch(self, module: nn.Module, hook: Callable[..., None]) -> None:
        self._handles.append(module.register_forward_hook(hook, with_kwargs=True))

    def _hold(self, module: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor], output: Tensor) -> None:
        self._seen[module] = (_given(args, kwargs), output)

    def _linear(
        self, inside: bool, module: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor], output: Any
    ) -> None:
        given = _given(args, kwargs)
        for matrix in _matrices(module):
            if given.shape[-1] in matrix.shape:
                self._map(inside, given, matrix)

    def _attend(
        self,
        projections: list[Projection],
        module: nn.Module,
        args: tuple[Tensor, ...],
        kwargs: dict[str, Tensor],
        output: Any,
    ) -> None:
        q, k = (projections[0], projections[-1])
        (queried, query), (keyed, key) = (self._seen[getattr(module, each.path)] for each in (q, k))
        learns = any(parameter.requires_grad for parameter in module.parameters())
        self._scores(
            q.num_heads * q.head_dim * queried.numel() / queried.shape[-1] * self._tokens(keyed),
            needs=(query.requires_grad, key.requires_grad, keyed.requires_grad or learns),
        )

    def _multihead(
        self,
        inside: bool,
        module: nn.MultiheadAttention,
        args: tuple[Tensor, ...],
        kwargs: dict[str, Tensor],
        output: Any,
    ) -> None:
        """torch's own attention keeps its maps in itself and calls no module for them."""
        given = [*args[:3], *(kwargs[name] for name in ("query", "key", "value")[len(args) :])]
        fused = module.in_proj_weight
        separate = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
        weights = fused.chunk(3) if fused is not None else separate
        for tensor, matrix in zip(given, weights, strict=True):
            self._map(inside, tensor, matrix)
        bias = module.in_proj_bias is not None and module.in_proj_bias.requires_grad
        needs = [t.requires_grad or w.requires_grad or bias for t, w in zip(given, weights, strict=True)]
        query, key, _ = given
        self._scores(query.numel() * self._tokens(key), needs=needs)
        self._map(inside, query.detach().requires_grad_(any(needs)), module.out_proj.weight)

    def _tokens(self, tensor: Tensor) -> float:
        """Of one sequence, however sequences are laid out."""
        return tensor.numel() / tensor.shape[-1] / self.batch

    def _map(self, inside: bool, given: Tensor, matrix: Tensor) -> None:
        product = 2.0 * given.numel() / given.shape[-1] * matrix.numel()
        parts = {
            "linear_forward": product,
            "linear_input_gradient": product * (given.requires_grad and not self._backward),
            "linear_weight_gradient": product * (matrix.requires_grad and not self._backward),
        }
        for name, part in parts.items():
            self.work[name if inside else "head"] += part

    def _scores(self, multiply_adds: float, *, needs: Sequence[bool]) -> None:
        """Scores from queries and keys, then an average of values by them; `needs` a gradient: query, key, value."""
        query, key, value = needs
        gradients = query + key + value + (query or key)  # the last is that of the scores
        self.work["attention"] += 2.0 * multiply_adds * (2 + gradients * (not self._backward))


def _matrices(module: nn.Module) -> list[nn.Parameter]:
    """The weight of a linear map, in both its parts where it is split; no table, norm or filter."""
    own = module.named_parameters(recurse=False)
    return [parameter for name, parameter in own if name.startswith("weight") and parameter.ndim == 2]


def _given(args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> Tensor:
    return args[0] if args else next(iter(kwargs.values()))


def _layer_of(path: str) -> str:
    """The layer that an attention module is in: its path up to the first number, or else the module around it."""
    parts = path.split(".")
    number = next((index for index, part in enumerate(parts) if part.isdigit()), len(parts) - 2)
    return ".".join(parts[: number + 1])
