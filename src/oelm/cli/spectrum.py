"""`oelm inspect --spectrum`: the sentences that attention is measured on, and the table of what was found."""

from __future__ import annotations

import copy
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from oelm.errors import DataError, ModelError
from oelm.format import DASH, format_columns
from oelm.runs.files import read_regular

if TYPE_CHECKING:
    from torch import nn

    from oelm.facts import HeadSpectrum
    from oelm.heads.spectrum import Spectra

_SENTENCES = [
    "The cat that the dog chased climbed the old tree, and would not come down.",
    "She asked him whether he had read the book that her brother lent them last year.",
    "In 1969 two people walked on the moon while a third one waited for them above it.",
    "The film is slow, overlong and badly lit, but I could not stop watching it.",
    "If the rain stops before noon, we will take the train to the coast; if not, we stay here.",
]
_MOST_BYTES, _MOST_TOKENS = 100_000, 512  # maps grow with the square of the tokens


def read_sentences(path: Path) -> list[str]:
    """The lines of a file that have something in them."""
    if path.is_file() and path.stat().st_size > _MOST_BYTES:
        raise DataError(f"{path} is too long", why=f"it has more than {_MOST_BYTES:,} bytes", hint="a few sentences do")
    if path.exists() and not path.is_file():
        raise DataError(f"{path} is not a file", hint="--text FILE: a few sentences, one a line")
    content = read_regular(path)
    if content is None:
        raise DataError(f"there is no file {path}")
    try:
        lines = [line.strip() for line in content.decode("utf-8").splitlines()]
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not text in UTF-8", why=str(error)) from error
    sentences = [line for line in lines if line]
    if not sentences:
        raise DataError(f"{path} has no sentences in it", hint="one a line")
    return sentences


def spectra_of(model: nn.Module, name: str, sentences: list[str] | None) -> tuple[Spectra, str]:
    """The spectra of a model, and what its attention was measured on, in words."""
    import torch

    from oelm.heads.spectrum import measure_spectra

    if any(parameter.dtype != torch.float32 for parameter in model.parameters()):
        model = copy.deepcopy(model).float()  # a gauge can be proved in float32
    batches, measured_on = _inputs(model, name, sentences)
    return measure_spectra(model, batches), measured_on


def _inputs(model: nn.Module, name: str, sentences: list[str] | None) -> tuple[list[dict[str, Any]], str]:
    """A batch a sentence, so that nothing is padded; one that is made up, if there is no text and no tokenizer."""
    from oelm.data.tokenize import load_tokenizer
    from oelm.heads.gauge import made_up_inputs

    try:
        tokenizer = load_tokenizer(name)
    except DataError as error:
        if sentences is not None:
            hint = "tokenizer.save_pretrained(FOLDER) beside the model, or no --text: then tokens are made up"
            raise DataError(f"--text needs a tokenizer, and {name} has none", why=_why(error), hint=hint) from error
        return [made_up_inputs(model)], "made-up inputs, as the model has no tokenizer"
    ids = [tokenizer(sentence, return_tensors="pt")["input_ids"] for sentence in sentences or _SENTENCES]
    ids = [some for some in ids if some.shape[1] > 0]
    _check_tokens(model, tokenizer, [some.shape[1] for some in ids], max((int(some.max()) for some in ids), default=0))
    is_pair = getattr(model.config, "is_encoder_decoder", False)
    batches = [{"input_ids": some} | ({"decoder_input_ids": some} if is_pair else {}) for some in ids]
    tokens = sum(some.shape[1] for some in ids)
    whose = "sentences of yours" if sentences is not None else "sentences that come with oelm"
    return batches, f"{len(ids)} {whose}, {tokens} tokens"


def _check_tokens(model: nn.Module, tokenizer: Any, lengths: list[int], largest: int) -> None:
    config: Any = model.config
    longest = min(tokenizer.model_max_length, getattr(config, "max_position_embeddings", None) or _MOST_TOKENS)
    if not lengths:
        raise DataError("the sentences have no tokens")
    if max(lengths) > longest:
        raise DataError(
            f"a sentence has {max(lengths)} tokens, and the model takes {longest}", hint="shorter sentences"
        )
    if sum(lengths) > _MOST_TOKENS:
        raise DataError(
            f"the sentences have {sum(lengths):,} tokens together, more than {_MOST_TOKENS}", hint="a few sentences do"
        )
    if largest >= getattr(config, "vocab_size", largest + 1):
        raise ModelError(f"the tokenizer has a token {largest}, and the model only {config.vocab_size}")


def _why(error: DataError) -> str:
    return " ".join(str(error).split())[:200]


def format_spectra(spectra: Spectra, measured_on: str) -> list[str]:
    """A row a head, and what the columns say."""
    names = [*spectra.heads[0].kl, *spectra.refused] if spectra.heads else []
    head = ("layer", "head", "largest", "smallest", "rank", "max |WW'-I|", *names)
    rows = [head, *(_row(one, names) for one in spectra.heads)]
    mean = [_number([one.kl.get(name) for one in spectra.heads]) for name in names]
    rows.append(("mean", "", "", "", _number([one.rank for one in spectra.heads]), "", *mean))
    lines = [
        "spectrum of every head's form W_q^T W_k: its largest and smallest singular value, its effective rank;",
        "and how far treatments of all layers would move what it attends to: mean KL from the untreated maps, in nats",
        *format_columns(rows, left=()),
        f"measured on {measured_on}, as softmax of q.k: what a model adds to that for positions is left out",
    ]
    return lines + [f"{name}: not for this model: {reason}" for name, reason in spectra.refused.items()]


def _row(one: HeadSpectrum, names: list[str]) -> tuple[str, ...]:
    numbers = (f"{one.largest:.3g}", f"{one.smallest:.3g}", f"{one.rank:.1f}", f"{one.deviation:.1e}")
    return (str(one.layer), str(one.head), *numbers, *(_number([one.kl.get(name)]) for name in names))


def _number(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{fmean(known):.3g}" if known else DASH
