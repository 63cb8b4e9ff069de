"""Count the weights of a study's arms from its configuration: no model is built, nothing is run, no torch is needed.

A test holds every number here to `oelm.count` of the real model.
"""

from dataclasses import dataclass

from oelm.data.tasks import TASKS
from oelm.facts import Counts
from oelm.study.recipe import Recipe
from oelm.study.sizes import gpt_sizes, missing_sizes
from oelm.study.study import Study
from oelm.treatment import Treatment, select_layers

_VOCABULARIES = {"openai-community/gpt2": 50_257}


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The sizes of a Transformer whose keys have as many heads as its queries."""

    layers: int
    width: int
    ffn: int
    positions: int
    vocabulary: int
    attention_bias: bool
    once: int
    """Weights outside of the layers and of the embeddings of tokens and positions."""

    @property
    def projection_bias(self) -> int:
        return self.width if self.attention_bias else 0

    @property
    def total(self) -> int:
        attention = 4 * (self.width**2 + self.projection_bias)
        feed_forward = 2 * self.width * self.ffn + self.ffn + self.width
        norms = 2 * 2 * self.width
        embeddings = (self.vocabulary + self.positions) * self.width
        return embeddings + self.layers * (attention + feed_forward + norms) + self.once


def _bert(*, layers: int, width: int) -> Shape:
    """With a pooler, two token types and a norm after the embeddings."""
    once = 2 * width + 2 * width + width**2 + width
    return Shape(
        layers=layers,
        width=width,
        ffn=4 * width,
        positions=512,
        vocabulary=30_522,
        attention_bias=True,
        once=once,
    )


_BERTS = {
    "google-bert/bert-base-uncased": _bert(layers=12, width=768),
    "minilm-l6": _bert(layers=6, width=384),
}


def _gpt(recipe: Recipe) -> Shape | None:
    """Of any size; its vocabulary is that of the tokenizer."""
    tokenizer = recipe.data.tokenizer
    vocabulary = _VOCABULARIES.get(tokenizer.name or "") if tokenizer is not None else None
    if missing_sizes(recipe.model) or recipe.model.qk_norm or vocabulary is None:
        return None
    sizes = gpt_sizes(recipe.model, max_length=recipe.data.max_length)
    return Shape(
        layers=sizes.layers,
        width=sizes.width,
        ffn=sizes.ffn,
        positions=sizes.context,
        vocabulary=vocabulary,
        attention_bias=False,
        once=2 * sizes.width,  # the last norm; the head of a language model is tied to its embeddings
    )


def count_arm(study: Study, arm: str) -> Counts | None:
    """The weights of an arm when its training starts; None if the sizes of its model, or what is trained of it, are not
    known here."""
    recipe = study.recipe
    if study.arms[arm].freezes_backbone:
        return None
    shape = _gpt(recipe) if recipe.model.name == "oelm-gpt" else _BERTS.get(recipe.model.label)
    task = TASKS[recipe.data.task]
    has_pooled_head = bool(task.labels) or task.kind in ("regression", "language-modeling")
    if shape is None or task.kind == "tokens" or not has_pooled_head:  # whose labels, or layers, are not known here
        return None
    classes = task.num_outputs
    total = shape.total + classes * (shape.width + 1)
    frozen = _frozen(shape, study.arms[arm].treatment)
    qk = 2 * shape.layers * (shape.width**2 + shape.projection_bias)
    return Counts(total=total, trainable=total - frozen, buffers=0, qk=qk)


def _frozen(shape: Shape, treatment: Treatment) -> int:
    layers = select_layers(treatment.layers, shape.layers)
    bias = shape.projection_bias if treatment.bias == "freeze" else 0
    return len(treatment.frozen_roles) * len(layers) * (shape.width**2 + bias)
