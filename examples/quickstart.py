"""Quickstart: train a small GPT with and without frozen orthogonal queries and keys, and audit it.

    make quickstart                                   # or
    python examples/quickstart.py [--steps 150] [--seed 0]

Nothing is downloaded: the text is the source code of Python's own standard library, read as bytes.
"""

import argparse
import sysconfig
from pathlib import Path

import torch
from tqdm import tqdm

import oelm
from oelm.models.gpt import OelmGPTConfig, OelmGPTForCausalLM

ARMS = {
    "baseline": oelm.Treatment(),
    "oelm-nofreeze": oelm.Treatment(init="orthogonal"),
    "oelm-freeze": oelm.Treatment(init="orthogonal", freeze="qk"),
}
BATCH, LENGTH = 16, 128  # sequences, bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.steps < 1 or options.seed < 0:
        parser.error("--steps is at least 1 and --seed at least 0")

    train_bytes, held_out = library_bytes()
    print(f"{len(train_bytes):,} bytes of Python's standard library to learn from, {len(held_out):,} held out\n")
    results = {}
    for name, treatment in ARMS.items():
        print(f"training {name}: {treatment}")
        results[name], applied, audit = train(name, treatment, train_bytes, held_out, options)
    print(f"\n{applied}\n\n{audit}\n")

    print(f"{'arm':<14} {'trainable':>10} {'held-out loss':>14}   after {options.steps} steps, in nats per byte")
    for name, (trainable, loss) in results.items():
        print(f"{name:<14} {trainable:>10,} {loss:>14.4f}")
    print("\nAll arms started from the same other weights and saw the same batches in the same order.")
    print("One seed and a short run show that it works, not which is better.")


def train(name, treatment, train_bytes, held_out, options):
    """One arm: the same start and the same batches as every other arm of the seed."""
    torch.manual_seed(oelm.seed_for(options.seed, "weights"))
    model = OelmGPTForCausalLM(OelmGPTConfig.preset("mini-128", vocab_size=256, dropout=0.0, use_cache=False))
    applied = oelm.apply(model, treatment, seed=options.seed)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3, weight_decay=0.01)
    order = torch.Generator().manual_seed(oelm.seed_for(options.seed, "order"))
    for _ in tqdm(range(options.steps), desc=f"{name:<14}", unit="step", disable=None):
        windows = batch(train_bytes, order)
        model(windows, labels=windows).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    audit = applied.audit(optimizer=optimizer).check()
    return (applied.counts.trainable, evaluate(model, held_out)), applied, audit


def batch(text: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    starts = torch.randint(len(text) - LENGTH, (BATCH,), generator=generator)
    return torch.stack([text[start : start + LENGTH] for start in starts.tolist()]).long()  # (BATCH, LENGTH)


@torch.inference_mode()
def evaluate(model: OelmGPTForCausalLM, text: torch.Tensor) -> float:
    windows = text[: len(text) // LENGTH * LENGTH].view(-1, LENGTH).long()[:200]
    return model.eval()(windows, labels=windows).loss.item()


def library_bytes() -> tuple[torch.Tensor, torch.Tensor]:
    """Every tenth module is held out."""
    paths = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    texts = [torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8) for path in paths if path.stat().st_size]
    return torch.cat([t for i, t in enumerate(texts) if i % 10]), torch.cat(texts[::10])


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit("\nstopped; nothing was written") from None
