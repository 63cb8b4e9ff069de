"""Facts: what is measured of a model and of data, as records keep it. Pure data; imports no torch."""

from dataclasses import asdict, dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Le, Len

from oelm.treatment import Role

Count = Annotated[int, Ge(0), Le(10**18)]
"""A whole number of something; the bound keeps damaged files from numbers that no float can hold."""

Amount = Annotated[float, Ge(0), Le(1e18)]
"""Seconds, a learning rate: nothing below 0, infinite or not a number."""

Share = Annotated[float, Ge(0), Le(1)]

Blocks = dict[Role, tuple[tuple[float, ...], ...]]
"""By role, layer and head."""


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Numbers of weights: unique storage over parameters *and* the floating-point buffers that are saved.

    Buffers count because they may hold frozen weights; tables that are recomputed on loading (rotary frequencies,
    position ids) are not weights.
    """

    total: Count
    """All weights, each once."""
    trainable: Count
    """Those that learn."""
    buffers: Count
    """The part of `total` in buffers, which are not trainable."""
    qk: Count | None
    """Query and key weights and biases, or None if the layout is unknown."""

    @property
    def frozen(self) -> int:
        return self.total - self.trainable

    @property
    def trained_share(self) -> float | None:
        """Weights that learn, as a share of all that the arm has, those of an adapter and its copy of the task head
        among them: what PEFT prints."""
        return self.trainable / self.total if self.total else None

    def to_dict(self) -> dict[str, int | None]:
        return {**asdict(self), "frozen": self.frozen}


@dataclass(frozen=True, kw_only=True)
class AttentionMap:
    """What a head attends to in the first tokens of an example."""

    layer: Count
    """From 0."""
    head: Count
    """From 0."""
    queries: Annotated[int, Ge(1), Le(64)]
    """Rows of the map."""
    weights: Annotated[str, Len(0, 8192)]
    """A byte a weight, in hexadecimal digits and row by row: 00 is 0, ff is 1."""

    def __post_init__(self) -> None:
        if not self.weights or len(bytes.fromhex(self.weights)) % self.queries:
            raise ValueError(f"the weights of a map do not have {self.queries} rows")

    @property
    def rows(self) -> list[list[float]]:
        """The weights, query by query."""
        numbers = [number / 255 for number in bytes.fromhex(self.weights)]
        width = len(numbers) // self.queries
        return [numbers[start : start + width] for start in range(0, len(numbers), width)]


@dataclass(frozen=True, kw_only=True)
class AttentionStats:
    """The heads of a model on one batch, to six digits."""

    norm: Blocks
    """Frobenius norm of every head's block."""
    cosine: Blocks
    """The largest |cosine| of the angle between two rows of every head's block: 0 where they are orthogonal, whatever
    their length."""
    logit_spread: tuple[float | None, ...]
    """By layer: standard deviation of the attention logits over all heads and over all pairs of a query and a key that
    it attends to, without padding."""
    entropy: tuple[float | None, ...]
    """By layer: entropy of the attention weights in nats, the mean over heads and queries."""
    kl: tuple[Amount | None, ...] = ()
    """By layer: KL divergence from the attention weights of the untreated model in nats, the mean over heads and over
    queries of four examples, up to 64 tokens of each. Empty where it is not measured: in trials of a tuning."""
    maps: tuple[AttentionMap, ...] = ()
    """The first head of the first, the middle and the last layer, on the first of these examples."""

    @property
    def mean_kl(self) -> float | None:
        """Over the layers that were measured."""
        known = [value for value in self.kl if value is not None]
        return sum(known) / len(known) if known else None


@dataclass(frozen=True, kw_only=True)
class HeadSpectrum:
    """The form `W_q^T W_k` of a head, and how far treatments would move its attention."""

    layer: int
    head: int
    """Of the queries."""
    spectrum: tuple[float, ...]
    """Singular values, descending."""
    deviation: float
    """max |W W^T - I| of its queries or its keys, whichever is more."""
    kl: dict[str, float | None]
    """By treatment: mean KL divergence from its untreated attention maps in nats; None where it is not known."""

    @property
    def largest(self) -> float:
        return self.spectrum[0]

    @property
    def smallest(self) -> float:
        return self.spectrum[-1]

    @property
    def rank(self) -> float:
        """The effective rank, as the participation ratio of the squares: 1 of one direction, D of D that are alike."""
        squares = [value**2 for value in self.spectrum]
        total = sum(square**2 for square in squares)
        return sum(squares) ** 2 / total if total > 0 else 0.0

    def to_dict(self) -> dict[str, object]:
        numbers = {"largest": self.largest, "smallest": self.smallest, "rank": self.rank}
        return {**asdict(self), **numbers}


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """Texts (documents, pairs) that a split to validate or test on has in common with another split."""

    split: str
    """`validation`, or a `test-<split>`."""
    other: Literal["train", "validation"]
    """The split that has them too."""
    texts: Count
    """Texts of `split`."""
    exact: Count
    """Those of them that are in `other` too, but for case, punctuation and white space."""
    near: Count
    """Those that are nearly in `other`: half of the shorter text in the same words."""
    dropped: Count
    """Texts of `other` that were dropped for it."""


@dataclass(frozen=True, kw_only=True)
class TaskFacts:
    """The tokenized data of a task."""

    data: str
    """Fingerprint of the task, its files and what is held out."""
    tokenizer: str
    """Fingerprint of the tokenizer."""
    files: dict[str, tuple[str, ...]]
    """By published split: a hash of every file."""
    sizes: dict[str, Count]
    """Examples (windows) of `train`, `validation` and every `test-<split>`."""
    cut: dict[str, Count]
    """By split: truncated examples, i.e. those longer than `max_length`."""
    overlap: tuple[Overlap, ...]
    """Of every split that is validated or tested on, with those before it."""
    labels: tuple[str, ...] | None = None
    """Of a classification that found them in its training rows: the classes, in the order of their indices."""
    hub: str | None = None
    """Of a data set that the study names: `owner/name@commit`, which was resolved when it was fetched."""
