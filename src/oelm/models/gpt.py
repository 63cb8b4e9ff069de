"""A small GPT in one file, as a transformers model: language modeling and sequence classification.

Shapes in the comments: B batch, T tokens of this call, S tokens attended to (cached ones plus T), M width,
H heads, D width of a head, F width of the feed-forward layer, V vocabulary, C classes.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# First, because it raises if this transformers is too old for what follows.
from oelm.models.gpt_config import PRESETS, OelmGPTConfig  # isort: skip
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    GenerationMixin,
    PreTrainedModel,
)
from transformers import initialization as init
from transformers.cache_utils import Cache, DynamicCache
from transformers.masking_utils import create_causal_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast, SequenceClassifierOutput
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, slice_logits_to_keep
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from oelm.models.dropout import Dropout, fast_dropout

__all__ = [
    "PRESETS",
    "OelmGPTConfig",
    "OelmGPTForCausalLM",
    "OelmGPTForSequenceClassification",
    "OelmGPTModel",
]


def eager_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """Attention in plain operations, which also returns the probabilities.

    The mask is one of transformers' for eager attention (added to the scores) or for torch's fused attention (true
    where attended to, or None for a plain causal mask).
    """
    scores = (query * scaling) @ key.transpose(2, 3)  # (B, H, T, S)
    if attention_mask is None and module.is_causal:
        lengths = scores.shape[2:]
        attention_mask = torch.ones(lengths, dtype=torch.bool, device=scores.device).tril(lengths[1] - lengths[0])
    if attention_mask is not None and attention_mask.dtype == torch.bool:
        # Half of the lowest number, so that adding a score cannot make it infinite.
        masked = torch.zeros_like(attention_mask, dtype=scores.dtype)
        scores += masked.masked_fill_(~attention_mask, torch.finfo(scores.dtype).min / 2)
    elif attention_mask is not None:
        scores = scores + attention_mask
    probabilities = F.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    attended = fast_dropout(probabilities, dropout) @ value  # (B, H, T, D)
    return attended.transpose(1, 2), probabilities  # (B, T, H, D)


class OelmGPTAttention(nn.Module):
    """Multi-head self-attention with separate projections."""

    def __init__(self, config: OelmGPTConfig, layer_idx: int) -> None:
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.num_heads = config.num_attention_heads
        self.head_dim = config.hidden_size // config.num_attention_heads
        self.is_causal = config.causal
        self.attention_dropout = config.dropout
        self.q_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.o_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.output_dropout = Dropout(config.dropout)
        if config.qk_norm:
            self.q_norm = nn.RMSNorm(self.head_dim, eps=config.layer_norm_eps)
            self.k_norm = nn.RMSNorm(self.head_dim, eps=config.layer_norm_eps)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        per_head = (*hidden_states.shape[:2], self.num_heads, self.head_dim)
        query = self.q_proj(hidden_states).view(per_head).transpose(1, 2)  # (B, H, T, D)
        key = self.k_proj(hidden_states).view(per_head).transpose(1, 2)  # (B, H, T, D)
        value = self.v_proj(hidden_states).view(per_head).transpose(1, 2)  # (B, H, T, D)
        if self.config.qk_norm:
            query, key = self.q_norm(query), self.k_norm(key)
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.layer_idx)  # (B, H, S, D)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention)
        dropout = self.attention_dropout if self.training else 0.0
        if dropout > 0 and query.device.type == "cpu" and self.config._attn_implementation == "sdpa":
            attend = eager_attention  # on CPUs torch has no fused attention with dropout, and its dropout is slow
        attended, probabilities = attend(
            self, query, key, value, attention_mask, scaling=self.head_dim**-0.5, dropout=dropout, **kwargs
        )  # (B, T, H, D), (B, H, T, S)
        output = self.o_proj(attended.flatten(2))  # (B, T, M)
        return self.output_dropout(output), probabilities


class OelmGPTFeedForward(nn.Module):
    """Two linear layers with a GELU between them, applied at every position."""

    def __init__(self, config: OelmGPTConfig) -> None:
        super().__init__()
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size)
        self.activation_dropout = Dropout(config.dropout)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size)
        self.output_dropout = Dropout(config.dropout)

    def forward(self, hidden_states: Tensor) -> Tensor:
        activations = self.activation_dropout(F.gelu(self.up_proj(hidden_states)))  # (B, T, F)
        output: Tensor = self.output_dropout(self.down_proj(activations))  # (B, T, M)
        return output


class OelmGPTBlock(GradientCheckpointingLayer):
    """Attention, then feed-forward, each on a normalized copy of the residual stream."""

    def __init__(self, config: OelmGPTConfig, layer_idx: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.attention = OelmGPTAttention(config, layer_idx)
        self.feed_forward_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.feed_forward = OelmGPTFeedForward(config)

    def forward(self, hidden_states: Tensor, **kwargs: Any) -> Tensor:
        attended, _ = self.attention(self.attention_norm(hidden_states), **kwargs)
        hidden_states = hidden_states + attended  # (B, T, M)
        hidden_states = hidden_states + self.feed_forward(self.feed_forward_norm(hidden_states))  # (B, T, M)
        return hidden_states


class OelmGPTPreTrainedModel(PreTrainedModel):  # type: ignore[no-untyped-call]
    """Initialization and the capabilities declared to transformers."""

    config: OelmGPTConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["OelmGPTBlock"]  # noqa: RUF012
    _skip_keys_device_placement = ["past_key_values"]  # noqa: RUF012
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_attention_backend = True
    _can_record_outputs = {"hidden_states": OelmGPTBlock, "attentions": OelmGPTAttention}  # noqa: RUF012

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            init.normal_(module.weight, mean=0.0, std=self.config.initializer_range)
        elif isinstance(module, nn.LayerNorm | nn.RMSNorm):
            init.ones_(module.weight)
        if isinstance(module, nn.Linear | nn.LayerNorm) and module.bias is not None:
            init.zeros_(module.bias)


class OelmGPTModel(OelmGPTPreTrainedModel):  # type: ignore[no-untyped-call]
    """Embeddings, blocks and the final LayerNorm."""

    def __init__(self, config: OelmGPTConfig) -> None:
        super().__init__(config)
        # from_pretrained(..., name=value) changes the config after its own check.
        config.validate_architecture()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.embed_positions = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.embedding_dropout = Dropout(config.dropout)
        self.blocks = nn.ModuleList(OelmGPTBlock(config, idx) for idx in range(config.num_hidden_layers))
        self.final_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.gradient_checkpointing = False
        self.post_init()  # type: ignore[no-untyped-call]

    @merge_with_config_defaults  # type: ignore[untyped-decorator]
    @capture_outputs  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("pass either input_ids or inputs_embeds")
        if inputs_embeds is None:
            inputs_embeds = self.embed_tokens(input_ids)  # (B, T, M)
        if use_cache and past_key_values is None and self.config.causal:
            past_key_values = DynamicCache(config=self.config)
        past_length = past_key_values.get_seq_length() if past_key_values is not None else 0
        length = past_length + inputs_embeds.shape[1]
        if length > self.config.max_position_embeddings:
            longest = self.config.max_position_embeddings
            raise ValueError(f"the sequence has {length} tokens, more than max_position_embeddings ({longest})")
        # The mask gets only the caller's positions: from restarting ones it infers packed sequences.
        mask = create_causal_mask(
            config=self.config,
            inputs_embeds=inputs_embeds,
            attention_mask=attention_mask,
            past_key_values=past_key_values,
            position_ids=position_ids,
        )
        if position_ids is None and attention_mask is not None and attention_mask.ndim == 2:
            position_ids = (attention_mask.long().cumsum(1) - 1).clamp(min=0)[:, past_length:length]  # (B, T)
        elif position_ids is None:
            position_ids = torch.arange(past_length, length, device=inputs_embeds.device)[None]  # (1, T)
        embedded = inputs_embeds + self.embed_positions(position_ids)  # (B, T, M)
        hidden_states = self.embedding_dropout(embedded)
        for block in self.blocks:
            hidden_states = block(hidden_states, attention_mask=mask, past_key_values=past_key_values, **kwargs)
        hidden_states = self.final_norm(hidden_states)
        return BaseModelOutputWithPast(last_hidden_state=hidden_states, past_key_values=past_key_values)


class OelmGPTForCausalLM(OelmGPTPreTrainedModel, GenerationMixin):  # type: ignore[no-untyped-call]
    """The model with a language modeling head, tied to the token embedding."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: OelmGPTConfig) -> None:
        if not config.causal:
            raise ValueError("a causal language model needs causal=True in its config")
        super().__init__(config)
        self.model = OelmGPTModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()  # type: ignore[no-untyped-call]

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Logits and, with `labels` (the input tokens, -100 where ignored), the next-token loss."""
        outputs = self.model(
            input_ids, attention_mask, position_ids, past_key_values, inputs_embeds, use_cache=use_cache, **kwargs
        )
        logits = self.lm_head(slice_logits_to_keep(outputs.last_hidden_state, logits_to_keep))  # (B, T, V)
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class OelmGPTForSequenceClassification(OelmGPTPreTrainedModel):  # type: ignore[no-untyped-call]
    """The model with a linear classifier on the pooled hidden states of the valid tokens."""

    def __init__(self, config: OelmGPTConfig) -> None:
        super().__init__(config)
        self.model = OelmGPTModel(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)  # type: ignore[arg-type]
        self.post_init()  # type: ignore[no-untyped-call]

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> SequenceClassifierOutput:
        """Class logits and, with `labels`, their cross-entropy; `attention_mask` marks padding."""
        kwargs["use_cache"] = False  # a classified sequence is never continued
        outputs = self.model(input_ids, attention_mask, position_ids, inputs_embeds=inputs_embeds, **kwargs)
        valid = self._valid_tokens(outputs.last_hidden_state, input_ids, attention_mask)
        logits = self.classifier(self._pool(outputs.last_hidden_state, valid))  # (B, C)
        loss = None
        if labels is not None:
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config, **kwargs)
        return SequenceClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )

    def _valid_tokens(self, hidden_states: Tensor, input_ids: Tensor | None, mask: Tensor | None) -> Tensor:
        if mask is not None:
            return mask.bool()  # (B, T)
        if input_ids is not None and self.config.pad_token_id is not None:
            return input_ids != self.config.pad_token_id  # (B, T)
        return hidden_states.new_ones(hidden_states.shape[:2], dtype=torch.bool)  # (B, T)

    def _pool(self, hidden_states: Tensor, valid: Tensor) -> Tensor:
        if self.config.pooling == "mean":
            total = (hidden_states * valid[..., None]).sum(dim=1)  # (B, M)
            return total / valid.sum(dim=1, keepdim=True).clamp(min=1)
        rows, positions = (torch.arange(size, device=valid.device) for size in valid.shape)  # (B,), (T,)
        return hidden_states[rows, (valid * positions).argmax(dim=1)]  # (B, M)


AutoModel.register(OelmGPTConfig, OelmGPTModel, exist_ok=True)
AutoModelForCausalLM.register(OelmGPTConfig, OelmGPTForCausalLM, exist_ok=True)
AutoModelForSequenceClassification.register(OelmGPTConfig, OelmGPTForSequenceClassification, exist_ok=True)
