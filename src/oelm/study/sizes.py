"""Sizes of our own GPT: named presets, and what a recipe says. No torch."""

from dataclasses import dataclass, replace

from oelm.study.recipe import SIZE_FIELDS, ModelConfig


@dataclass(frozen=True, kw_only=True)
class GPTSizes:
    layers: int
    width: int
    heads: int
    ffn: int
    """Width of the feed-forward layers."""
    context: int
    """The most tokens of a sequence: it has a position embedding for each."""


_REQUIRED = ("layers", "width", "heads")


def _sizes(layers: int, width: int, heads: int, context: int) -> GPTSizes:
    return GPTSizes(layers=layers, width=width, heads=heads, ffn=4 * width, context=context)


# Named for their width. The last four have the shapes of GPT-2, from its smallest to XL.
PRESET_SIZES = {
    "mini-128": _sizes(2, 128, 4, 256),
    "mini-256": _sizes(4, 256, 8, 256),
    "medium-512": _sizes(6, 512, 8, 512),
    "gpt2-768": _sizes(12, 768, 12, 1024),
    "gpt2-1024": _sizes(24, 1024, 16, 1024),
    "gpt2-1280": _sizes(36, 1280, 20, 1024),
    "gpt2-1600": _sizes(48, 1600, 25, 1024),
}


def missing_sizes(model: ModelConfig) -> list[str]:
    """What has to be said of a model without a preset."""
    return [] if model.preset is not None else [name for name in _REQUIRED if getattr(model, name) is None]


def gpt_sizes(model: ModelConfig, *, max_length: int) -> GPTSizes:
    """The sizes of a recipe's GPT: those of its preset, unless it says otherwise.

    Without a preset, feed-forward layers are four times as wide as the model, and the context is `max_length`.
    """
    said = {name: value for name in SIZE_FIELDS if (value := getattr(model, name)) is not None}
    if model.preset is not None:
        sizes = replace(PRESET_SIZES[model.preset], **said)
        # Another width changes the feed-forward layers with it.
        return sizes if "ffn" in said or "width" not in said else replace(sizes, ffn=4 * sizes.width)
    return GPTSizes(**{"ffn": 4 * said["width"], "context": max_length, **said})
