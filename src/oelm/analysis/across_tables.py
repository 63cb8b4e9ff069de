"""Tables across studies: every arm in every study and on average, and where studies differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from oelm.analysis.across import Combined, check_different, interaction, mean_over_studies
from oelm.analysis.results import Results
from oelm.analysis.stats.estimate import Interval, holm
from oelm.analysis.stats.power import ALPHA
from oelm.analysis.verdicts import Verdict
from oelm.errors import StudyError
from oelm.format import finite_or_none
from oelm.metrics import find_metric, is_higher_better
from oelm.study.hypothesis import Estimand, Form

Varied = Literal["task", "model", "both", "neither"]


@dataclass(frozen=True, kw_only=True)
class ArmTable:
    """One arm against the baseline in every study, and on average."""

    arm: str
    gap: Combined
    """The difference; of perplexities, their ratio."""
    share: Combined
    """Of the baseline's value, how much it reaches."""
    time: Combined
    """Of the baseline's training time."""
    verdict: Verdict
    """On the mean gap, corrected for the arms (Holm), with the smallest of the studies' margins if all have one.
    No study planned it, so it is exploratory."""


@dataclass(frozen=True, kw_only=True)
class Interaction:
    """How much more an arm's gap is in one study than in another."""

    arm: str
    varied: Varied
    """Between the two studies."""
    gap: Combined


@dataclass(frozen=True, kw_only=True)
class AcrossStudies:
    studies: tuple[Results, ...]
    metric: str
    baseline: str
    arms: tuple[ArmTable, ...]
    interactions: tuple[Interaction, ...]
    """Of every two studies, for the arms that both have."""


def tabulate_studies(studies: Sequence[Results]) -> AcrossStudies:
    """All tables. Studies of different metrics or baselines have no mean."""
    check_different(studies)
    metric, baseline = _shared(studies, "metric"), _shared(studies, "baseline")
    arms = list(dict.fromkeys(arm for results in studies for arm in results.study.arms if arm != baseline))
    form: Form = "ratio" if find_metric(metric).relative else "difference"
    gaps = {arm: Estimand(metric=metric, arm=arm, against=baseline, form=form) for arm in arms}
    means = {arm: mean_over_studies(studies, gaps[arm]) for arm in arms}
    margins = [results.study.compare.margin for results in studies]
    smallest = min((margin for margin in margins if margin is not None), default=None) if None not in margins else None
    verdicts = _verdicts(means, is_higher_better(metric), smallest)
    tables = [
        ArmTable(
            arm=arm,
            gap=means[arm],
            share=mean_over_studies(studies, Estimand(metric=metric, arm=arm, against=baseline, form="ratio")),
            time=mean_over_studies(
                studies, Estimand(metric="training_seconds", arm=arm, against=baseline, form="ratio")
            ),
            verdict=verdicts[arm],
        )
        for arm in arms
    ]
    pairs = [
        Interaction(arm=arm, varied=_varied(one, other), gap=interaction(one, other, gaps[arm]))
        for arm in arms
        for one, other in combinations(studies, 2)
        if arm in one.study.arms and arm in other.study.arms
    ]
    return AcrossStudies(
        studies=tuple(studies), metric=metric, baseline=baseline, arms=tuple(tables), interactions=tuple(pairs)
    )


def _shared(studies: Sequence[Results], field: Literal["metric", "baseline"]) -> str:
    """What all studies compare by, or with."""
    found = {results.study.name: str(getattr(results.study.compare, field)) for results in studies}
    if len(set(found.values())) > 1:
        raise StudyError(
            f"studies with different {field}s have no mean",
            where=", ".join(str(results.folder) for results in studies),
            why=", ".join(
                f"{study} compares {'by' if field == 'metric' else 'with'} {one}" for study, one in found.items()
            ),
            hint=f"name studies of one {field} together",
        )
    return next(iter(found.values()))


def _verdicts(means: dict[str, Combined], higher_is_better: bool, margin: float | None) -> dict[str, Verdict]:
    """By the rules of verdicts on one study."""
    differs = holm({arm: _p_differs(one) for arm, one in means.items()})
    equal = holm({arm: _p_equivalent(one, margin) for arm, one in means.items()})
    found: dict[str, Verdict] = {}
    for arm, one in means.items():
        if one.status == "invalid":
            found[arm] = "invalid"
        elif one.status == "inconclusive" or one.estimate is None or min(differs[arm], equal[arm]) >= ALPHA:
            found[arm] = "inconclusive"
        elif equal[arm] < ALPHA:
            found[arm] = "equivalent"
        else:
            found[arm] = "better" if (one.estimate.mean > 0) == higher_is_better else "worse"
    return found


def _p_differs(one: Combined) -> float:
    """Of perplexities by the logarithm, so no difference is 0."""
    return one.tested.p_differs() if one.tested is not None else 1.0


def _p_equivalent(one: Combined, margin: float | None) -> float:
    return one.tested.p_within(margin) if one.tested is not None and margin is not None else 1.0


def _varied(one: Results, other: Results) -> Varied:
    recipes = one.study.recipe, other.study.recipe
    task = len({recipe.data.task for recipe in recipes}) > 1
    model = len({(recipe.model.label, recipe.model.size) for recipe in recipes}) > 1
    return "both" if task and model else "task" if task else "model" if model else "neither"


def tables_as_dict(tables: AcrossStudies) -> dict[str, object]:
    """Everything in the tables, for scripts."""
    data = {
        "studies": [results.study.name for results in tables.studies],
        "metric": tables.metric,
        "baseline": tables.baseline,
        "arms": [
            {
                "arm": one.arm,
                "verdict": one.verdict,
                "gap": _as_dict(one.gap),
                "share": _as_dict(one.share),
                "training_time": _as_dict(one.time),
            }
            for one in tables.arms
        ],
        "interactions": [
            {"arm": one.arm, "varied": one.varied, "gap": _as_dict(one.gap)} for one in tables.interactions
        ],
    }
    return finite_or_none(data)  # type: ignore[no-any-return]


def _as_dict(one: Combined) -> dict[str, object]:
    return {
        "estimand": str(one.estimand),
        "status": one.status,
        "why": [str(why) for why in one.why],
        "value": one.value,
        "interval": _as_list(one.interval),
        "studies": {
            part.study: {"value": part.value, "interval": _as_list(part.measured.interval), "n": part.measured.n}
            for part in one.parts
        },
    }


def _as_list(interval: Interval | None) -> list[float] | None:
    return [interval.low, interval.high] if interval is not None else None
