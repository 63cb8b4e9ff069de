"""Design: who is compared with whom, and what each side was really given; of a study, of records, or of a claim.

The checks of a design see only this, so a published table is held to the same rules as our own records.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from oelm.analysis.stats.power import ALPHA
from oelm.data.tasks import TEST_EXAMPLES
from oelm.metrics import find_metric
from oelm.study.cells import both_stages, flatten, origin_arm
from oelm.study.overrides import apply_overrides
from oelm.study.recipe import WITHOUT_EFFECT, ModelConfig, Recipe
from oelm.study.sizes import PRESET_SIZES
from oelm.study.study import Study, Value
from oelm.treatment import Treatment

if TYPE_CHECKING:
    from oelm.runs.lock import Lock

FROM_SCRATCH = "oelm-gpt"
_ORIGIN = ("model.from", "model.arm", "model.seed", "model.freeze")


@dataclass(frozen=True, kw_only=True)
class Side:
    """One arm as the checks see it. What is not known is left out, and not judged."""

    name: str
    treatment: Treatment | None
    training: str = ""
    """What it trains instead of all weights, as in a study: `trains: biases`; empty if it trains all."""
    origin: str = ""
    """The arm of another study whose models it starts from, and whether what was frozen there stays so: on purpose."""
    settings: Mapping[str, object] = field(default_factory=dict)
    """What it was trained with, by dotted path: `optimizer.lr`, `batch.size`, `device`, `commit`, ..."""
    declared: frozenset[str] = frozenset()
    """Paths that the study itself says are changed in this arm."""
    grid: Mapping[str, tuple[Value, ...]] | None = None
    """What was tried when tuning it, by path."""
    tuned: Mapping[str, Mapping[int, Value]] = field(default_factory=dict)
    """What the tuning has chosen, by path and seed."""
    trials: int | None = None
    """How many trainings the settings of a cell were chosen from; 1 without tuning."""
    seeds: tuple[int, ...] | None = None
    head_norm: float | None = None
    """Mean Frobenius norm of a head's block at the start."""
    logit_spread: float | None = None
    """Standard deviation of the first attention logits."""


@dataclass(frozen=True, kw_only=True)
class PlannedTest:
    """What a study sets out to tell from no difference, as far as it is known before anything is run."""

    name: str
    """Of a hypothesis; of the comparisons with the baseline, none."""
    margin: float
    """Of a share, such as an accuracy."""
    rule: Literal["find", "equate", "decide"]
    """A difference of the margin is to be found (or excluded, which is as hard), or none to be shown, or either."""
    seeds: int
    family: int
    """How many tests share the level."""
    alpha: float
    """That level: 5 %, or with a second stage half of it."""
    examples: int
    """Of the test split."""


@dataclass(frozen=True, kw_only=True)
class Design:
    sides: dict[str, Side]
    against: str
    """The side that the others are compared with: the baseline."""
    pairs: tuple[tuple[str, str], ...] = ()
    """Other comparisons that are made: those of hypotheses."""
    pretrained: bool | None
    """Whether the model comes with weights that a treatment can lose."""
    width: int | None = None
    same_split: str | None = None
    """The split that both selects and is reported, if there is one."""
    metric: str | None = None
    min_effect: float | None = None
    """On the scale on which the metric is judged, as the spreads are."""
    family: int = 1
    """How many comparisons with the baseline were planned: their tests share the 5 %."""
    hypotheses: int = 1
    """How many hypotheses were: those about `pairs` share it with all of them but counts."""
    alpha: float = ALPHA
    """The level that they share: with a second stage, half of it for each look."""
    tests: tuple[PlannedTest, ...] = ()
    """Confirmatory tests that can be foretold: the hypotheses, or else the comparisons with the baseline."""
    spreads: Mapping[str, float] = field(default_factory=dict)
    """By arm: standard deviation of its differences to the baseline seed by seed, where it was measured."""

    @property
    def compared(self) -> list[tuple[str, str]]:
        """All comparisons that are made, (arm, against)."""
        own = [(name, self.against) for name in self.sides if name != self.against and self.against in self.sides]
        found = {frozenset(pair): pair for pair in reversed((*own, *self.pairs)) if set(pair) <= set(self.sides)}
        return list(reversed(found.values()))  # the other way round is the same comparison


def planned_design(study: Study) -> Design:
    """The design of a study, before anything is run."""
    sides = {}
    for arm in study.arms.values():
        tune, recipe = study.tune, apply_overrides(study.recipe, arm.overrides)
        sides[arm.name] = Side(
            name=arm.name,
            treatment=arm.treatment,
            training=arm.training,
            origin=origin_of(recipe.model, arm.name),
            settings=settings_of(recipe),
            declared=frozenset(arm.overrides),
            grid=None if tune is None else {path: tuple(values) for path, values in tune.grid.items()},
            trials=1 if tune is None else _trials(tune.grid, len(tune.seeds or ()) or 1),
            seeds=both_stages(study).seeds,
        )
    return Design(
        sides=sides,
        against=study.compare.baseline,
        pairs=hypothesis_pairs(study),
        pretrained=is_pretrained(study.recipe.model),
        width=model_width(study.recipe.model),
        same_split=_same_path(study.recipe.data.path),
        metric=study.compare.metric,
        min_effect=study.compare.margin,
        family=len(study.arms) - 1,
        hypotheses=count_tests(study),
        alpha=alpha_of(study),
        tests=tuple(_planned_tests(study)),
    )


def _planned_tests(study: Study) -> Iterator[PlannedTest]:
    """Differences of shares on a test split of known size. What cannot be known beforehand is not judged."""
    compare, data = study.compare, study.recipe.data
    examples = TEST_EXAMPLES.get(data.task) if data.path is None else None
    if examples is None:
        return
    known: dict[str, Any] = {"seeds": len(both_stages(study).seeds), "examples": examples, "alpha": alpha_of(study)}
    if not study.hypotheses:
        if compare.min_effect is not None and find_metric(compare.metric).is_share and len(study.arms) > 1:
            yield PlannedTest(name="", margin=compare.min_effect, rule="decide", family=count_tests(study), **known)
        return
    family = count_tests(study)
    for one in study.hypotheses:
        margin = abs(one.margin) or compare.min_effect  # a rule about 0 is about any difference that matters
        if one.estimand.form == "difference" and find_metric(one.estimand.metric).is_share and margin is not None:
            rule: Literal["find", "equate"] = "equate" if one.rule == "within" else "find"
            yield PlannedTest(name=one.name, margin=margin, rule=rule, family=family, **known)


def without_power(study: Study) -> tuple[str, ...]:
    """Confirmatory tests of which nothing is said beforehand: how far seeds scatter in a loss is not known, nor how
    large a split of one's own is. Hypotheses by name, the comparisons with the baseline by their metric."""
    foretold = {test.name for test in _planned_tests(study)}
    if not study.hypotheses:
        return () if foretold else (study.compare.metric,)
    tested = [one for one in study.hypotheses if find_metric(one.estimand.metric).kind != "count"]
    return tuple(one.name for one in tested if one.name not in foretold)


def alpha_of(study: Study | Lock) -> float:
    """What the tests of one look share. A second stage is a second look, and whatever the tests are, two looks at half
    the level each are together wrong no more often than at the whole (union bound)."""
    return ALPHA / 2 if study.second_stage else ALPHA


def count_tests(study: Study | Lock) -> int:
    """Confirmatory tests, which share the 5 %: the hypotheses but counts, or else the comparisons with the baseline."""
    tested = [one for one in study.hypotheses if find_metric(one.estimand.metric).kind != "count"]
    return len(tested) if study.hypotheses else len(study.arms) - 1


def _same_path(path: str | Mapping[str, str] | None) -> str | None:
    """Splits that are read from one file."""
    seen: dict[str, str] = {}
    for split, file in path.items() if isinstance(path, Mapping) else ():
        if seen.setdefault(file, split) != split:
            return f"{seen[file]} = {split}"
    return None


def hypothesis_pairs(study: Study) -> tuple[tuple[str, str], ...]:
    estimands = [hypothesis.estimand for hypothesis in study.hypotheses]
    pairs = [(one.arm, one.against) for one in estimands if one.against is not None]
    return tuple(pair for pair in dict.fromkeys(pairs) if pair[1] != study.compare.baseline)


def settings_of(recipe: Recipe) -> dict[str, object]:
    """A recipe by dotted path, without what has no effect on a result, and without where its model is from."""
    by_path = flatten(recipe.to_dict()).items()
    return {path: value for path, value in by_path if not path.startswith(WITHOUT_EFFECT) and path not in _ORIGIN}


def origin_of(model: ModelConfig, arm: str) -> str:
    """Where the models of an arm come from, if that is another study."""
    if model.from_ is None:
        return ""
    return f"{Path(model.from_).name}/{origin_arm(model, arm)}, freeze {model.freeze}"


def is_pretrained(model: ModelConfig) -> bool:
    return model.name != FROM_SCRATCH and not model.from_scratch


def _trials(grid: Mapping[str, tuple[Value, ...]], seeds: int) -> int:
    number = seeds
    for values in grid.values():
        number *= len(values)
    return number


def model_width(model: ModelConfig) -> int | None:
    """Of our own GPT; of other models it is not known before they are loaded."""
    preset = None if model.preset is None else PRESET_SIZES[model.preset].width
    return model.width or preset
