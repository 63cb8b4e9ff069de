"""Extractive question answering: where in a context is the answer to a question?

Files are those of SQuAD (JSON with `data`, `paragraphs`, `qas`) or tables as on the hub, with `question`, `context` and
`answers` in every row. A context that is longer than `max_length` is read in windows that overlap by a third of it, 128
tokens at most; the answer is the best span of all windows. The first token of a window stands for "no answer here".

Shapes: B windows, T tokens.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from oelm.data.kinds.kind import Encoded, ExampleKind, Ragged, Rows, char_spans, ragged_column
from oelm.data.sources import shown_path, shown_row
from oelm.data.tables import check_shape, read_table
from oelm.data.tasks import Task
from oelm.errors import DataError
from oelm.metrics import score_answer

if TYPE_CHECKING:
    from torch import Tensor, nn

NO_ANSWER = "no answer"
_ANSWER_TOKENS = 30  # an answer is at most as long, as in the scripts of BERT
_STRIDE = 128
_EXAMPLE = '{"question": "Who?", "context": "Ada did.", "answers": {"text": ["Ada"], "answer_start": [0]}}'


@dataclass(frozen=True, kw_only=True)
class Question:
    text: str
    context: str
    answers: tuple[str, ...]
    """Those that are right; none if the context has none."""
    starts: tuple[int, ...]
    """Character of the context at which each begins."""


@dataclass(frozen=True, kw_only=True)
class QuestionWindows(Encoded):
    """Windows of the contexts of questions; those of a question follow each other."""

    starts: Rows
    ends: Rows
    """First and last token of the answer, 0 where it is not in the window."""
    context_starts: Rows
    """The first token of the context."""
    char_starts: Ragged
    char_ends: Ragged
    """Which characters of the context its tokens stand for."""
    contexts: pa.ChunkedArray
    answers: pa.ChunkedArray
    may_have_none: bool
    """Whether a question may have no answer."""

    @cached_property
    def first_windows(self) -> Rows:
        """Of every question."""
        return np.flatnonzero(np.diff(self.rows, prepend=-1))

    @property
    def num_examples(self) -> int:
        return len(self.first_windows)

    def targets(self, rows: Rows) -> NDArray[np.int64]:
        return np.stack([self.starts[rows], self.ends[rows]], axis=1)

    def count_targets(self, rows: Rows) -> int:
        return len(rows)

    def new_answers(self) -> NDArray[np.float64]:
        return np.zeros((len(self), 4))

    def put_answers(self, answers: NDArray[Any], rows: Rows, predicted: NDArray[Any]) -> None:
        """(its score, first character, end, score of no answer) of the best span of every window."""
        for number, row in enumerate(rows):
            own = slice(self.context_starts[row], self.context_starts[row] + self.char_starts.lengths[row])
            score, first, last = best_span(predicted[number, own, 0], predicted[number, own, 1])
            none = predicted[number, 0].sum()
            answers[row] = score, self.char_starts[row][first], self.char_ends[row][last], none

    def score(self, loss: NDArray[np.float64], answers: NDArray[Any]) -> dict[str, NDArray[Any]]:
        first = self.first_windows
        texts = []
        for begin, end in zip(first, [*first[1:], len(self)], strict=True):
            best = begin + int(answers[begin:end, 0].argmax())
            score, start, stop, _ = answers[best]
            has_none = self.may_have_none and answers[begin:end, 3].min() > score
            texts.append("" if has_none else self.contexts[best].as_py()[int(start) : int(stop)])
        scores = [score_answer(text, self.answers[row].as_py()) for text, row in zip(texts, first, strict=True)]
        number = np.diff([*first, len(self)])
        return {
            "row": self.rows[first],
            "loss": np.add.reduceat(loss, first) / number,
            "exact_match": np.array([one.exact for one in scores], dtype=np.float64),
            "answer_f1": np.array([one.f1 for one in scores], dtype=np.float64),
            "text": np.array(texts, dtype=np.object_),
        }


def best_span(starts: NDArray[Any], ends: NDArray[Any]) -> tuple[float, int, int]:
    """(score, first token, last token): the largest sum of a start and an end that is not before it, nor far behind."""
    best = (-np.inf, 0, 0)
    for length in range(min(_ANSWER_TOKENS, len(starts))):
        sums = starts[: len(starts) - length] + ends[length:]
        first = int(sums.argmax())
        if sums[first] > best[0]:
            best = (float(sums[first]), first, first + length)
    return best


class QuestionAnswering(ExampleKind):
    auto_model = "AutoModelForQuestionAnswering"
    peft_task = "QUESTION_ANS"

    def read(self, path: Path, task: Task) -> tuple[pa.Table, pa.Table | None]:
        squad = load_squad(path)
        table = read_table(path, task) if squad is None else None
        questions = list(_squad_questions(squad, path) if table is None else _table_questions(table, task, path))
        if not questions:
            raise DataError(f"{shown_path(path)} has no questions", hint=_EXAMPLE)
        contexts = pa.array([one.context for one in questions], pa.large_string())
        columns = {
            "text_a": pa.array([one.text for one in questions], pa.large_string()),
            "text_b": contexts,
            "answers": ragged_column([one.answers for one in questions], pa.string()),
            "starts": ragged_column([one.starts for one in questions], pa.int64()),
            "group": contexts,  # the questions of a context are held out together
        }
        return pa.table(columns), table

    def find_labels(self, rows: pa.Table, task: Task) -> tuple[str, ...]:
        """Whether a question may have no answer: whether a training question has none."""
        has_none = any(not answers for answers in rows["answers"].to_pylist())
        return ("answer", NO_ANSWER) if has_none else ("answer",)

    def encode(self, tokenizer: Any, rows: pa.Table, task: Task, *, max_length: int, where: str) -> pa.Table:
        if tokenizer.num_special_tokens_to_add(pair=True) == 0:
            raise DataError(
                "the tokenizer does not support pairs: nothing would separate a question from its context",
                where="recipe.data.tokenizer",
                hint="the tokenizer of an encoder such as BERT",
            )
        questions, contexts, answers, starts = (
            rows[name].to_pylist() for name in ("text_a", "text_b", "answers", "starts")
        )
        unanswerable = next((number for number, some in enumerate(answers) if not some), None)
        if unanswerable is not None and NO_ANSWER not in task.labels:
            raise DataError(
                "a question has no answer, and every training question has one",
                where=f"{where}, row {rows['row'][unanswerable].as_py() + 1}: {shorten(questions[unanswerable], 60)!r}",
                why="no model learns from them that there may be none",
                hint="leave it out; or training questions of which some have none, as in SQuAD 2",
            )
        stride = min(_STRIDE, max_length // 3)
        _check_room_for_contexts(tokenizer, questions, max_length=max_length, stride=stride, where=where)
        encoded = tokenizer(
            questions,
            contexts,
            truncation="only_second",
            max_length=max_length,
            stride=stride,
            return_overflowing_tokens=True,
            return_attention_mask=False,
        )
        made: dict[str, list[Any]] = {name: [] for name in ("start", "end", "first", "char_starts", "char_ends")}
        samples = encoded["overflow_to_sample_mapping"]
        for encoding, sample in zip(encoded.encodings, samples, strict=True):
            own = [place for place, part in enumerate(encoding.sequence_ids) if part == 1]
            if not own:
                raise DataError(
                    "the tokenizer makes nothing of a context",
                    where=f"{where}, row {rows['row'][sample].as_py() + 1}: {shorten(contexts[sample], 60)!r}",
                    hint="leave the question out, or another tokenizer",
                )
            spans = char_spans(encoding)[own]
            first = own[0]
            start, end = _find_tokens(spans, answers[sample], starts[sample])
            made["start"].append(first + start if start is not None else 0)
            made["end"].append(first + end if end is not None else 0)
            made["first"].append(first)
            made["char_starts"].append(spans[:, 0])
            made["char_ends"].append(spans[:, 1])
        types = encoded.get("token_type_ids")
        return pa.table(
            {
                "tokens": ragged_column(encoded["input_ids"], pa.int32()),
                **({} if types is None else {"types": ragged_column(types, pa.int8())}),
                **{name: made[name] for name in ("start", "end", "first")},
                **{name: ragged_column(made[name], pa.int32()) for name in ("char_starts", "char_ends")},
                "context": pa.array([contexts[sample] for sample in samples], pa.large_string()),
                "answers": ragged_column([answers[sample] for sample in samples], pa.string()),
                "cut": [False] * len(samples),
                "row": rows["row"].take(samples),
            }
        )

    def load(self, table: pa.Table, *, task: Task, tokenizer: Any) -> QuestionWindows:
        tokens = Ragged.of(table["tokens"])
        return QuestionWindows(
            tokens=tokens.values,
            types=Ragged.of(table["types"]).values if "types" in table.column_names else None,
            offsets=tokens.offsets,
            rows=table["row"].to_numpy(),
            starts=table["start"].to_numpy(),
            ends=table["end"].to_numpy(),
            context_starts=table["first"].to_numpy(),
            char_starts=Ragged.of(table["char_starts"]),
            char_ends=Ragged.of(table["char_ends"]),
            contexts=table["context"],
            answers=table["answers"],
            may_have_none=NO_ANSWER in task.labels,
        )

    def configure(self, config: Any, task: Task, tokenizer: Any) -> None:
        config.num_labels = 2  # logits of a start and of an end

    def losses(self, outputs: Any, inputs: Mapping[str, Tensor], targets: Tensor) -> Tensor:
        """The mean of the two; padding is no place for an answer, so that nothing hangs on the rest of a batch."""
        import torch
        import torch.nn.functional as F

        is_padding = inputs["attention_mask"] == 0
        both = [logits.float().masked_fill(is_padding, -torch.inf) for logits in _logits(outputs)]
        one, other = (F.cross_entropy(logits, targets[:, i], reduction="none") for i, logits in enumerate(both))
        return (one + other) / 2

    def predict(self, model: nn.Module, inputs: Mapping[str, Tensor], outputs: Any) -> Tensor:
        import torch

        return torch.stack(_logits(outputs), dim=-1).float()  # (B, T, 2)


def _logits(outputs: Any) -> tuple[Tensor, Tensor]:
    """Of starts and ends, each (B, T)."""
    return outputs.start_logits, outputs.end_logits


def _check_room_for_contexts(tokenizer: Any, questions: list[str], *, max_length: int, stride: int, where: str) -> None:
    special = tokenizer.num_special_tokens_to_add(pair=True)
    lengths = [len(ids) for ids in tokenizer(questions, add_special_tokens=False)["input_ids"]]
    longest = int(np.argmax(lengths))
    room = max_length - special - lengths[longest]
    if room <= stride:
        raise DataError(
            f"a question of {lengths[longest]} tokens leaves no room for its context in max_length {max_length}",
            where=f"{where}: {shorten(questions[longest], 60)!r}",
            why=f"there are {special} special tokens, and windows of the context overlap by {stride}",
            hint=f"--set recipe.data.max_length={max(384, 2 * lengths[longest] + 2 * special)}, or leave it out",
        )


def _find_tokens(
    spans: NDArray[np.int64], answers: list[str], starts: list[int]
) -> tuple[int, int] | tuple[None, None]:
    """The first and last token of the first answer in a window of these spans of characters, if all of it is there."""
    if not answers or not len(spans):
        return None, None
    begin, end = starts[0], starts[0] + len(answers[0])
    if begin < spans[0, 0] or end > spans[-1, 1]:
        return None, None
    inside = np.flatnonzero((spans[:, 0] < end) & (spans[:, 1] > begin))
    return (int(inside[0]), int(inside[-1])) if len(inside) else (None, None)


# -- reading ------------------------------------------------------------------------------------------------------


def load_squad(path: Path) -> Any:
    """What is in a file of SQuAD; None of a table."""
    if path.suffix.lower() != ".json":
        return None
    try:
        check_shape(path)
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # a table of several lines, or what its reader has something to say about
        return None
    return content if isinstance(content, dict) and "data" in content else None


def _squad_questions(content: Any, path: Path) -> Iterator[Question]:
    where = file = shown_path(path)
    try:
        for number, article in enumerate(content["data"], 1):
            where = f"{file}, article {number}"
            for paragraph in article["paragraphs"]:
                for asked in paragraph["qas"]:
                    where = f"{file}, question {asked.get('id', '')}: {shorten(str(asked['question']), 60)!r}"
                    texts = [answer["text"] for answer in asked["answers"]]
                    starts = [answer["answer_start"] for answer in asked["answers"]]
                    yield _question(asked["question"], paragraph["context"], texts, starts, where)
    except (LookupError, TypeError, AttributeError) as error:
        raise DataError(
            f"{file} does not have the form of SQuAD",
            where=where,
            why=f"{type(error).__name__}: {error}",
            hint='{"data": [{"paragraphs": [{"context": ..., "qas": [{"question": ..., "answers": [...]}]}]}]}',
        ) from error


def _table_questions(table: pa.Table, task: Task, path: Path) -> Iterator[Question]:
    names, file = (*task.columns, task.label), shown_path(path)
    missing = next((name for name in names if name not in table.column_names), None)
    if missing is not None:
        have = shorten(", ".join(table.column_names[:12]), 200)
        raise DataError(f"no column '{missing}'", where=f"{file}, with the columns {have}", hint=_EXAMPLE)
    for row, (text, context, answers) in enumerate(zip(*(table[name].to_pylist() for name in names), strict=True)):
        where = f"{file}, {shown_row(path, row)}"
        try:
            texts, starts = list(answers["text"] or ()), list(answers["answer_start"] or ())
        except (LookupError, TypeError) as error:
            raise DataError("a question has no lists of answers", where=where, hint=_EXAMPLE) from error
        yield _question(text, context, texts, starts, where)


def _question(text: Any, context: Any, answers: list[Any], starts: list[Any], where: str) -> Question:
    for name, value in (("question", text), ("context", context)):
        if not isinstance(value, str) or not value.strip():
            raise DataError(f"a {name} is empty, or not a text", where=where, hint="leave it out")
        try:
            value.encode()
        except UnicodeEncodeError as error:
            why = f"character {error.start} is {value[error.start]!r}, half of a pair"
            raise DataError(f"a {name} is not valid Unicode", where=where, why=why, hint="leave it out") from error
    if len(answers) != len(starts):
        raise DataError(f"{len(answers)} answers and {len(starts)} starts", where=where, hint=_EXAMPLE)
    for answer, start in zip(answers, starts, strict=True):
        if not isinstance(answer, str) or not answer or not isinstance(start, int):
            raise DataError("an answer is empty, or not a text with a start", where=where, hint=_EXAMPLE)
        found = context[start : start + len(answer)] if start >= 0 else ""
        if found != answer:
            raise DataError(
                f"an answer is not where it is said to be: {shorten(answer, 60)!r}",
                where=where,
                why=f"at character {start} of the context is {shorten(found, 60)!r}",
                hint="count characters, not bytes, from 0; or leave the question out",
            )
    return Question(text=text, context=context, answers=tuple(answers), starts=tuple(starts))
