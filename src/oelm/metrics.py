"""Metrics: every measurement by name, what kind it is, which direction is better, and how it is computed. No torch.

Other modules ask here; `register_metric` adds to the table.
"""

from __future__ import annotations

import functools
import math
import re
import string
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from oelm.errors import StudyError, did_you_mean
from oelm.format import Relative

if TYPE_CHECKING:  # a study file is checked without waiting for numpy
    import numpy as np
    from numpy.typing import NDArray

    Classes = NDArray[np.int64]
    Numbers = NDArray[np.float64]

ROUNDING = 1e-6
"""By which a measurement may be outside of its range."""
Direction = Literal["higher", "lower"]
Kind = Literal["predictions", "correlation", "loss", "curve", "count", "time", "memory", "tuning"]
ClassMetric = Callable[[Any, Any, int], float]
"""(labels, predictions, number of classes) of all examples of a split; of a regression, numbers of no class."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    name: str
    kind: Kind
    """Made of right and wrong predictions, of predicted numbers taken together, of losses, of the training itself (a
    curve, a count, a time, memory), or of the trials of a tuning."""
    direction: Direction
    """Which way is better."""
    compute: ClassMetric | None = None
    """From labels and predictions, of what is made of them; None of what is made of the kept predictions of its kind
    of task (`runs/predictions.py`)."""
    low: float = -math.inf
    high: float = math.inf
    """From what to what it can be."""
    relative: bool = False
    """Judged by its logarithm: two values differ by a share of each other, and so does a margin."""

    def judged(self, value: float) -> float:
        """A value on the scale on which it is averaged, compared and tested."""
        return math.log(value) if self.relative else value

    def level(self, judged: float) -> float:
        """The value that is judged so."""
        return (math.exp(judged) if judged < 700 else math.inf) if self.relative else judged

    def effect(self, difference: float) -> float:
        """A difference on that scale, as it is shown."""
        return Relative(self.level(difference) - 1) if self.relative else difference

    def margin(self, effect: float) -> float:
        """A smallest effect of interest on that scale: a perplexity that is 5 % larger is `log(1.05)` away."""
        return math.log1p(effect) if self.relative else effect

    @property
    def is_quality(self) -> bool:
        """Whether it says how good a model is, on examples that it was not trained on."""
        return self.kind in ("predictions", "correlation", "loss")

    @property
    def is_share(self) -> bool:
        """Whether it is between 0 and 1."""
        return (self.low, self.high) == (0, 1)


def _accuracy(labels: Classes, predicted: Classes, classes: int) -> float:
    confusion = _confusion(labels, predicted, classes)
    return float(confusion.trace() / confusion.sum())


def _macro_f1(labels: Classes, predicted: Classes, classes: int) -> float:
    f1, is_present = _f1_by_class(labels, predicted, classes)
    return float(f1[is_present].mean())


def _binary_f1(labels: Classes, predicted: Classes, classes: int) -> float:
    """Of class 1."""
    return float(_f1_by_class(labels, predicted, classes)[0][1])


def _matthews(labels: Classes, predicted: Classes, classes: int) -> float:
    confusion = _confusion(labels, predicted, classes)
    total, right = confusion.sum(), confusion.trace()
    actual, guessed = confusion.sum(1), confusion.sum(0)
    spread = math.sqrt(float(total**2 - guessed @ guessed)) * math.sqrt(float(total**2 - actual @ actual))
    return float((right * total - actual @ guessed) / spread) if spread else 0.0


def _confusion(labels: Classes, predicted: Classes, classes: int) -> NDArray[np.float64]:
    """(classes, classes): how often each label was given each prediction."""
    import numpy as np

    return np.bincount(labels * classes + predicted, minlength=classes**2).reshape(classes, classes).astype(float)


def _f1_by_class(labels: Classes, predicted: Classes, classes: int) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """F1 of every class, and which classes have one: those that are there or predicted."""
    confusion = _confusion(labels, predicted, classes)
    right, actual, guessed = confusion.diagonal(), confusion.sum(1), confusion.sum(0)
    return 2 * right / (actual + guessed).clip(1), actual + guessed > 0


def _mse(labels: Numbers, predicted: Numbers, classes: int = 0) -> float:
    return float(((labels - predicted) ** 2).mean())


def _pearson(labels: Numbers, predicted: Numbers, classes: int = 0) -> float:
    from scipy.stats import pearsonr

    return _correlation(pearsonr, labels, predicted)


def _spearman(labels: Numbers, predicted: Numbers, classes: int = 0) -> float:
    from scipy.stats import spearmanr

    return _correlation(spearmanr, labels, predicted)


def _correlation(of: Callable[..., Any], labels: Numbers, predicted: Numbers) -> float:
    """0 where all labels, or all predictions, are the same, as of Matthews: nothing goes with anything."""
    import numpy as np

    if not (np.isfinite(labels).all() and np.isfinite(predicted).all()):
        return math.nan
    if len(labels) < 2 or np.ptp(labels) == 0 or np.ptp(predicted) <= 1e-12 * np.abs(predicted).max():
        return 0.0
    return float(of(labels, predicted).statistic)


def _quality(name: str, compute: ClassMetric | None = None, *, low: float = 0) -> Metric:
    return Metric(name=name, kind="predictions", direction="higher", compute=compute, low=low, high=1)


def _cost(name: str, kind: Kind, *, low: float = 0, high: float = sys.float_info.max, relative: bool = False) -> Metric:
    return Metric(name=name, kind=kind, direction="lower", low=low, high=high, relative=relative)


_METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        _quality("accuracy", _accuracy),
        _quality("macro_f1", _macro_f1),
        _quality("f1", _binary_f1),
        _quality("matthews", _matthews, low=-1),
        Metric(name="pearson", kind="correlation", direction="higher", compute=_pearson, low=-1, high=1),
        Metric(name="spearman", kind="correlation", direction="higher", compute=_spearman, low=-1, high=1),
        # Of token classification: entities with all of their words and their type right, and words.
        _quality("entity_f1"),
        _quality("token_accuracy"),
        # Of question answering: the words of the answer, all of them and in part.
        _quality("exact_match"),
        _quality("answer_f1"),
        # Of texts that a model writes: the words, the pairs of words and the longest sequence that they share.
        _quality("rouge1"),
        _quality("rouge2"),
        _quality("rougeL"),
        _cost("loss", "loss"),
        # The loss of a regression, by its own name.
        replace(_cost("mse", "loss"), compute=_mse),
        # The power of the loss, and judged as the loss; of one that no float has the power of, it is infinite.
        _cost("perplexity", "loss", low=1, high=math.inf, relative=True),
        # In every record, whatever the task.
        _cost("trainable", "count"),
        Metric(name="frozen", kind="count", direction="higher", low=0),
        Metric(name="total", kind="count", direction="higher", low=0),
        _cost("step_seconds", "time"),
        _cost("training_seconds", "time"),
        _cost("peak_memory", "memory"),
        # The validation loss, on average over the evaluations of a training: who learns faster has less of it.
        _cost("curve_loss", "curve"),
        _cost("lr_sensitivity", "tuning"),
        # What every seed took of the grid. Neither way is better.
        _cost("tuned_lr", "tuning"),
    )
}
_BUILT_IN = frozenset(_METRICS)


def metric_names(*kinds: Kind) -> tuple[str, ...]:
    return tuple(metric.name for metric in _METRICS.values() if metric.kind in kinds)


MEASURED = metric_names("curve", "count", "time", "memory", "tuning")
"""What there is beside the metrics of a task: in every record, or where the learning rate was tuned."""
TIMES = metric_names("time")
_ROUGE = ("rouge1", "rouge2", "rougeL")
_OF_KINDS = ("entity_f1", "token_accuracy", "exact_match", "answer_f1", *_ROUGE)
BY_EXAMPLE = ("accuracy", *_OF_KINDS, "loss", "perplexity", "mse")
"""What kept predictions give again, and how much every example has to do with it; a correlation is none."""
SHARES = tuple(metric.name for metric in _METRICS.values() if metric.is_share)
"""Between 0 and 1."""


def register_metric(name: str, compute: ClassMetric, *, direction: Direction) -> Metric:
    """Add a metric that every classification task measures from here on.

    `compute(labels, predictions, num_classes)` takes the class indices of all examples of a split as int64 arrays.
    """
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise StudyError(f"'{name}' cannot be the name of a metric", hint="letters, digits and '_'")
    if name in _METRICS:
        raise StudyError(f"metric '{name}' exists already", hint="another name")
    if direction not in get_args(Direction):
        raise StudyError(f"direction '{direction}' of metric '{name}' is not known", hint="higher or lower")
    metric = Metric(name=name, kind="predictions", direction=direction, compute=compute)
    _try_out(metric)
    _METRICS[name] = metric
    return metric


def _try_out(metric: Metric) -> None:
    """Fail here rather than after an hour of training."""
    import numpy as np

    labels, predicted = np.array([0, 1, 1, 0, 1]), np.array([0, 1, 0, 0, 1])
    try:
        assert metric.compute is not None
        float(metric.compute(labels, predicted, 2))
    except Exception as error:
        raise StudyError(
            f"metric '{metric.name}' cannot be computed",
            where=f"labels {labels.tolist()}, predictions {predicted.tolist()}, 2 classes",
            why=f"{type(error).__name__}: {error}",
        ) from error


def registered_metrics() -> tuple[str, ...]:
    """Names of those that `register_metric` has added."""
    return tuple(name for name in _METRICS if name not in _BUILT_IN)


def find_metric(name: str) -> Metric:
    if name not in _METRICS:
        raise StudyError(f"unknown metric '{name}'{did_you_mean(name, _METRICS)}", hint=f"one of {', '.join(_METRICS)}")
    return _METRICS[name]


def class_metrics(names: Iterable[str], labels: Any, predicted: Any, classes: int) -> dict[str, float]:
    """Of these metrics, those that are computed from labels and predictions; of numbers, with 0 classes."""
    computed = {name: find_metric(name).compute for name in names}
    return {name: compute(labels, predicted, classes) for name, compute in computed.items() if compute}


class EntityCounts(NamedTuple):
    """Of a sentence, or of many: what the F1 of entities is made of."""

    right: int
    """Those that were found as they are: the same words, the same type."""
    found: int
    true: int


def count_entities(tags: Sequence[str], predicted: Sequence[str]) -> EntityCounts:
    """The entities of a sentence by its tags in IOB2 and by those that were predicted, as seqeval finds them.

    An `I-` that continues nothing begins an entity, as in conlleval.
    """
    from seqeval.metrics.sequence_labeling import get_entities

    true, found = (set(get_entities(list(one))) for one in (tags, predicted))
    return EntityCounts(right=len(true & found), found=len(found), true=len(true))


class AnswerScore(NamedTuple):
    """Of an answer to a question."""

    exact: float
    f1: float


def score_answer(answer: str, right: Sequence[str]) -> AnswerScore:
    """Exact match and F1 by the formulas of the official script of SQuAD 2: the best over the answers that are right.

    Without any, "" is right. Those of SQuAD 1.1 are the same, but for a right answer of articles and punctuation alone.
    """
    words = _answer_words(answer)
    all_right = [some for some in map(_answer_words, right) if some] or [[]]
    return AnswerScore(
        exact=float(any(words == some for some in all_right)), f1=max(_f1_of_words(words, some) for some in all_right)
    )


def _answer_words(text: str) -> list[str]:
    """In lower case, without punctuation and articles."""
    text = "".join(character for character in text.lower() if character not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", text).split()


def _f1_of_words(words: list[str], right: list[str]) -> float:
    if not words or not right:
        return float(words == right)
    same = (Counter(words) & Counter(right)).total()
    return 2 * same / (len(words) + len(right))


def score_text(text: str, right: str) -> dict[str, float]:
    """ROUGE-1, ROUGE-2 and ROUGE-L (F1) of a text that a model has written, by rouge-score with its stemmer."""
    return {name: float(score.fmeasure) for name, score in _rouge().score(right, text).items()}


@functools.cache
def _rouge() -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(list(_ROUGE), use_stemmer=True)


def check_ranges(metrics: Mapping[str, float]) -> None:
    """Raises a ValueError for a measurement that cannot be one. What a user has registered can be anything."""
    for name, value in metrics.items():
        if name in _BUILT_IN and not (metric := _METRICS[name]).low - ROUNDING <= value <= metric.high + ROUNDING:
            raise ValueError(f"{name} is {value}, and can be from {metric.low:g} to {metric.high:g}")


def is_higher_better(name: str) -> bool:
    return find_metric(name).direction == "higher"
