"""Sizes and options of the small GPT, in a module of their own: transformers registers them when it is imported."""

from dataclasses import asdict
from typing import Any, ClassVar

import transformers

from oelm.errors import did_you_mean
from oelm.study.sizes import PRESET_SIZES

MIN_TRANSFORMERS = (5, 22)
if tuple(map(int, transformers.__version__.split(".")[:2])) < MIN_TRANSFORMERS:
    raise ImportError(
        f"the small GPT of oelm needs transformers {'.'.join(map(str, MIN_TRANSFORMERS))} or later, "
        f"found {transformers.__version__}; the method itself supports it"
    )
from transformers.configuration_utils import PreTrainedConfig  # noqa: E402  (missing in older versions)
from transformers.models.auto.configuration_auto import AutoConfig  # noqa: E402

SIZES = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "max_position_embeddings")
# The same sizes by the names of a recipe, in order.
PRESETS: dict[str, dict[str, int]] = {
    name: dict(zip(SIZES, asdict(sizes).values(), strict=True)) for name, sizes in PRESET_SIZES.items()
}
POOLINGS = ("last", "mean")


class OelmGPTConfig(PreTrainedConfig):  # type: ignore[no-untyped-call]
    """Sizes and options of the model; the defaults are the preset `medium-512` with GPT-2's vocabulary."""

    model_type = "oelm-gpt"
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values"]
    # transformers reads the direction of attention under this name when it builds masks.
    attribute_map: ClassVar[dict[str, str]] = {"is_causal": "causal"}

    vocab_size: int = 50257
    hidden_size: int = 512
    num_hidden_layers: int = 6
    num_attention_heads: int = 8
    intermediate_size: int = 2048
    max_position_embeddings: int = 512
    causal: bool = True
    pooling: str = "last"
    # Norms of queries and keys: the root mean square of every head, with one weight for all heads (as in Qwen3).
    qk_norm: bool = False
    dropout: float = 0.1
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-5
    bos_token_id: int | None = 50256
    eos_token_id: int | None = 50256
    pad_token_id: int | None = None
    tie_word_embeddings: bool = True
    use_cache: bool = True

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)  # type: ignore[no-untyped-call]
        self.validate_architecture()
        # AutoModel may be asked for the model of this configuration next.
        import oelm.models.gpt  # noqa: F401

    def validate_architecture(self) -> None:
        """Raise a ValueError if the values are invalid."""
        for name in ("vocab_size", *SIZES):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(f"hidden_size {self.hidden_size} is not a multiple of {self.num_attention_heads} heads")
        if self.pooling not in POOLINGS:
            raise ValueError(f"pooling must be one of {', '.join(POOLINGS)}, got {self.pooling!r}")
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"dropout must be in [0, 1), got {self.dropout}")

    @classmethod
    def preset(cls, name: str, **overrides: Any) -> "OelmGPTConfig":
        """The sizes of PRESETS[name], with overrides."""
        if name not in PRESETS:
            known = ", ".join(PRESETS)
            raise ValueError(f"unknown preset {name!r} (known presets: {known}){did_you_mean(name, PRESETS)}")
        return cls(**{**PRESETS[name], **overrides})


AutoConfig.register(OelmGPTConfig.model_type, OelmGPTConfig, exist_ok=True)
