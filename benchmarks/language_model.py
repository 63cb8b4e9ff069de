"""Our training of a GPT Medium-512 as a language model against a plain loop: tokens a second, at the same precision.

    python benchmarks/language_model.py [--batch 2] [--precision fp32] [--budget 240]

The plain loop is what one writes by hand in an afternoon: one matrix for queries, keys and values, torch's attention, a
head tied to the embedding, cross-entropy over all logits, AdamW, clipping. Sizes and dropout are those of our model.
The text is random tokens of a vocabulary as large as GPT-2's.
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from oelm.data.sources import END_OF_TEXT
from oelm.models.gpt import PRESETS
from oelm.study.load import load_study
from oelm.study.study import Study
from oelm.train.cell import supports_bf16
from oelm.train.loop import Loop
from result import Result, Target, parser_for, tell
from sentences import loop_of
from side_by_side import seconds_of, take_turns

VOCAB = 50257
PRESET = "medium-512"
SIZES = PRESETS[PRESET]
CONTEXT = SIZES["max_position_embeddings"]
DROPOUT = 0.1
DOCUMENTS, WORDS = 400, 600


def measure(options: argparse.Namespace) -> Iterator[Result]:
    if options.quick:
        options.batch, options.steps = 1, 1
    with tempfile.TemporaryDirectory() as folder, loop_of(_study(Path(folder), options)) as loop:
        plain = _plain_step(loop, options)
        turns = take_turns(
            {"ours": lambda: seconds_of(loop.step, options.steps), "plain": lambda: seconds_of(plain, options.steps)},
            budget=options.budget,
        )
        tokens = options.batch * CONTEXT / float(np.median(turns.times["ours"]))
        yield turns.result(
            "plain",
            "ours",
            question=f"language model, GPT Medium-512, {options.precision}",
            what="tokens a second, ours / a plain loop",
            target=Target(rule="at least", number=1.2),
            note=f"batch {options.batch} x {CONTEXT} tokens, vocabulary {VOCAB:,}; ours {tokens:,.0f} tokens a second",
        )


# -- ours ----------------------------------------------------------------------------------------------------------


def _study(folder: Path, options: argparse.Namespace) -> Study:
    """The study of GPT Medium-512 on stories, on random words instead."""
    words = [END_OF_TEXT, *(f"w{number}" for number in range(1, VOCAB))]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token=END_OF_TEXT))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END_OF_TEXT).save_pretrained(folder / "tokenizer")
    drawn = np.random.default_rng(0).integers(1, VOCAB, (DOCUMENTS, WORDS))
    for number, document in enumerate(drawn):
        (folder / f"{number}.txt").write_text(" ".join(words[token] for token in document), encoding="utf-8")
    overrides = ["tune=null", f"recipe.data.path={folder}", "recipe.data.task=text", "recipe.data.validation=20"]
    overrides += [f"recipe.data.tokenizer.name={folder / 'tokenizer'}", f"recipe.model.dropout={DROPOUT}"]
    overrides += [f"recipe.batch.size={options.batch}", f"recipe.precision={options.precision}"]
    return load_study("gpt-tinystories-fair", [*overrides, "recipe.budget={steps: 1000000}"])


# -- the plain one -------------------------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self, width: int, heads: int, inner: int):
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)
        self.drop = nn.Dropout(DROPOUT)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norm_1(x)).split(width, dim=2)
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)  # (B, H, T, D)
        dropout = DROPOUT if self.training else 0.0
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
        x = x + self.drop(self.out(attended.transpose(1, 2).reshape(batch, length, width)))
        return x + self.drop(self.down(self.drop(F.gelu(self.up(self.norm_2(x))))))


class PlainGPT(nn.Module):
    def __init__(self, layers: int, width: int, heads: int, inner: int, context: int):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCAB, width), nn.Embedding(context, width)
        self.drop = nn.Dropout(DROPOUT)
        self.blocks = nn.ModuleList(Block(width, heads, inner) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCAB, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.drop(self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device)))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))  # (B, T, V)
        return F.cross_entropy(logits.view(-1, VOCAB), targets.view(-1))


def _plain_step(loop: Loop, options: argparse.Namespace) -> Callable[[], None]:
    device = loop.accelerator.device
    torch.manual_seed(0)
    model = PlainGPT(*SIZES.values()).to(device)
    assert sum(p.numel() for p in model.parameters()) == sum(p.numel() for p in loop.model.parameters())
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    rest = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.01}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-6, fused=device.type == "cuda")
    text = np.array(loop.prepared.train.tokens)
    draw = np.random.default_rng(0)

    def step() -> None:
        starts = draw.integers(len(text) - CONTEXT - 1, size=options.batch)
        tokens = torch.stack([torch.from_numpy(text[i : i + CONTEXT].astype(np.int64)) for i in starts]).to(device)
        targets = torch.stack([torch.from_numpy(text[i + 1 : i + 1 + CONTEXT].astype(np.int64)) for i in starts])
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=options.precision == "bf16"):
            loss = model(tokens, targets.to(device))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


if __name__ == "__main__":
    parser = parser_for(__doc__, budget=240)
    parser.add_argument("--batch", type=int, default=32 if torch.accelerator.is_available() else 2)
    parser.add_argument("--steps", type=int, default=2, help="of a visit")
    parser.add_argument("--precision", default="bf16" if supports_bf16() else "fp32", choices=["fp32", "bf16"])
    tell(measure, parser)
