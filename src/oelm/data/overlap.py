"""Overlap: texts of one split that are in another too.

Texts are compared by their words, without regard to case, punctuation, white space and forms of a character (NFKC).
Two texts are the same if all their words are. They are nearly the same if they share half of the shingles (five words
in a row) of the shorter one, and at least eight: less is found in any two texts on one topic. Of a pair, both texts
must be. A text without a word is like no other.
"""

import hashlib
import unicodedata
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

TextOrPair: TypeAlias = Sequence[Iterable[str]]
"""One text, or the two of a pair; each in parts to concatenate."""

_SHINGLE = 5  # words
_FEWEST = 8  # shingles in common, i.e. twelve words in a row
_SHARE = 0.5  # of the shingles of the shorter text
_COMMON = 20  # texts of an index: a shingle of more is an idiom or boilerplate, and tells nothing
_MOST = 4096  # shingles kept of a text in the index: those with the smallest hashes, so that memory is bounded
_BLOCK = 2**17  # characters of a text at a time
_BATCH = 2**18  # characters of texts that are looked up together

_Hashes: TypeAlias = NDArray[np.uint64]
_Numbers: TypeAlias = NDArray[np.int64]


class _WordCharacters(dict[int, int | str]):
    """For `str.translate`: characters of words as they are, all others as spaces."""

    def __missing__(self, code: int) -> int | str:
        character = chr(code)
        kind = unicodedata.category(character)
        if kind[0] in "PZC" or kind == "Sk":  # not the other symbols: prices, sums and smileys differ by them
            self[code] = " "
        elif kind == "Lo" and unicodedata.east_asian_width(character) == "W":  # written without spaces
            self[code] = f" {character} "
        else:
            self[code] = code
        return self[code]


_WORDS = _WordCharacters()


def normalize(text: str) -> str:
    """The words of a text, with one space between them."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().translate(_WORDS).split())


@dataclass(frozen=True, kw_only=True)
class Matches:
    """What was found of some texts in an index, by their numbers."""

    keys: _Hashes
    """Of every text: equal for the same words, 0 for none."""
    rows: _Numbers
    """The texts that were found, once for each text of the index that they are like."""
    texts: _Numbers
    """That one."""
    exact: NDArray[np.bool_]
    """Whether it is the same, and not nearly the same."""


class TextIndex:
    """Texts to look others up in. Those with the same words have one number."""

    def __init__(self, texts: Iterable[tuple[str, TextOrPair]]):
        """From the texts of some splits, each with the name of its split."""
        numbers: dict[int, int] = {}
        placed: dict[str, list[int]] = {}
        hashes: list[_Hashes] = []
        owners: list[int] = []
        halvings: list[int] = []
        self._sides = 1
        for split, text in texts:
            self._sides = len(text)
            key, kept, halved = _read(text)
            number = numbers.setdefault(key, len(numbers)) if key else -1
            placed.setdefault(split, []).append(number)
            if key and number * self._sides == len(halvings):  # a new one
                hashes += kept
                owners += [number * self._sides + side for side in range(len(kept))]
                halvings += halved
        self.splits = {split: np.array(found, dtype=np.int64) for split, found in placed.items()}
        """By split: the number of every text, -1 for one without a word."""
        self.size = len(numbers)
        self._keys = np.array(sorted(numbers), dtype=np.uint64)
        self._key_texts = np.array([numbers[key] for key in self._keys.tolist()], dtype=np.int64)
        self._set_shingles(hashes, owners, halvings)

    def _set_shingles(self, hashes: list[_Hashes], owners: list[int], halvings: list[int]) -> None:
        """Inverted: the sides of texts that each shingle is in."""
        lengths = [len(some) for some in hashes]
        flat = np.concatenate([*hashes, np.zeros(0, np.uint64)])
        hashes.clear()
        order = np.argsort(flat)
        self._owners = np.repeat(np.array(owners, dtype=np.int32), lengths)[order]
        flat = flat[order]
        self._starts = np.flatnonzero(np.diff(flat, prepend=~flat[:1]))
        self._shingles = flat[self._starts]
        times = np.diff(self._starts, append=len(flat))
        self._is_common = times > _COMMON
        self._times = np.where(self._is_common, 0, times)
        self._halvings = np.array(halvings, dtype=np.int64)
        rare = self._owners[np.repeat(~self._is_common, times)]
        self._sizes = np.bincount(rare, minlength=len(halvings))

    def look_up(self, texts: Iterable[TextOrPair]) -> Matches:
        """Find the texts that are the same or nearly the same as some of the index."""
        keys = array("Q")
        batch: list[str] = []
        sides: list[int] = []
        size = 0
        near = [np.zeros((0, 2), np.int64)]
        for row, text in enumerate(texts):
            digest = _Key()
            for side, parts in enumerate(text):
                digest.begin_text()
                for words in _blocks(parts):
                    digest.add(words)
                    if not self.size:
                        continue
                    batch.append(words)
                    sides.append(row * self._sides + side)
                    size += len(words)
                    if size >= _BATCH:
                        near.append(self._find(batch, sides))
                        batch, sides, size = [], [], 0
            keys.append(digest.key())
        near.append(self._find(batch, sides))
        return self._matches(np.array(keys, dtype=np.uint64), np.concatenate(near))

    def _matches(self, keys: _Hashes, near: _Numbers) -> Matches:
        """From the keys of all texts, and (side of a row, side of a text) of all sides that are nearly the same."""
        place = np.minimum(np.searchsorted(self._keys, keys), max(0, len(self._keys) - 1))
        same = np.flatnonzero(self._keys[place] == keys) if len(self._keys) else np.zeros(0, np.int64)
        copies = np.stack([same, self._key_texts[place[same]]], axis=1) if len(same) else np.zeros((0, 2), np.int64)
        sided = np.unique(near, axis=0)
        both, number = np.unique(sided // self._sides, axis=0, return_counts=True)
        alike = both[number == self._sides]
        width = max(1, self.size)
        alike = alike[~np.isin(alike @ [width, 1], copies @ [width, 1])]
        found = np.concatenate([copies, alike])
        exact = np.arange(len(found)) < len(copies)
        return Matches(keys=keys, rows=found[:, 0], texts=found[:, 1], exact=exact)

    def _find(self, batch: list[str], sides: list[int]) -> _Numbers:
        """(side of a row, side of a text) of those that are nearly the same."""
        if not batch or not len(self._shingles):
            return np.zeros((0, 2), np.int64)
        side = np.array(sides, dtype=np.int64) % self._sides
        owner, hashes = _shingles(batch, side, whole=self._sides > 1)
        order = np.lexsort((hashes, owner))
        owner, hashes = owner[order], hashes[order]
        is_first = (np.diff(owner, prepend=-1) != 0) | (np.diff(hashes, prepend=~hashes[:1]) != 0)
        owner, hashes = owner[is_first], hashes[is_first]  # every shingle of a text once
        place = np.minimum(np.searchsorted(self._shingles, hashes), len(self._shingles) - 1)
        is_known = self._shingles[place] == hashes
        counts = ~(is_known & self._is_common[place])
        sizes = np.bincount(owner[counts], minlength=len(batch))
        piece, shingle = owner[is_known & counts], place[is_known & counts]
        # All texts that it is in, and for every pair of texts the number of shingles that they share.
        times = self._times[shingle]
        first = np.repeat(self._starts[shingle] - np.cumsum(times) + times, times)
        there = self._owners[first + np.arange(times.sum())]
        pairs, shared = np.unique(np.repeat(piece, times) * len(self._sizes) + there, return_counts=True)
        here, there = np.divmod(pairs, len(self._sizes))
        shorter = np.minimum(sizes[here] / 2.0 ** self._halvings[there], self._sizes[there])
        enough = np.where(self._halvings[there] < 0, 1, np.maximum(_FEWEST, _SHARE * shorter))
        found = shared >= enough
        return np.stack([np.array(sides, dtype=np.int64)[here[found]], there[found]], axis=1)


def sentences_of(texts: Sequence[str]) -> list[tuple[int, ...]]:
    """Of texts some of which are parts of others: for each, those whole ones that it is a part of, by their numbers.

    One that is part of no longer one is whole, and has its own number; of copies, which may lack the full stop, that
    of the longest. So does one without a word.
    """
    normalized = [normalize(text) for text in texts]
    longest: dict[str, int] = {}
    for number in sorted(range(len(texts)), key=lambda number: -len(texts[number])):
        longest.setdefault(normalized[number], number)
    lengths: dict[str, set[int]] = {}  # of texts, by how they begin
    for text in longest:
        words = text.split()
        lengths.setdefault(" ".join(words[:3]), set()).add(len(words))
    found: dict[str, list[int]] = {}
    for text in sorted(longest, key=lambda text: -text.count(" ")):
        if text in found:
            continue
        words = text.split()
        for start in range(len(words)):
            begins = {" ".join(words[start : start + number]) for number in (1, 2, 3)}
            for length in {length for begin in begins for length in lengths.get(begin, ())}:
                part = " ".join(words[start : start + length])
                if start + length <= len(words) and part in longest and found.get(part, [-1])[-1] != longest[text]:
                    found.setdefault(part, []).append(longest[text])
    return [tuple(sorted(found[text])) if text else (number,) for number, text in enumerate(normalized)]


class _Key:
    """A hash of the words of a text; 64 bits tell ten million apart, but for a chance below a millionth."""

    def __init__(self) -> None:
        self._digest = hashlib.blake2b(digest_size=8)
        self._has_words = False

    def begin_text(self) -> None:
        self._digest.update(b"\n")

    def add(self, words: str) -> None:
        self._digest.update(words.encode("utf-8", "surrogatepass") + b" ")
        self._has_words = True

    def key(self) -> int:
        return int.from_bytes(self._digest.digest()) if self._has_words else 0


def _read(text: TextOrPair) -> tuple[int, list[_Hashes], list[int]]:
    """(key, shingles of each side, how many times each was halved in number; -1 for one that is taken as a whole)."""
    digest = _Key()
    kept, halvings = [], []
    for side, parts in enumerate(text):
        digest.begin_text()
        hashes, halved, is_short = np.zeros(0, np.uint64), 0, len(text) > 1
        for number, words in enumerate(_blocks(parts)):
            digest.add(words)
            is_short = is_short and number == 0 and words.count(" ") < _SHINGLE + _FEWEST - 2
            _, more = _shingles([words], np.array([side]), whole=is_short)
            hashes = np.unique(np.concatenate([hashes, _smallest(more, halved)]))
            while len(hashes) > _MOST:
                halved += 1
                hashes = _smallest(hashes, halved)
        kept.append(hashes)
        halvings.append(-1 if is_short else halved)
    return digest.key(), kept, halvings


def _smallest(hashes: _Hashes, halved: int) -> _Hashes:
    """Half of all that there can be, as many times."""
    return hashes[hashes >> np.uint64(64 - halved) == 0] if halved else hashes


def _blocks(parts: Iterable[str]) -> Iterator[str]:
    """The normalized words of a text, some at a time; nothing if there are none."""
    rest = ""
    for part in parts:
        for start in range(0, len(part), _BLOCK):
            rest += part[start : start + _BLOCK]
            if len(rest) >= _BLOCK:
                head, space, tail = rest.rpartition(" ")
                rest = tail if space else ""
                if words := normalize(head if space else tail):
                    yield words
    if words := normalize(rest):
        yield words


def _shingles(texts: Sequence[str], sides: _Numbers, *, whole: bool) -> tuple[_Numbers, _Hashes]:
    """(number of the text, hash) of every shingle, each side with hashes of its own.

    With `whole`, a text that has too few of them has one: all its words. The hash is a polynomial of the bytes modulo
    2^64, from differences of one cumulative sum, and then mixed.
    """
    data = np.frombuffer(" ".join(texts).encode("utf-8", "surrogatepass"), dtype=np.uint8)
    spaces = np.flatnonzero(data == ord(" "))
    starts, ends = np.concatenate([[0], spaces + 1]), np.concatenate([spaces, [len(data)]])
    lengths = np.array([text.count(" ") + 1 for text in texts])
    owner = np.repeat(np.arange(len(texts)), lengths)
    is_short = (lengths < _SHINGLE + _FEWEST - 1) & whole
    first = np.flatnonzero((owner[: 1 - _SHINGLE] == owner[_SHINGLE - 1 :]) & ~is_short[owner[: 1 - _SHINGLE]])
    begins = np.concatenate([[0], np.cumsum(lengths)])
    short = np.flatnonzero(is_short)
    first, last = np.concatenate([first, begins[short]]), np.concatenate([first + _SHINGLE - 1, begins[short + 1] - 1])
    powers, inverse = _powers(1 << len(data).bit_length())
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum((data + np.uint64(1)) * powers[: len(data)])])
    hashes = (sums[ends[last]] - sums[starts[first]]) * inverse[starts[first]]
    salt = sides[owner[first]].astype(np.uint64) * np.uint64(2) + is_short[owner[first]].astype(np.uint64)
    return owner[first], _mix(hashes + salt * np.uint64(0x9E3779B97F4A7C15))


@lru_cache(maxsize=4)
def _powers(number: int) -> tuple[_Hashes, _Hashes]:
    """Powers of an odd number modulo 2^64, and their inverses."""
    base = 0x5851F42D4C957F2D
    powers, inverse = (np.full(number, one, dtype=np.uint64) for one in (base, pow(base, -1, 2**64)))
    np.multiply.accumulate(powers, out=powers)
    np.multiply.accumulate(inverse, out=inverse)
    return powers, inverse


def _mix(hashes: _Hashes) -> _Hashes:
    """The end of splitmix64: all bits of the result depend on all bits."""
    hashes = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    hashes = (hashes ^ (hashes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return hashes ^ (hashes >> np.uint64(31))
