"""One training step of a frozen GPT-2-shaped model (fused Q/K/V) against the untreated one.

    python benchmarks/step.py [--layers 12] [--vocab 50257] [--pairs 30]

Frozen must not be slower. What can be won is bounded: of the work in linear layers only the weight gradients of Q and
K go away. The bound printed counts multiply-adds of linear layers and the output head, and leaves attention scores and
the optimizer out.
"""

import argparse
from collections.abc import Callable

import torch
import transformers
from torch import nn

import oelm
from interleave import interleave


def main() -> None:
    parser = argparse.ArgumentParser(description="step time of frozen against untreated")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--vocab", type=int, default=50257)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--pairs", type=int, default=30)
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()

    config = transformers.GPT2Config(
        n_layer=options.layers, vocab_size=options.vocab, bos_token_id=0, eos_token_id=0, use_cache=False
    )
    torch.manual_seed(0)
    untreated = transformers.GPT2LMHeadModel(config)
    frozen = transformers.GPT2LMHeadModel(config)
    frozen.load_state_dict(untreated.state_dict())
    applied = oelm.apply(frozen, init="orthogonal", freeze="qk", keep_undo=False)
    tokens = torch.randint(options.vocab, (options.batch, options.length))

    width = config.n_embd
    block = 12 * width * width * options.layers
    bound = 2 * (2 * width * width * options.layers) / (6 * (block + width * options.vocab))
    counts = applied.counts
    print(
        f"GPT-2 shape: {options.layers} layers of {width}, vocabulary {options.vocab:,}, "
        f"batch {options.batch} x {options.length}, {torch.get_num_threads()} threads"
    )
    print(f"frozen {counts.frozen:,} of {counts.total:,} weights")
    ratio = interleave(_step(frozen, tokens), _step(untreated, tokens), pairs=options.pairs)
    print(f"step time frozen / untreated: {ratio}")
    print(f"at best {1 - bound:.3f} by multiply-adds of linear layers, a little less with the optimizer")


def _step(model: nn.Module, tokens: torch.Tensor) -> Callable[[], None]:
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-5)
    model.train()

    def step() -> None:
        model(tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    main()
