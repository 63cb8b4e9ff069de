"""Synthetic tasks: examples that are made, not collected. They ask for nothing but attention.

- `recall`: pairs of a letter and a digit, then one of the letters again: `c 4 a 7 f 1 a` asks for the digit of a, 7.
- `induction`: different letters, then one of them again: `c a f b a` asks for the letter that followed a, f.

All digits (letters) of an example are different, so that those who know which tokens there are, and not which follows
which, can only guess: they are right once in `pairs`. The pair that is asked for is at any place alike. Of `induction`
the first letter is never the answer, so who knows the places as well is right a little more often.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from oelm.data.cache import cached_dir
from oelm.data.tasks import DIGITS, LETTERS, TEST_EXAMPLES
from oelm.seeds import seed_for

EXAMPLES = {"train": 50_000, "validation": 1_000, "test": TEST_EXAMPLES["recall"]}

_FORMAT = 1  # of what is made; a change of it needs a new number
_Words = NDArray[np.str_]


def make_files(task: str, *, pairs: int, seed: int) -> dict[str, tuple[Path, ...]]:
    """The files of a synthetic task by split, made once: the same bytes for the same task, pairs and seed."""

    def make(folder: Path) -> None:
        for split, number in EXAMPLES.items():
            random = np.random.default_rng(seed_for(seed, "synthetic", task, split))
            texts, answers = _MAKERS[task](number, pairs, random)
            rows = [f"{' '.join(text)},{answer}\n" for text, answer in zip(texts, answers, strict=True)]
            (folder / f"{split}.csv").write_text("text,label\n" + "".join(rows), encoding="utf-8", newline="\n")

    folder = cached_dir("synthetic", {"format": _FORMAT, "task": task, "pairs": pairs, "seed": seed}, make)
    return {split: (folder / f"{split}.csv",) for split in EXAMPLES}


def _make_recall(number: int, pairs: int, random: np.random.Generator) -> tuple[_Words, _Words]:
    """(words of every example, what it asks for)."""
    keys, values = (_draw(number, words, pairs, random) for words in (LETTERS, DIGITS))
    rows, asked = np.arange(number), random.integers(pairs, size=number)
    words = np.stack([keys, values], axis=2).reshape(number, 2 * pairs)
    return np.column_stack([words, keys[rows, asked]]), values[rows, asked]


def _make_induction(number: int, pairs: int, random: np.random.Generator) -> tuple[_Words, _Words]:
    """The same: each letter but the last makes a pair with the next."""
    words = _draw(number, LETTERS, pairs + 1, random)
    rows, asked = np.arange(number), random.integers(pairs, size=number)
    return np.column_stack([words, words[rows, asked]]), words[rows, asked + 1]


def _draw(number: int, words: tuple[str, ...], length: int, random: np.random.Generator) -> _Words:
    """Different words for every example, in random order."""
    return random.permuted(np.tile(words, (number, 1)), axis=1)[:, :length]


_MAKERS: dict[str, Callable[[int, int, np.random.Generator], tuple[_Words, _Words]]] = {
    "recall": _make_recall,
    "induction": _make_induction,
}
