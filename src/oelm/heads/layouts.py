"""Layouts: the positions of each head's query and key rows, one table row per attention class.

H query heads, K key heads, G = H / K query heads per key head, D rows per head. A head's rows are contiguous
in every family; a layout gives the multiple of D at which they start. It is a table and never a guess from
shapes: two classes with equal shapes may order their rows differently.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import nn

from oelm.errors import TreatmentError
from oelm.treatment import Role

Arrangement = Literal["separate", "key-value", "stacked", "interleaved", "grouped"]
# (role, head, H, K) -> index of the head's block of D rows.
BlockIndex = Callable[[Role, int, int, int], int]

ARRANGEMENTS: dict[str, BlockIndex] = {
    # q and k are separate matrices
    "separate": lambda role, head, H, K: head,
    # q is a separate matrix, k and v share one: k k k v v v
    "key-value": lambda role, head, H, K: head,
    # q q q k k k v v v
    "stacked": lambda role, head, H, K: head if role == "q" else H + head,
    # q k v q k v q k v
    "interleaved": lambda role, head, H, K: 3 * head + (0 if role == "q" else 1),
    # q q k v q q k v
    "grouped": lambda role, head, H, K: (
        (head // (H // K)) * (H // K + 2) + head % (H // K) if role == "q" else head * (H // K + 2) + H // K
    ),
}


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How one attention class stores its queries and keys."""

    query: str = ""
    """The submodule (or parameter) of the attention module that holds the query rows."""
    key: str = ""
    """The same for the key rows; equal to `query` if they are fused."""
    head_dim: str = "head_dim"
    """The attribute of the attention module with the number of rows per head."""
    key_heads: str | None = None
    """The attribute with the number of key heads, if a fused matrix has fewer of them than query heads."""
    arrangement: Arrangement | str = "separate"
    """The order of rows, by name in `ARRANGEMENTS`."""
    transposed: bool = False
    """True if the weight is stored as (width, rows), as in `Conv1D`."""
    when: str | None = None
    """An attribute of the attention module that must be true for this layout; the first match applies."""
    refused: str | None = None
    """Why heads of this class are not supported."""


_QKV = "query_key_value"
_TORCH = "torch.nn.modules.activation.MultiheadAttention"

# Classes of transformers as family.Class; others by their full name.
_TABLE: list[tuple[str, Layout]] = [
    (
        """
        bert.BertSelfAttention bert.BertCrossAttention roberta.RobertaSelfAttention roberta.RobertaCrossAttention
        xlm_roberta.XLMRobertaSelfAttention xlm_roberta.XLMRobertaCrossAttention camembert.CamembertSelfAttention
        camembert.CamembertCrossAttention electra.ElectraSelfAttention electra.ElectraCrossAttention
        albert.AlbertAttention vit.ViTSelfAttention
        """,
        Layout(query="query", key="key", head_dim="attention_head_size"),
    ),
    (
        # The second is its name before transformers 5.
        "distilbert.DistilBertSelfAttention distilbert.MultiHeadSelfAttention",
        Layout(query="q_lin", key="k_lin", head_dim="attention_head_size"),
    ),
    ("mpnet.MPNetSelfAttention", Layout(query="q", key="k", head_dim="attention_head_size")),
    (
        # Only v2/v3: DeBERTa v1 has a class of the same name with a different order of rows.
        "deberta_v2.DisentangledSelfAttention",
        Layout(query="query_proj", key="key_proj", head_dim="attention_head_size"),
    ),
    ("t5.T5Attention mt5.MT5Attention", Layout(query="q", key="k", head_dim="key_value_proj_dim")),
    (
        """
        opt.OPTAttention gpt_neo.GPTNeoSelfAttention gptj.GPTJAttention bart.BartAttention
        llama.LlamaAttention mistral.MistralAttention mixtral.MixtralAttention qwen2.Qwen2Attention
        qwen3.Qwen3Attention gemma.GemmaAttention gemma2.Gemma2Attention gemma3.Gemma3Attention
        phi.PhiAttention starcoder2.Starcoder2Attention clip.CLIPAttention
        oelm.models.gpt.OelmGPTAttention
        """,
        Layout(query="q_proj", key="k_proj"),
    ),
    # Before transformers 5 it only wrapped a ViTSelfAttention, which is also in the table.
    ("vit.ViTAttention", Layout(query="q_proj", key="k_proj", when="q_proj")),
    (
        "gpt2.GPT2Attention",
        Layout(query="q_attn", key="c_attn", arrangement="key-value", transposed=True, when="is_cross_attention"),
    ),
    ("gpt2.GPT2Attention", Layout(query="c_attn", key="c_attn", arrangement="stacked", transposed=True)),
    ("modernbert.ModernBertAttention mpt.MptAttention", Layout(query="Wqkv", key="Wqkv", arrangement="stacked")),
    (
        "phi3.Phi3Attention",
        Layout(query="qkv_proj", key="qkv_proj", key_heads="num_key_value_heads", arrangement="stacked"),
    ),
    (
        "gpt_neox.GPTNeoXAttention",
        Layout(query=_QKV, key=_QKV, head_dim="head_size", arrangement="interleaved"),
    ),
    ("bloom.BloomAttention", Layout(query=_QKV, key=_QKV, arrangement="interleaved")),
    (
        "falcon.FalconAttention",
        Layout(query=_QKV, key=_QKV, key_heads="num_kv_heads", arrangement="grouped", when="new_decoder_architecture"),
    ),
    (
        "falcon.FalconAttention",
        Layout(query=_QKV, key=_QKV, key_heads="num_kv_heads", arrangement="stacked", when="multi_query"),
    ),
    ("falcon.FalconAttention", Layout(query=_QKV, key=_QKV, arrangement="interleaved")),
    (
        _TORCH,
        Layout(query="in_proj_weight", key="in_proj_weight", arrangement="stacked", when="_qkv_same_embed_dim"),
    ),
    # Keys of a different width than queries: separate matrices, but one bias for all.
    (_TORCH, Layout(query="q_proj_weight", key="k_proj_weight")),
    (
        "oelm.heads.split.SplitMultiheadAttention",
        Layout(query="in_proj_weight", key="in_proj_weight", arrangement="stacked"),
    ),
    (
        "deepseek_v2.DeepseekV2Attention deepseek_v3.DeepseekV3Attention",
        Layout(refused="part of each key is shared by all heads, so a head has no separate key rows"),
    ),
]


def _full_name(name: str) -> str:
    family, _, cls = name.partition(".")
    return name if "." in cls else f"transformers.models.{family}.modeling_{family}.{cls}"


_layouts: dict[str, list[Layout]] = {}
for _names, _layout in _TABLE:
    for _name in _names.split():
        _layouts.setdefault(_full_name(_name), []).append(_layout)


def register_layout(
    attention: type[nn.Module] | str,
    *,
    query: str,
    key: str,
    head_dim: str = "head_dim",
    key_heads: str | None = None,
    arrangement: Arrangement | BlockIndex = "separate",
    transposed: bool = False,
    when: str | None = None,
) -> None:
    """Register an attention class: `register_layout(MyAttention, query="wq", key="wk")`.

    `attention` is the class or its full dotted name. `arrangement` is a name from the table in docs/layouts.md,
    or a function `(role, head, num_heads, num_key_heads) -> index of the head's block of rows`. The last one registered
    takes precedence. Verify it with `oelm.prove_layout(model, inputs)`.
    """
    if not isinstance(attention, str | type):
        raise TreatmentError(f"attention must be a class or its full name, got {type(attention).__name__}")
    name = attention if isinstance(attention, str) else _dotted(attention)
    order = f"custom:{name}" if callable(arrangement) else arrangement
    if callable(arrangement):
        ARRANGEMENTS[order] = arrangement
    elif arrangement not in ARRANGEMENTS:
        raise TreatmentError(
            f"unknown arrangement {arrangement!r}", hint=f"use a function, or one of {', '.join(ARRANGEMENTS)}"
        )
    elif (query == key) != (arrangement not in ("separate", "key-value")):
        raise TreatmentError(
            f"arrangement {arrangement!r} does not fit query {query!r} and key {key!r}",
            why="'separate' and 'key-value' need two matrices, the fused arrangements one",
        )
    layout = Layout(
        query=query,
        key=key,
        head_dim=head_dim,
        key_heads=key_heads,
        arrangement=order,
        transposed=transposed,
        when=when,
    )
    _layouts.setdefault(name, []).insert(0, layout)


def layout_of(attention: nn.Module) -> Layout | None:
    """The layout of an attention module, or None if its class is not in the table."""
    for cls in type(attention).__mro__:
        for layout in _layouts.get(_dotted(cls), []):
            if layout.when is None or getattr(attention, layout.when, False):
                return layout
    return None


def _dotted(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
