"""Chunking: split a long text into chunks with the same tokens, because tokenization needs memory per chunk.

A text is split only between a non-space character and a space: `word| next`. Many pre-tokenizers always split
there, never look behind it, and never look ahead across it from the left, whatever the rest of the text is:

- GPT-2's regular expression (`ByteLevel`) and its successors allow a space in a word only as its first character,
  and look ahead only from the end of a run of spaces. So a split is before the spaces and never among them.
- BERT's pre-tokenizer and those that split at whitespace drop the space.
- `Metaspace` starts a word at every space, and prepends one only where there is none.

For a tokenizer with any other rule, e.g. one that strips or adds spaces at the ends, a text stays one chunk.
"""

import json
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

CHUNK_CHARACTERS = 2**15
_CONTEXT = 256  # characters on either side of a split that are tokenized to verify it
_Rule: TypeAlias = dict[str, Any]  # a part of tokenizer.json, whose schema belongs to the tokenizers library
_TRIES = 16  # splits that are tried before the chunk grows

# Normalizers that change a text character by character, or by a character and the accents that follow it.
_NORMALIZERS = {"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents"}
_DROP_SPACES = {"BertPreTokenizer", "Whitespace", "WhitespaceSplit"}
# Allowed before and after the pre-tokenizer that splits at spaces: those before split by character class, those after
# see one word at a time.
_BEFORE = {"Digits", "Punctuation"}
_AFTER = _BEFORE | _DROP_SPACES | {"ByteLevel"}
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_NON_WORDS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_PATTERNS = {  # of GPT-2; of GPT-4 and Llama 3; of Qwen 2
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _NON_WORDS,
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _NON_WORDS,
}


class TextChunker:
    """Splits texts for one tokenizer; without one, for training a byte-level BPE."""

    def __init__(self, tokenizer: Any = None):
        self._tokenizer = tokenizer
        self._can_split = tokenizer is None or splits_at_spaces(json.loads(tokenizer.backend_tokenizer.to_str()))

    def chunks(self, parts: Iterable[str]) -> Iterator[tuple[str, bool]]:
        """(chunk, whether it is the last) of the concatenation of `parts`."""
        buffer, limit = "", CHUNK_CHARACTERS
        for block in _blocks(parts):
            buffer += block
            if len(buffer) < limit or not self._can_split:
                continue
            at = self._last_split(buffer)
            if at:
                yield buffer[:at], False
                buffer, limit = buffer[at:], CHUNK_CHARACTERS
            else:  # a larger chunk is better than different tokens
                limit = 2 * len(buffer)
        yield buffer, True

    def _last_split(self, text: str) -> int:
        """The last position to split at, or 0."""
        tries, at = 0, len(text) - 1
        while tries < _TRIES and (at := text.rfind(" ", 1, at)) > 0:
            if _is_solid(text[at - 1]):
                tries += 1
                if self._keeps_tokens(text, at):
                    return at
        return 0

    def _keeps_tokens(self, text: str, at: int) -> bool:
        # The rules above are a proof; this catches a tokenizer that does not follow its own rules.
        if self._tokenizer is None:
            return True
        left, right = text[max(0, at - _CONTEXT) : at], text[at : at + _CONTEXT]
        options = {"add_special_tokens": False, "return_attention_mask": False}
        joined, first, second = self._tokenizer([left + right, left, right], **options)["input_ids"]
        return bool(joined == first + second)


def splits_at_spaces(rules: _Rule) -> bool:
    """Whether a tokenizer with the rules of this `tokenizer.json` splits every text wherever `chunks` may split it."""
    splitters = _sequence(rules["pre_tokenizer"], "pretokenizers")
    first = next((number for number, rule in enumerate(splitters) if _is_splitter(rule)), None)
    if first is None or not {rule["type"] for rule in splitters[:first]} <= _BEFORE:
        return False
    # BERT's normalizer adds spaces around Chinese characters, so a chunk may end with a space.
    normalizers = _NORMALIZERS | ({"BertNormalizer"} if splitters[first]["type"] in _DROP_SPACES else set())
    return (
        {rule["type"] for rule in _sequence(rules["normalizer"], "normalizers")} <= normalizers
        and {rule["type"] for rule in splitters[first + 1 :]} <= _AFTER
        # Added tokens are matched first; they may contain spaces, or consume the spaces after them.
        and not any(token["rstrip"] or any(map(str.isspace, token["content"])) for token in rules["added_tokens"])
    )


def _sequence(rule: _Rule | None, name: str) -> list[_Rule]:
    if rule is None:
        return []
    return [one for inner in rule[name] for one in _sequence(inner, name)] if rule["type"] == "Sequence" else [rule]


def _is_splitter(rule: _Rule) -> bool:
    if rule["type"] == "ByteLevel":
        return bool(rule.get("use_regex", True))
    if rule["type"] == "Metaspace":
        return bool(rule.get("split", True))
    if rule["type"] == "Split":
        return rule["pattern"].get("Regex") in _PATTERNS and rule["behavior"] in ("Isolated", "Removed")
    return rule["type"] in _DROP_SPACES


def _is_solid(character: str) -> bool:
    """Whether no normalizer turns it into a space or removes it: accents and composed characters may be stripped."""
    return "!" <= character <= "~" or (character.isalpha() and not unicodedata.decomposition(character))


def _blocks(parts: Iterable[str]) -> Iterator[str]:
    for part in parts:
        yield from (part[start : start + CHUNK_CHARACTERS] for start in range(0, len(part), CHUNK_CHARACTERS))
