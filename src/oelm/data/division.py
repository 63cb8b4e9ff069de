"""Division: which training texts are trained on, held out, or dropped because another split has them too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from oelm.data.overlap import Matches, TextIndex, TextOrPair
from oelm.errors import DataError
from oelm.facts import Overlap

Texts: TypeAlias = Callable[[], Iterable[TextOrPair]]
"""Reads texts from their files, again every time: there may be too many to keep."""
HoldOut: TypeAlias = Callable[[NDArray[Any], NDArray[np.bool_]], dict[str, NDArray[np.int64]]]
"""Chooses what is held out, by role, given (group of every text, whether it may be chosen)."""

_Mask: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Division:
    """What becomes of the texts of the training split."""

    held_out: dict[str, NDArray[np.int64]]
    """By role."""
    dropped: _Mask
    """Neither trained on nor held out."""
    overlap: tuple[Overlap, ...]

    @property
    def trained_on(self) -> _Mask:
        return ~self.dropped & ~_mask(len(self.dropped), *self.held_out.values())

    def roles(self) -> Iterator[str | None]:
        """Of every training text; None if it is dropped."""
        held = {row: name for name, rows in self.held_out.items() for row in rows.tolist()}
        for row, is_dropped in enumerate(self.dropped.tolist()):
            yield held.get(row, None if is_dropped else "train")


def divide(
    texts: Texts,
    published: Mapping[str, Texts],
    *,
    hold_out: HoldOut | None,
    drop: bool,
    groups: NDArray[Any] | None = None,
    sentences: Sequence[tuple[int, ...]] | None = None,
) -> Division:
    """Decide about the training texts, given the splits that are published, by role.

    What is held out is whole groups, and in no published split; without `groups`, the copies of a text are one. Of
    phrases, the whole `sentences` that each is a part of: only these are held out. With `drop`, training texts are
    dropped that are in another split too, or nearly, or parts of held-out sentences alone.
    """
    index = TextIndex((name, text) for name, read in published.items() for text in read())
    found = index.look_up(texts())
    number = len(found.keys)
    is_found = _mask(number, found.rows)
    overlap = _count(index, found, "train", of=is_found, drop=drop)
    if "validation" in published:
        tests = [name for name in published if name != "validation"]
        again = index.look_up(published["validation"]())
        overlap += _count(index, again, "validation", of=np.ones(len(again.keys), bool), drop=False, only=tests)
    if hold_out is None:
        return _unless_empty(Division(held_out={}, dropped=is_found & drop, overlap=overlap))

    if groups is None:  # a text without a word has no copies
        groups = np.where(found.keys == 0, np.arange(number, dtype=np.uint64), found.keys)
    may_be_chosen = ~is_found
    if sentences is not None:
        may_be_chosen &= [whole[0] == row for row, whole in enumerate(sentences)]
    held_out = hold_out(groups, may_be_chosen)
    is_held = {name: _mask(number, rows) for name, rows in held_out.items()}
    any_held = _mask(number, *held_out.values())
    dropped = (is_found & drop) | (np.isin(groups, groups[any_held]) & ~any_held)
    of = ~dropped & ~any_held
    parts = {name: _parts(sentences, rows, any_held) & of for name, rows in held_out.items()} if sentences else {}

    names = {row: name for name, rows in held_out.items() for row in rows.tolist()}
    index = TextIndex((names[row], text) for row, text in enumerate(texts()) if row in names)
    found = index.look_up(text for _, text in zip(range(number), texts(), strict=False))
    overlap += _count(index, found, "train", of=of, drop=drop, parts=parts)
    if len(held_out) > 1:
        overlap += _count(index, found, "validation", of=is_held["validation"], drop=False, only=["test-held_out"])
    if drop:
        dropped |= _mask(number, found.rows) & of
        for some in parts.values():
            dropped |= some
    return _unless_empty(Division(held_out=held_out, dropped=dropped, overlap=overlap))


def _parts(sentences: Sequence[tuple[int, ...]], held: NDArray[np.int64], any_held: _Mask) -> _Mask:
    """Those that are parts of these held-out sentences, and of none that is trained on."""
    wholes = {sentences[row][0] for row in np.flatnonzero(any_held).tolist()}
    own = {sentences[row][0] for row in held.tolist()}
    return np.array([wholes.issuperset(whole) and not own.isdisjoint(whole) for whole in sentences])


def _count(
    index: TextIndex,
    found: Matches,
    other: Literal["train", "validation"],
    *,
    of: _Mask,
    drop: bool,
    only: Sequence[str] | None = None,
    parts: Mapping[str, _Mask] | None = None,
) -> tuple[Overlap, ...]:
    """What the splits of an index have in common with `other`, whose texts are some `of` those that were looked up."""
    mine = of[found.rows]
    rows, texts, exact = found.rows[mine], found.texts[mine], found.exact[mine]
    counted = []
    for split in index.splits if only is None else only:
        numbers = index.splits[split]
        numbers = numbers[numbers >= 0]
        is_same, is_found = (np.isin(numbers, some) for some in (texts[exact], texts))
        own = _mask(len(of), rows[np.isin(texts, numbers)])
        if parts is not None and split in parts:
            own |= parts[split]
        counted.append(
            Overlap(
                split=split,
                other=other,
                texts=len(index.splits[split]),
                exact=int(is_same.sum()),
                near=int((is_found & ~is_same).sum()),
                dropped=int(own.sum()) if drop else 0,
            )
        )
    return tuple(counted)


def _unless_empty(division: Division) -> Division:
    if not division.trained_on.any():
        found = ", ".join(f"{one.exact + one.near} of {one.texts} texts of {one.split}" for one in division.overlap)
        raise DataError(
            "there is nothing left to train on",
            why=f"all training texts are held out, or in another split too: {found} are in train",
            hint="other files in recipe.data.path, a smaller recipe.data.validation, or recipe.data.overlap=keep",
        )
    return division


def _mask(number: int, *rows: NDArray[np.int64]) -> _Mask:
    mask = np.zeros(number, dtype=np.bool_)
    for some in rows:
        mask[some[some < number]] = True  # a file may have grown since; whoever keeps what is made of it will notice
    return mask
