"""Memory of a training step by arithmetic, before anything is loaded, where the sizes of a model are known: our GPT.

    weights      4 bytes each
    gradients    4 bytes for each weight that learns
    optimizer    8 bytes for each of them (AdamW, Adam); 4 with one moment; none of SGD without momentum
    activations  B T (9 M + 2 F) a L: what the backward pass of all layers needs
                 + B T (6 M + F) a L with dropout, and on a CPU 3 B H T^2 a L: attention with dropout is not fused there
                 + the logits of next tokens, three times: at most 64 MB each in float32, otherwise all of them;
                 or B T 4 F while a layer is computed, if that is more
                 With gradient checkpointing, B T M a L and the rest of one layer.

B examples of a forward pass, T tokens, M width, F width of the feed-forward layers, H heads, L layers, a bytes of a
number (4 in float32, otherwise 2). It is a lower bound: libraries and allocators take more, and so
does recomputing (docs/studies.md has measured ratios).
"""

from dataclasses import dataclass

from oelm.data.tasks import TASKS
from oelm.models.folder import memory_bytes
from oelm.study.recipe import OptimizerConfig, Recipe
from oelm.study.sizes import GPTSizes, gpt_sizes
from oelm.study.study import Study
from oelm.treatment import select_layers

_FLOAT = 4
_CHUNK = 2**24  # logits at a time, as in train/objective.py
_VOCABULARIES = {"openai-community/gpt2": 50_257}
_DROPOUT = 0.1  # of our GPT, unless a recipe says otherwise


@dataclass(frozen=True, kw_only=True)
class MemoryEstimate:
    """Bytes of a training step."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    available: int | None
    """What the GPU, or else the machine, has; None where nobody says."""

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer + self.activations

    @property
    def fits(self) -> bool:
        return self.available is None or self.total <= self.available

    def __str__(self) -> str:
        parts = ("weights", "gradients", "optimizer", "activations")
        listed = ", ".join(f"{name} {format_gib(getattr(self, name))}" for name in parts)
        said = f"memory of a step: at least {format_gib(self.total)} ({listed})"
        if self.fits:
            return said
        hint = "a smaller recipe.batch.size with accumulate, gradient_checkpointing: true, or a smaller model"
        return f"{said}\nthis will not fit: {format_gib(self.available or 0)} are there; {hint}"


def format_gib(number: int) -> str:
    return f"{number / 2**30:.2f} GiB"


def estimate_memory(study: Study, *, device: str) -> MemoryEstimate | None:
    """Of the arm that trains most; None where the sizes of the model, or its vocabulary, are known only when loaded."""
    recipe = study.recipe
    vocab = _vocabulary(recipe)
    if recipe.model.name != "oelm-gpt" or vocab is None:
        return None
    sizes = gpt_sizes(recipe.model, max_length=recipe.data.max_length)
    weights = _count_weights(sizes, recipe, vocab)
    layers = [
        len(arm.treatment.frozen_roles) * len(select_layers(arm.treatment.layers, sizes.layers))
        for arm in study.arms.values()
    ]
    learning = weights - min(layers) * sizes.width**2
    return MemoryEstimate(
        weights=_FLOAT * weights,
        gradients=_FLOAT * learning,
        optimizer=_moments(recipe.optimizer) * _FLOAT * learning,
        activations=_count_activations(sizes, recipe, vocab, on_cpu=device.startswith("cpu")),
        available=_available(device),
    )


def _vocabulary(recipe: Recipe) -> int | None:
    chosen = recipe.data.tokenizer
    if chosen is None:
        return None
    return chosen.vocab if chosen.train is not None else _VOCABULARIES.get(chosen.name or "")


def _count_weights(sizes: GPTSizes, recipe: Recipe, vocab: int) -> int:
    m, f = sizes.width, sizes.ffn
    norms = 4 * m + (2 * m // sizes.heads if recipe.model.qk_norm else 0)
    layer = 4 * m**2 + 2 * m * f + f + m + norms
    classes = TASKS[recipe.data.task].num_outputs
    return (vocab + sizes.context) * m + sizes.layers * layer + 2 * m + classes * (m + 1)


def _moments(optimizer: OptimizerConfig) -> int:
    """Numbers that are kept for each weight that learns; of an optimizer that is not known, those of AdamW."""
    if optimizer.name == "sgd":
        return 1 if optimizer.options.get("momentum") else 0
    return {"adafactor": 0, "muon": 1}.get(optimizer.name, 2)


def _count_activations(sizes: GPTSizes, recipe: Recipe, vocab: int, *, on_cpu: bool) -> int:
    m, f, length = sizes.width, sizes.ffn, recipe.data.max_length
    number = _FLOAT if recipe.precision == "fp32" else 2
    tokens = recipe.batch.size * length
    has_dropout = (_DROPOUT if recipe.model.dropout is None else recipe.model.dropout) > 0
    layer = tokens * (9 * m + 2 * f) * number
    if has_dropout:
        layer += tokens * (6 * m + f) * number
        layer += 3 * tokens * sizes.heads * length * number if on_cpu else 0
    passing = tokens * 4 * f
    logits = 0
    if TASKS[recipe.data.task].kind == "language-modeling":
        logits = 3 * _FLOAT * (min(tokens * vocab, _CHUNK) if recipe.precision == "fp32" else tokens * vocab)
    layers = layer + sizes.layers * tokens * m * number if recipe.gradient_checkpointing else sizes.layers * layer
    return layers + max(passing, logits)


def _available(device: str) -> int | None:
    if device.startswith("cpu"):
        return memory_bytes()
    try:
        import torch

        return int(torch.cuda.get_device_properties(0).total_memory) if torch.cuda.is_available() else None
    except (ImportError, RuntimeError):
        return None
