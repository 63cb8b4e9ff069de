"""A training step with frozen queries and keys against the untreated one, family by family, beside the ceiling.

    python benchmarks/families.py [--width 512] [--layers 4] [--batch 8] [--length 64] [--only bert,gpt2] [--budget 700]

Models are drawn from their configuration, at a size at which matrix products are most of the work. Where queries and
keys have matrices of their own, at least 90 % of what the arithmetic allows should be reached; where they share one
with the values, a ratio of 0.98.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
import transformers
from torch import nn

import oelm
from oelm.bench.flops import Ceiling, work_of
from oelm.models.dropout import use_fast_dropout_
from oelm.models.gpt import OelmGPTConfig, OelmGPTForCausalLM
from oelm.study.recipe import OptimizerConfig
from oelm.train.optim import make_optimizer
from oelm.train.process import keep_memory
from result import Result, Target, parser_for, tell
from side_by_side import seconds_of, take_turns

VOCAB = 1024
SEPARATE, FUSED = "separate", "fused"
REACHED, AT_MOST = 0.9, 0.98


@dataclass(frozen=True, kw_only=True)
class Shape:
    width: int
    layers: int
    batch: int
    length: int

    @property
    def sizes(self) -> dict[str, int]:
        """By the names that most configurations use."""
        return dict(
            hidden_size=self.width,
            num_hidden_layers=self.layers,
            num_attention_heads=self.width // 64,
            intermediate_size=4 * self.width,
            max_position_embeddings=self.length,
            vocab_size=VOCAB,
        )


def _bert(shape: Shape) -> nn.Module:
    return transformers.BertForSequenceClassification(transformers.BertConfig(**shape.sizes))


def _distilbert(shape: Shape) -> nn.Module:
    config = transformers.DistilBertConfig(
        dim=shape.width,
        n_layers=shape.layers,
        n_heads=shape.width // 64,
        hidden_dim=4 * shape.width,
        max_position_embeddings=shape.length,
        vocab_size=VOCAB,
    )
    return transformers.DistilBertForSequenceClassification(config)


def _oelm_gpt(shape: Shape) -> nn.Module:
    return OelmGPTForCausalLM(OelmGPTConfig(**shape.sizes, bos_token_id=0, eos_token_id=0, use_cache=False))


def _llama(shape: Shape) -> nn.Module:
    config = transformers.LlamaConfig(**shape.sizes | {"intermediate_size": 8 * shape.width // 3}, use_cache=False)
    return transformers.LlamaForCausalLM(config)


def _gpt2(shape: Shape) -> nn.Module:
    config = transformers.GPT2Config(
        n_embd=shape.width,
        n_layer=shape.layers,
        n_head=shape.width // 64,
        n_positions=shape.length,
        vocab_size=VOCAB,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    return transformers.GPT2LMHeadModel(config)


def _gpt_neox(shape: Shape) -> nn.Module:
    return transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**shape.sizes, use_cache=False))


def _phi3(shape: Shape) -> nn.Module:
    sizes = shape.sizes | {"intermediate_size": 8 * shape.width // 3}
    config = transformers.Phi3Config(**sizes, bos_token_id=0, eos_token_id=0, pad_token_id=0, use_cache=False)
    return transformers.Phi3ForCausalLM(config)


FAMILIES: dict[str, tuple[str, Callable[[Shape], nn.Module]]] = {
    "bert": (SEPARATE, _bert),
    "distilbert": (SEPARATE, _distilbert),
    "oelm-gpt": (SEPARATE, _oelm_gpt),
    "llama": (SEPARATE, _llama),
    "gpt2": (FUSED, _gpt2),
    "gpt-neox": (FUSED, _gpt_neox),
    "phi3": (FUSED, _phi3),
}


def measure(options: argparse.Namespace) -> Iterator[Result]:
    transformers.logging.set_verbosity_error()
    keep_memory()  # as in our loop
    names = options.only.split(",") if options.only else list(FAMILIES)
    small = options.quick
    shape = Shape(
        width=64 if small else options.width,
        layers=1 if small else options.layers,
        batch=2 if small else options.batch,
        length=8 if small else options.length,
    )
    for name in names:
        yield _family(name, shape, budget=options.budget / len(names), steps=options.steps)


def _family(name: str, shape: Shape, *, budget: float, steps: int) -> Result:
    layout, build = FAMILIES[name]
    torch.manual_seed(0)
    untreated, frozen = build(shape), build(shape)
    frozen.load_state_dict(untreated.state_dict())
    oelm.apply(frozen, init="orthogonal", freeze="qk", keep_undo=False)
    before, after = (work_of(model, batch=shape.batch, length=shape.length) for model in (untreated, frozen))
    saving = Ceiling(baseline=before, treated=after).saving
    works = {"frozen": _step(frozen, shape), "untreated": _step(untreated, shape)}
    turns = take_turns({who: lambda work=work: seconds_of(work, steps) for who, work in works.items()}, budget=budget)
    found = turns.result(
        "frozen",
        "untreated",
        question=f"freezing, {name} ({layout} layout)",
        what="step time, frozen / untreated",
        target=Target(rule="at most", number=1 - REACHED * saving if layout == SEPARATE else AT_MOST),
    )
    return _with_ceiling(found, saving, shape)


def _with_ceiling(found: Result, saving: float, shape: Shape) -> Result:
    assert found.value is not None
    note = (
        f"at best {1 - saving:.4f} by arithmetic, {(1 - found.value) / saving:.0%} of that saving reached; "
        f"{shape.layers} layers of {shape.width}, batch {shape.batch} x {shape.length}"
    )
    return replace(found, note="; ".join(filter(None, (note, found.note))))


def _step(model: nn.Module, shape: Shape) -> Callable[[], None]:
    """As in our loop: fused AdamW on what learns, after clipping."""
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")
    model.to(device).train()
    use_fast_dropout_(model)
    optimizer = make_optimizer(model, OptimizerConfig(lr=1e-6))
    learns = [p for p in model.parameters() if p.requires_grad]
    random = torch.Generator().manual_seed(0)
    tokens = torch.randint(VOCAB, (shape.batch, shape.length), generator=random).to(device)
    classifies = "SequenceClassification" in type(model).__name__
    labels = torch.arange(shape.batch, device=device) % 2 if classifies else tokens

    def step() -> None:
        model(tokens, labels=labels).loss.backward()
        torch.nn.utils.clip_grad_norm_(learns, 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    parser = parser_for(__doc__, budget=700)
    parser.add_argument("--width", type=int, default=512, help="a multiple of 64")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--steps", type=int, default=1, help="of a visit")
    parser.add_argument("--only", help=", ".join(FAMILIES))
    tell(measure, parser)
