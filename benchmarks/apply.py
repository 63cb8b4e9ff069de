"""`oelm.apply` on a BERT-large shape, next to a loop of single float32 QRs, and the memory it takes.

    python benchmarks/apply.py [--layers 24] [--pairs 15]

The loop is the way it was done before: head by head, in float32, weights only. `apply` works in float64, checks every
weight first, keeps a copy for undo and hashes what it wrote. Both are timed; so is the factorisation alone.
"""

import argparse

import torch
import transformers
from torch import nn
from torch.profiler import profile

import oelm
from interleave import Ratio, interleave
from oelm.heads.draw import orthonormalize_rows


def main() -> None:
    parser = argparse.ArgumentParser(description="time and memory of oelm.apply")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--pairs", type=int, default=15)
    options = parser.parse_args()
    config = transformers.BertConfig(
        num_hidden_layers=options.layers, hidden_size=1024, num_attention_heads=16, intermediate_size=4096, vocab_size=2
    )
    torch.manual_seed(0)
    model = transformers.BertModel(config, add_pooling_layer=False)
    projections = [m for layer in model.encoder.layer for m in (layer.attention.self.query, layer.attention.self.key)]
    print(f"BERT-large shape: {options.layers} layers, 16 heads of 64 x 1024, {torch.get_num_threads()} threads")

    def loop() -> None:
        for projection in projections:
            loop_of_single_qrs(projection.weight, 16)

    def batched() -> None:
        for projection in projections:
            with torch.no_grad():
                for heads in projection.weight.view(4, 4, 64, 1024):
                    heads.copy_(orthonormalize_rows(heads.double()))

    treated: list[oelm.Applied] = []

    def treat(init: str) -> None:
        treated.append(oelm.apply(model, init=init, freeze="qk"))

    def undo() -> None:
        treated.pop().undo()

    def against_loop(init: str) -> Ratio:
        return interleave(lambda: treat(init), loop, pairs=options.pairs, after_a=undo)

    print(f"factorisation alone / loop:           {interleave(batched, loop, pairs=options.pairs)}")
    print(f"all of apply, orthogonalize / loop:   {against_loop('orthogonalize')}")
    print(f"all of apply, orthogonal / loop:      {against_loop('orthogonal')}   (also draws, in float64)")

    layer = 2 * 1024 * 1024 * 4
    for keep_undo in (True, False):
        peak, kept = memory(model, keep_undo=keep_undo)
        print(
            f"memory of apply, keep_undo={keep_undo}: peak {peak / layer:.2f}, kept {kept / layer:.2f} "
            f"(in units of one layer's Q/K, {layer / 2**20:.0f} MiB)"
        )


def loop_of_single_qrs(weight: nn.Parameter, num_heads: int) -> None:
    with torch.no_grad():
        heads = weight.view(num_heads, -1, weight.shape[1]).clone()
        for head in range(num_heads):
            q, r = torch.linalg.qr(heads[head].T)
            heads[head] = (q * torch.sign(torch.diag(r))).T
        weight.copy_(heads.view_as(weight))


def memory(model: nn.Module, *, keep_undo: bool) -> tuple[int, int]:
    """Bytes that torch's CPU allocator gave out during `apply`: at the peak, and still held after it."""
    with profile(profile_memory=True) as recorded:
        applied = oelm.apply(model, init="orthogonalize", freeze="qk", keep_undo=keep_undo)
    held = peak = 0
    for event in recorded.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    if keep_undo:
        applied.undo()
    return peak, held


if __name__ == "__main__":
    main()
