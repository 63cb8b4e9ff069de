"""`oelm.apply` on a BERT-large shape, next to a loop of single float32 QRs, and the memory it takes.

    python benchmarks/apply.py [--layers 24] [--budget 60]

The loop is the way it was done before: head by head, in float32, weights only. `apply` works in float64, checks every
weight first, keeps a copy for undo and hashes what it wrote. Both are timed; so is the factorization alone. `frames`
factors queries, keys and their product, and proves on the model that attention is what it was.
"""

import argparse
from collections.abc import Callable, Iterator

import torch
import transformers
from torch import nn
from torch.profiler import profile

import oelm
from oelm.heads.init import orthonormalize_rows
from result import Result, Target, parser_for, tell
from side_by_side import seconds_of, take_turns

_FRAMES = Target(rule="at most", number=3.0)


def measure(options: argparse.Namespace) -> Iterator[Result]:
    layers = 1 if options.quick else options.layers
    config = transformers.BertConfig(
        num_hidden_layers=layers, hidden_size=1024, num_attention_heads=16, intermediate_size=4096, vocab_size=2
    )
    torch.manual_seed(0)
    model = transformers.BertModel(config, add_pooling_layer=False)
    projections = [m for layer in model.encoder.layer for m in (layer.attention.self.query, layer.attention.self.key)]
    question = f"apply, BERT-large shape of {layers} layers"

    def loop() -> None:
        for projection in projections:
            loop_of_single_qrs(projection.weight, 16)

    def batched() -> None:
        for projection in projections:
            with torch.no_grad():
                for heads in projection.weight.view(4, 4, 64, 1024):
                    heads.copy_(orthonormalize_rows(heads.double()))

    def treat(init: str, scale: str = "unit") -> Callable[[], float]:
        def visit() -> float:
            treated: list[oelm.Applied] = []
            seconds = seconds_of(lambda: treated.append(oelm.apply(model, init=init, scale=scale, freeze="qk")))
            treated[0].undo()
            return seconds

        return visit

    works = {
        "loop": lambda: seconds_of(loop),
        "factorization": lambda: seconds_of(batched),
        "orthogonalize": treat("orthogonalize"),
        "orthogonal": treat("orthogonal"),
        "frames": treat("frames", "keep"),
        "frames-match": treat("frames", "match"),
    }
    turns = take_turns(works, budget=options.budget)
    for name, what, note in (
        ("factorization", "factorization alone", ""),
        ("orthogonalize", "all of apply, orthogonalize", ""),
        ("orthogonal", "all of apply, orthogonal", "it also draws, in float64"),
    ):
        what = f"time, {what} / a loop of float32 QRs"
        yield turns.result(name, "loop", question=question, what=what, note=note)
    for name, what in (("frames", "frames"), ("frames-match", "frames, scale match")):
        what = f"time, all of apply, {what} / orthogonalize"
        yield turns.result(name, "orthogonalize", question=question, what=what, target=_FRAMES)

    layer = 2 * 1024 * 1024 * 4
    for keep_undo in (True, False):
        peak, kept = memory(model, keep_undo=keep_undo)
        yield Result(
            question=question,
            what=f"peak memory / one layer's queries and keys, keep_undo={keep_undo}",
            value=peak / layer,
            note=f"kept: {kept / layer:.2f} of {layer / 2**20:.0f} MiB",
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
    parser = parser_for(__doc__, budget=60)
    parser.add_argument("--layers", type=int, default=24)
    tell(measure, parser)
