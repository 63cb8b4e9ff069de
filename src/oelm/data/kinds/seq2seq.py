"""Sequence to sequence: one text from another, such as a summary or a translation.

Files are tables with a `source` and a `target` in every row. The loss is that of the tokens of the target, each given
those before it. To be scored, a model writes a text of its own: greedily, the most probable token at every step, up to
`max_target` tokens.

Shapes: B examples, U tokens of a target, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from oelm.data.kinds.kind import IGNORED, Encoded, ExampleKind, Ragged, Rows, ragged_column
from oelm.data.sources import shown_path, shown_row
from oelm.data.tables import read_table
from oelm.data.tasks import Task
from oelm.errors import DataError
from oelm.metrics import score_text

if TYPE_CHECKING:
    from torch import Tensor, nn

_EXAMPLE = '{"source": "a long text", "target": "a short one"}'


@dataclass(frozen=True, kw_only=True)
class SequencePairs(Encoded):
    target_tokens: Ragged
    target_texts: pa.ChunkedArray
    max_target: int
    """Tokens that a model writes at most."""
    tokenizer: Any

    feeds_targets = True

    @property
    def target_length(self) -> int:
        return max(1, round(float(self.target_tokens.lengths.mean())))

    def targets(self, rows: Rows) -> NDArray[np.int64]:
        targets = np.full((len(rows), int(self.target_tokens.lengths[rows].max())), IGNORED, dtype=np.int64)
        for number, row in enumerate(rows):
            tokens = self.target_tokens[row]
            targets[number, : len(tokens)] = tokens
        return targets

    def count_targets(self, rows: Rows) -> int:
        return int(self.target_tokens.lengths[rows].sum())

    def new_answers(self) -> NDArray[np.int64]:
        return np.zeros((len(self), self.max_target), dtype=np.int64)

    def put_answers(self, answers: NDArray[Any], rows: Rows, predicted: NDArray[Any]) -> None:
        written = predicted[:, 1:]  # without the token that a decoder starts with
        answers[rows] = self.tokenizer.pad_token_id
        answers[rows, : written.shape[1]] = written

    def score(self, loss: NDArray[np.float64], answers: NDArray[Any]) -> dict[str, NDArray[Any]]:
        texts = self.tokenizer.batch_decode(answers, skip_special_tokens=True)
        scores = [score_text(text, right.as_py()) for text, right in zip(texts, self.target_texts, strict=True)]
        return {
            "row": self.rows,
            "loss": loss,
            "tokens": self.target_tokens.lengths,
            **{name: np.array([one[name] for one in scores]) for name in scores[0]},
            "text": np.array(texts, dtype=np.object_),
        }


class SequenceToSequence(ExampleKind):
    auto_model = "AutoModelForSeq2SeqLM"
    peft_task = "SEQ_2_SEQ_LM"
    scored_by = "rouge_score"
    has_head = False

    def read(self, path: Path, task: Task) -> tuple[pa.Table, pa.Table | None]:
        table = read_table(path, task)
        source = _read_texts(table, task.usual_columns(task.columns, "source"), path)
        target = _read_texts(table, task.usual_columns((task.label,), "target"), path)
        return pa.table({"text": source, "target": target}), table

    def encode(self, tokenizer: Any, rows: pa.Table, task: Task, *, max_length: int, where: str) -> pa.Table:
        end = tokenizer.eos_token_id
        if end is None:
            raise DataError(
                "the tokenizer has no end-of-text token: a model could not learn where to stop",
                where="recipe.data.tokenizer",
            )
        asked = {"truncation": True, "return_attention_mask": False}
        sources = tokenizer(rows["text"].to_pylist(), max_length=max_length, **asked)
        cut = [bool(one.overflowing) for one in sources.encodings]
        targets = tokenizer(text_target=rows["target"].to_pylist(), max_length=task.max_target, **asked)
        cut_targets = [bool(one.overflowing) for one in targets.encodings]
        return pa.table(
            {
                "tokens": ragged_column([ids or [end] for ids in sources["input_ids"]], pa.int32()),
                "targets": ragged_column(
                    [ids if ids[-1:] == [end] else [*ids[: task.max_target - 1], end] for ids in targets["input_ids"]],
                    pa.int32(),
                ),
                "target": rows["target"],
                "cut": [one or other for one, other in zip(cut, cut_targets, strict=True)],
                "row": rows["row"],
            }
        )

    def load(self, table: pa.Table, *, task: Task, tokenizer: Any) -> SequencePairs:
        tokens = Ragged.of(table["tokens"])
        return SequencePairs(
            tokens=tokens.values,
            offsets=tokens.offsets,
            rows=table["row"].to_numpy(),
            target_tokens=Ragged.of(table["targets"]),
            target_texts=table["target"],
            max_target=task.max_target,
            tokenizer=tokenizer,
        )

    def configure(self, config: Any, task: Task, tokenizer: Any) -> None:
        """With a tokenizer that is not the model's own, its tokens have other numbers."""
        if config.eos_token_id != tokenizer.eos_token_id or config.decoder_start_token_id is None:
            config.decoder_start_token_id = tokenizer.pad_token_id
        config.eos_token_id, config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id

    def finish(self, model: nn.Module, task: Task) -> None:
        """Greedy, whatever the model came with: beams, a least length, words that it may not repeat."""
        from transformers import GenerationConfig

        config: Any = model.config
        names = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
        tokens = {name: getattr(config, name, None) for name in names}
        plain: Any = GenerationConfig(do_sample=False, num_beams=1, max_new_tokens=task.max_target, **tokens)  # type: ignore[no-untyped-call]
        model.generation_config = plain

    def losses(self, outputs: Any, inputs: Mapping[str, Tensor], targets: Tensor) -> Tensor:
        import torch.nn.functional as F

        logits = outputs.logits.flatten(0, 1).float()  # (B * U, V)
        by_token = F.cross_entropy(logits, targets.flatten(), ignore_index=IGNORED, reduction="none")
        return by_token.view_as(targets).sum(1)

    def predict(self, model: nn.Module, inputs: Mapping[str, Tensor], outputs: Any) -> Tensor:
        writer: Any = model
        written: Tensor = writer.generate(
            input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]
        )  # (B, 1 + U), each with the token that it starts with
        return written


def _read_texts(table: pa.Table, names: Sequence[str], path: Path) -> pa.Array:
    name = next((name for name in names if name in table.column_names), None)
    if name is None:
        have = shorten(", ".join(table.column_names[:12]), 200)
        either = " or ".join(dict.fromkeys(names))
        raise DataError(f"no column {either}", where=f"{shown_path(path)}, with the columns {have}", hint=_EXAMPLE)
    texts = table[name].to_pylist()
    for row, text in enumerate(texts):
        if not isinstance(text, str) or not text.strip():
            what = "is missing" if text is None else "is empty" if isinstance(text, str) else "is not a text"
            where = f"{shown_path(path)}, {shown_row(path, row)}"
            raise DataError(f"a {name} {what}", where=where, why=shorten(repr(text), 60), hint=_EXAMPLE)
    return pa.array(texts, pa.large_string())
