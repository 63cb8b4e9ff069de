"""The zoo: one tiny model of every family that oelm knows, built from its configuration, offline.

Widths and head sizes are chosen so that a wrong layout cannot pass by accident: D differs from H, H from K.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from oelm.heads.find import find_projections

VOCAB = 64
TOKENS = 7

_BERT = dict(
    vocab_size=VOCAB,
    hidden_size=24,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=32,
    max_position_embeddings=32,
    pad_token_id=0,
)
_LLAMA = dict(
    vocab_size=VOCAB,
    hidden_size=48,
    num_hidden_layers=2,
    num_attention_heads=6,
    num_key_value_heads=2,
    intermediate_size=32,
    max_position_embeddings=32,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
)


_HAVE_A_GAUGE = {
    "bert", "bert-decoder", "roberta", "xlm-roberta", "electra", "distilbert", "mpnet", "albert", "deberta-v2", "t5",
    "opt", "vit", "camembert", "gpt-neo", "bart", "mt5", "clip-text", "oelm-gpt", "oelm-gpt-classifier", "gpt2",
    "gpt2-cross", "mpt", "bloom", "torch-encoder",
}  # fmt: skip


@dataclass(frozen=True)
class Family:
    """How to build one model of a family, feed it, and look at its attention."""

    name: str
    build: Callable[[], nn.Module]
    arrangement: str = "separate"
    """Of keys; "separate" for families that keep q and k in matrices of their own."""
    num_layers: int = 2
    inputs: Callable[[], dict[str, Any]] | None = None
    outputs_maps: tuple[str, ...] = ("attentions",)

    def model(self, seed: int = 0) -> nn.Module:
        """A model of one's own, with the same weights for the same seed."""
        return copy.deepcopy(_built(self, seed))  # which takes half as long as building it

    @property
    def has_gauge(self) -> bool:
        """Whether logits are plain inner products of queries and keys."""
        return self.name in _HAVE_A_GAUGE

    def batch(self, seed: int = 0) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(seed)
        if self.inputs is not None:
            return self.inputs()
        return {"input_ids": torch.randint(3, VOCAB, (2, TOKENS), generator=generator)}

    def logits(self, model: nn.Module) -> Tensor:
        out = model(**self.batch())
        if isinstance(out, Tensor):
            return out
        return out.logits if "logits" in out else out.last_hidden_state

    def loss(self, model: nn.Module) -> Tensor:
        return self.logits(model).float().pow(2).mean()

    def maps(self, model: nn.Module) -> list[Tensor]:
        """One (batch, heads, queries, keys) attention map per layer, in the order of `find_heads`."""
        if isinstance(model, TorchEncoder):
            return model.maps(**self.batch())
        out = model(**self.batch(), output_attentions=True)
        if self.outputs_maps == ("attentions",):
            return list(out.attentions)
        encoder = list(out.encoder_attentions) if "encoder_attentions" in self.outputs_maps else []
        own = out.decoder_attentions if "decoder_attentions" in self.outputs_maps else out.attentions
        pairs = zip(own, out.cross_attentions, strict=True)
        return encoder + [layer_map for pair in pairs for layer_map in pair]


@cache
def _built(family: Family, seed: int) -> nn.Module:
    """Leaves torch's global generator as it was."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = family.build()
    # Biases of zero and norms of one would hide mistakes.
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model.eval()


class TorchEncoder(nn.Module):
    """`nn.TransformerEncoder` with an embedding and a classifier, as people write it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, 24)
        layer = nn.TransformerEncoderLayer(24, 4, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.classifier = nn.Linear(24, 3)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.classifier(self.encoder(self.embedding(input_ids)))

    def maps(self, input_ids: Tensor) -> list[Tensor]:
        hidden, maps = self.embedding(input_ids), []
        for layer in self.encoder.layers:
            _, weights = layer.self_attn(hidden, hidden, hidden, average_attn_weights=False)
            maps.append(weights)
            hidden = layer(hidden)
        return maps


def _model(class_name: str, config_name: str, **config: Any) -> nn.Module:
    if not hasattr(transformers, class_name):
        pytest.skip(f"not in transformers {transformers.__version__}: {class_name}")
    settings = getattr(transformers, config_name)(**config)
    settings._attn_implementation = "eager"  # only eager attention shows its maps
    return getattr(transformers, class_name)(settings)


def _gpt(class_name: str, **config: Any) -> nn.Module:
    try:
        from oelm.models import gpt
    except ImportError as error:
        pytest.skip(f"not in transformers {transformers.__version__}: {error}")
    settings = gpt.OelmGPTConfig(**config)
    settings._attn_implementation = "eager"
    return getattr(gpt, class_name)(settings)


def _t5_inputs() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    return {
        "input_ids": torch.randint(3, VOCAB, (2, TOKENS), generator=generator),
        "decoder_input_ids": torch.randint(3, VOCAB, (2, 5), generator=generator),
    }


def _gpt2_cross_inputs() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    return {
        "input_ids": torch.randint(3, VOCAB, (2, TOKENS), generator=generator),
        "encoder_hidden_states": torch.randn(2, 5, 24, generator=generator),
    }


def _vit_inputs() -> dict[str, Any]:
    return {"pixel_values": torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))}


_GPT2 = dict(
    vocab_size=VOCAB, n_embd=24, n_layer=2, n_head=4, n_inner=32, n_positions=32, bos_token_id=1, eos_token_id=2
)
_FALCON = dict(
    vocab_size=VOCAB, hidden_size=48, num_hidden_layers=2, num_attention_heads=6, bos_token_id=1, eos_token_id=2
)
_GPT = dict(
    vocab_size=VOCAB,
    hidden_size=24,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=32,
    max_position_embeddings=32,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
)
_T5 = dict(vocab_size=VOCAB, d_model=24, d_kv=8, d_ff=32, num_layers=2, num_heads=4, decoder_start_token_id=0)
_classifier = partial(_model, num_labels=3)

FAMILIES = [
    Family("bert", lambda: _classifier("BertForSequenceClassification", "BertConfig", **_BERT)),
    Family(
        "bert-decoder",
        lambda: _model("BertLMHeadModel", "BertConfig", **_BERT, is_decoder=True, add_cross_attention=True),
        num_layers=4,
        inputs=_gpt2_cross_inputs,
        outputs_maps=("attentions", "cross_attentions"),
    ),
    Family("roberta", lambda: _classifier("RobertaForSequenceClassification", "RobertaConfig", **_BERT)),
    Family("xlm-roberta", lambda: _classifier("XLMRobertaForSequenceClassification", "XLMRobertaConfig", **_BERT)),
    Family(
        "electra",
        lambda: _classifier("ElectraForSequenceClassification", "ElectraConfig", **_BERT, embedding_size=16),
    ),
    Family(
        "distilbert",
        lambda: _classifier(
            "DistilBertForSequenceClassification",
            "DistilBertConfig",
            vocab_size=VOCAB,
            dim=24,
            n_layers=2,
            n_heads=4,
            hidden_dim=32,
            max_position_embeddings=32,
        ),
    ),
    Family(
        "mpnet", lambda: _classifier("MPNetForSequenceClassification", "MPNetConfig", **_BERT | {"pad_token_id": 1})
    ),
    Family(
        "albert",
        lambda: _classifier("AlbertForSequenceClassification", "AlbertConfig", **_BERT, embedding_size=16),
        num_layers=1,
    ),
    Family(
        "deberta-v2",
        lambda: _classifier(
            "DebertaV2ForSequenceClassification",
            "DebertaV2Config",
            **_BERT,
            relative_attention=True,
            position_buckets=8,
            share_att_key=True,
            norm_rel_ebd="layer_norm",
            pos_att_type=["p2c", "c2p"],
        ),
    ),
    Family(
        "t5",
        lambda: _model("T5ForConditionalGeneration", "T5Config", **_T5),
        num_layers=6,
        inputs=_t5_inputs,
        outputs_maps=("encoder_attentions", "decoder_attentions", "cross_attentions"),
    ),
    Family(
        "opt",
        lambda: _model(
            "OPTForCausalLM",
            "OPTConfig",
            vocab_size=VOCAB,
            hidden_size=24,
            num_hidden_layers=2,
            num_attention_heads=4,
            ffn_dim=32,
            max_position_embeddings=32,
            word_embed_proj_dim=24,
            bos_token_id=1,
            eos_token_id=2,
            pad_token_id=0,
        ),
    ),
    Family("llama", lambda: _model("LlamaForCausalLM", "LlamaConfig", **_LLAMA)),
    Family("mistral", lambda: _model("MistralForCausalLM", "MistralConfig", **_LLAMA, head_dim=8)),
    Family("qwen2", lambda: _model("Qwen2ForCausalLM", "Qwen2Config", **_LLAMA)),
    Family("qwen3", lambda: _model("Qwen3ForCausalLM", "Qwen3Config", **_LLAMA, head_dim=16)),
    Family("gemma2", lambda: _model("Gemma2ForCausalLM", "Gemma2Config", **_LLAMA, head_dim=16)),
    Family("gemma3", lambda: _model("Gemma3ForCausalLM", "Gemma3TextConfig", **_LLAMA, head_dim=16)),
    Family(
        "vit",
        lambda: _classifier(
            "ViTForImageClassification",
            "ViTConfig",
            hidden_size=24,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=32,
            image_size=8,
            patch_size=4,
        ),
        inputs=_vit_inputs,
    ),
    Family("camembert", lambda: _classifier("CamembertForSequenceClassification", "CamembertConfig", **_BERT)),
    Family(
        "gpt-neo",
        lambda: _model(
            "GPTNeoForCausalLM",
            "GPTNeoConfig",
            vocab_size=VOCAB,
            hidden_size=24,
            num_layers=2,
            num_heads=4,
            intermediate_size=32,
            attention_types=[[["global", "local"], 1]],
            max_position_embeddings=32,
            bos_token_id=1,
            eos_token_id=2,
        ),
    ),
    Family("gptj", lambda: _model("GPTJForCausalLM", "GPTJConfig", **_GPT2, rotary_dim=4)),
    Family(
        "bart",
        lambda: _model(
            "BartForConditionalGeneration",
            "BartConfig",
            vocab_size=VOCAB,
            d_model=24,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=32,
            decoder_ffn_dim=32,
            max_position_embeddings=32,
            forced_eos_token_id=None,
        ),
        num_layers=6,
        inputs=_t5_inputs,
        outputs_maps=("encoder_attentions", "decoder_attentions", "cross_attentions"),
    ),
    Family(
        "mt5",
        lambda: _model("MT5ForConditionalGeneration", "MT5Config", **_T5),
        num_layers=6,
        inputs=_t5_inputs,
        outputs_maps=("encoder_attentions", "decoder_attentions", "cross_attentions"),
    ),
    Family("mixtral", lambda: _model("MixtralForCausalLM", "MixtralConfig", **_LLAMA, num_local_experts=2)),
    Family("gemma", lambda: _model("GemmaForCausalLM", "GemmaConfig", **_LLAMA, head_dim=16)),
    Family("phi", lambda: _model("PhiForCausalLM", "PhiConfig", **_LLAMA)),
    Family("starcoder2", lambda: _model("Starcoder2ForCausalLM", "Starcoder2Config", **_LLAMA)),
    Family(
        "clip-text",
        lambda: _model(
            "CLIPTextModel",
            "CLIPTextConfig",
            vocab_size=VOCAB,
            hidden_size=24,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=32,
            max_position_embeddings=32,
            bos_token_id=1,
            eos_token_id=2,
            pad_token_id=0,
        ),
    ),
    Family("oelm-gpt", lambda: _gpt("OelmGPTForCausalLM", **_GPT)),
    Family("oelm-gpt-classifier", lambda: _gpt("OelmGPTForSequenceClassification", **_GPT, causal=False)),
    Family("oelm-gpt-qk-norm", lambda: _gpt("OelmGPTForCausalLM", **_GPT, qk_norm=True)),
    Family("gpt2", lambda: _model("GPT2LMHeadModel", "GPT2Config", **_GPT2), arrangement="stacked"),
    Family(
        "gpt2-cross",
        lambda: _model("GPT2LMHeadModel", "GPT2Config", **_GPT2, add_cross_attention=True),
        arrangement="stacked",
        num_layers=4,
        inputs=_gpt2_cross_inputs,
        outputs_maps=("attentions", "cross_attentions"),
    ),
    Family(
        "modernbert",
        lambda: _classifier(
            "ModernBertForSequenceClassification",
            "ModernBertConfig",
            **_BERT | {"pad_token_id": 0},
            attention_bias=True,
            bos_token_id=1,
            eos_token_id=2,
            cls_token_id=1,
            sep_token_id=2,
        ),
        arrangement="stacked",
    ),
    Family(
        "mpt",
        lambda: _model(
            "MptForCausalLM", "MptConfig", vocab_size=VOCAB, d_model=24, n_heads=4, n_layers=2, max_seq_len=32
        ),
        arrangement="stacked",
    ),
    Family("phi3", lambda: _model("Phi3ForCausalLM", "Phi3Config", **_LLAMA), arrangement="stacked"),
    Family(
        "gpt-neox",
        lambda: _model(
            "GPTNeoXForCausalLM",
            "GPTNeoXConfig",
            vocab_size=VOCAB,
            hidden_size=24,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=32,
            max_position_embeddings=32,
            bos_token_id=1,
            eos_token_id=2,
        ),
        arrangement="interleaved",
    ),
    Family(
        "bloom",
        lambda: _model("BloomForCausalLM", "BloomConfig", vocab_size=VOCAB, hidden_size=24, n_layer=2, n_head=4),
        arrangement="interleaved",
    ),
    Family(
        "falcon-old",
        lambda: _model("FalconForCausalLM", "FalconConfig", **_FALCON, multi_query=False, bias=True),
        arrangement="interleaved",
    ),
    Family(
        "falcon-multi-query",
        lambda: _model("FalconForCausalLM", "FalconConfig", **_FALCON, multi_query=True),
        arrangement="stacked",
    ),
    Family(
        "falcon-new",
        lambda: _model("FalconForCausalLM", "FalconConfig", **_FALCON, new_decoder_architecture=True, num_kv_heads=2),
        arrangement="grouped",
    ),
    Family("torch-encoder", TorchEncoder, arrangement="stacked"),
]


def attentive(family: Family, seed: int = 0) -> nn.Module:
    """A model of the zoo that attends: as they are drawn, most look at everything alike."""
    model = family.model(seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for projection in find_projections(model):
            for head in range(projection.num_heads):
                projection.weight_rows(head).normal_(generator=generator)
                if projection.has_bias:
                    projection.bias_rows(head).normal_(generator=generator)
    return model
