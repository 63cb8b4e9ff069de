"""A second opinion: the numbers of a report again, from the files of a run folder alone.

Written from docs/fair-comparison.md, with json, numpy, scipy and pyarrow; nothing of `oelm` is imported. It reads, and
judges, as slowly and plainly as the text says it. What a check blocks is not found out again: the test that made the
folder knows what it has put into it.

Shape suffixes: S = seeds, E = examples.
"""

import json
import math
import re
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
from pyarrow import parquet
from scipy import optimize, special, stats

COUNTS = ("trainable", "frozen", "total")
LOSSES = ("loss", "perplexity")
LOWER_IS_BETTER = (*LOSSES, "trainable", "step_seconds", "training_seconds", "peak_memory")
MEASURED = (*COUNTS, "step_seconds", "training_seconds", "peak_memory")
NODES, WEIGHTS = np.polynomial.legendre.leggauss(400)


# -- the files ---------------------------------------------------------------------------------------------------------


@dataclass
class Cell:
    """A compared seed of an arm, as its folder has it."""

    record: dict
    steps: list
    kept: dict
    """By model and test split, the columns; the first split is the one that is compared."""

    def value(self, metric, model="final", split=None):
        """None where there is no finite number."""
        record = self.record
        if metric in COUNTS:
            counts = record["counts"]
            return counts["total"] - counts["trainable"] if metric == "frozen" else counts[metric]
        if record["status"] != "done":
            return None
        if metric == "step_seconds":
            return float(np.median([row["seconds"] for row in self.steps][len(self.steps) // 10 :]))
        if metric == "training_seconds":
            return record["seconds"]["training"]
        if metric == "peak_memory":
            return record["peak_memory"]["process"]
        splits = record["test"].get(model, {}).get("splits", {})
        found = (splits.get(split, {}) if split else next(iter(splits.values()), {})).get(metric)
        return found if found is not None and math.isfinite(found) else None

    def last_validation(self, metric):
        return self.record["evaluations"][-1]["metrics"][metric]

    @property
    def examples(self):
        split = next(iter(self.record["test"]["final"]["splits"]))
        return self.record["start"]["data"]["sizes"][f"test-{split}"]

    def columns(self, model="final", split=None):
        splits = self.kept.get(model, {})
        return splits.get(split, {}) if split else next(iter(splits.values()), {})

    def scores(self, metric, model="final", split=None):
        """What the metric is the mean of, example by example, and the tokens of each, if it is a document."""
        columns = self.columns(model, split)
        if not columns or metric not in ("accuracy", *LOSSES):
            return None, None
        if metric == "accuracy":
            return (columns["label"] == columns["prediction"]).astype(float), None
        return columns["loss"], columns.get("tokens")


@dataclass
class Folder:
    study: dict
    cells: dict
    """By arm and seed."""
    trials: dict
    """By arm, learning rate and seed: the record of a trial."""
    simple: dict | None
    bench: dict | None

    @property
    def arms(self):
        return [arm for arm in self.study["arms"] if any(name == arm for name, _ in self.cells)]

    @property
    def metric(self):
        return self.study["compare"]["metric"]

    @property
    def baseline(self):
        return self.study["compare"]["baseline"]

    @property
    def treated(self):
        """All that are planned: one family."""
        return [arm for arm in self.study["arms"] if arm != self.baseline]

    @property
    def alpha(self):
        """Of each look: there are two if a second stage was planned."""
        return 0.025 if self.study.get("second_stage") else 0.05

    def stage(self, seeds):
        """What a look at these seeds sees."""
        seen = {place: cell for place, cell in self.cells.items() if place[1] in seeds}
        return replace(self, study={**self.study, "seeds": seeds}, cells=seen)

    def of(self, arm):
        return {seed: cell for (name, seed), cell in self.cells.items() if name == arm}

    def values(self, arm, metric, model="final", split=None):
        found = {seed: cell.value(metric, model, split) for seed, cell in self.of(arm).items()}
        return {seed: value for seed, value in found.items() if value is not None}


def read_folder(place: Path) -> Folder:
    study = json.loads((place / "study.json").read_text())
    cells, trials = {}, {}
    for arm, seed in product(study["arms"], [*study["seeds"], *(study.get("second_stage") or ())]):
        at = place / arm / f"seed-{seed}"
        if (at / "record.json").exists():
            steps = [json.loads(line) for line in (at / "steps.jsonl").read_text().splitlines()]
            cells[arm, seed] = Cell(json.loads((at / "record.json").read_text()), steps, read_kept(at))
    for path in sorted(place.glob("*/tune/*/seed-*/record.json")):
        record = json.loads(path.read_text())
        record["first_loss"] = json.loads((path.parent / "steps.jsonl").read_text().splitlines()[0])["loss"]
        trials[record["spec"]["arm"], record["spec"]["recipe"]["optimizer"]["lr"], record["spec"]["seed"]] = record
    beside = {name: place / f"{name}.json" for name in ("simple_baseline", "bench")}
    found = {name: json.loads(path.read_text()) if path.exists() else None for name, path in beside.items()}
    simple = found["simple_baseline"]["baselines"][0] if found["simple_baseline"] else None
    return Folder(study, cells, trials, simple, found["bench"])


def read_kept(place):
    if not (place / "predictions.parquet").exists():
        return {}
    table = parquet.read_table(place / "predictions.parquet").to_pydict()
    models, splits = (np.array(table.pop(name)) for name in ("model", "split"))
    found = {}
    for model, split in dict.fromkeys(zip(models.tolist(), splits.tolist(), strict=True)):
        at = (models == model) & (splits == split)
        found.setdefault(model, {})[split] = {name: np.array(column)[at] for name, column in table.items()}
    return found


# -- the statistics ----------------------------------------------------------------------------------------------------


@dataclass
class Chance:
    """A mean, and what seeds and examples leave open of it: standard errors and degrees of freedom."""

    mean: float
    seeds: tuple
    examples: tuple | None = None

    def half_width(self, tail):
        sources = [self.seeds, *([self.examples] if self.examples else [])]
        return math.hypot(*(se * stats.t.isf(tail, df) if se else 0.0 for se, df in sources))

    def interval(self, level=0.95):
        if math.isinf(self.seeds[0]):
            return None
        half = self.half_width((1 - level) / 2)
        return [self.mean - half, self.mean + half]

    @property
    def decides(self):
        """From one seed, or from seeds that all agree, nothing is known of how seeds vary."""
        return 0 < self.seeds[0] < math.inf

    def p_above(self, value):
        """The tail whose interval just reaches the value."""
        gap = self.mean - value
        if math.isinf(gap):
            return 0.0 if gap > 0 else 1.0
        if gap == 0:
            return 0.5
        least = max(stats.t.sf(abs(gap) / se, df) for se, df in [self.seeds, self.examples or (0, 1)] if se)
        if self.examples and self.examples[0]:
            logs = math.log(least) - 1, math.log(0.5)
            distance = lambda log_tail: self.half_width(math.exp(log_tail)) - abs(gap)  # noqa: E731
            least = math.exp(optimize.brentq(distance, *logs, xtol=1e-14, rtol=1e-14))
        return least if gap > 0 else 1 - least

    def p_below(self, value):
        return Chance(-self.mean, self.seeds, self.examples).p_above(-value)


NOTHING = Chance(math.nan, (math.inf, 0))


@dataclass
class BothWays:
    """Without the failures, and with them at the worst value; what they can only add to needs the former alone."""

    chance: Chance
    counted: Chance
    adds: str | None
    """`above` or `below`: to a test that it is so."""

    @property
    def decides(self):
        return self.chance.decides

    def p_above(self, value):
        ways = [self.chance] if self.adds == "above" else [self.chance, self.counted]
        return max(way.p_above(value) if way.decides else 1.0 for way in ways)

    def p_below(self, value):
        ways = [self.chance] if self.adds == "below" else [self.chance, self.counted]
        return max(way.p_below(value) if way.decides else 1.0 for way in ways)


def over_seeds(values):
    values = np.array(list(values), dtype=float)
    if not len(values):
        return NOTHING
    if len(values) == 1:
        return Chance(float(values[0]), (math.inf, 0))
    same = np.ptp(values) <= 1e-9 * abs(values).max()
    return Chance(float(values.mean()), (0.0 if same else stats.sem(values), len(values) - 1))


def over_examples(rows, tokens=None):
    """Standard error and degrees of freedom: an analysis of variance of seeds crossed with examples."""
    d_SE = np.array(rows)
    S, E = d_SE.shape
    df = E - 1
    if tokens is not None:
        d_SE = np.array([_jackknifed(sums, tokens) for sums in d_SE])
        df = max(1, math.floor(tokens.sum() ** 2 / (tokens**2).sum()) - 1)
    grand, seeds, examples = d_SE.mean(), d_SE.mean(1, keepdims=True), d_SE.mean(0, keepdims=True)
    of_examples = S * ((examples - grand) ** 2).sum() / (E - 1)
    rest = ((d_SE - seeds - examples + grand) ** 2).sum() / ((S - 1) * (E - 1))
    return math.sqrt(max(0.0, (of_examples - rest) / (S * E))), df


def _jackknifed(sums, tokens):
    """One number a document whose mean is the loss a token: what leaving it out does, by the letter."""
    whole, number = sums.sum() / tokens.sum(), len(sums)
    left_out = [(sums.sum() - one) / (tokens.sum() - weight) for one, weight in zip(sums, tokens, strict=True)]
    influence = (number - 1) * (whole - np.array(left_out))
    return whole + influence - influence.mean()


def holm(p_values, family):
    """By name; tests that are not there count as if they had found nothing."""
    ordered = sorted(p_values, key=p_values.get)
    adjusted = {}
    for rank, name in enumerate(ordered):
        adjusted[name] = min(1.0, max([(family - i) * p_values[ordered[i]] for i in range(rank + 1)]))
    return adjusted


def power(size, *, n, spread, example_se, alpha, equate):
    """Of finding a difference of this size, or of showing that none is as large, over the spread that seeds may show.

    That is the true one times chi / sqrt(n - 1); the interval is as wide as it makes it, and the mean is normal.
    """
    df, se = n - 1, math.hypot(spread / math.sqrt(n), example_se)
    tail = alpha if equate else alpha / 2
    by_seeds = stats.t.isf(tail, df) * spread / math.sqrt(n * df)
    by_examples = stats.norm.isf(tail) * example_se
    low, high = max(0.0, math.sqrt(df) - 8), math.sqrt(df) + 8
    if equate:  # a wider interval than the margin is never inside
        high = min(high, math.sqrt(max(0.0, size**2 - by_examples**2)) / by_seeds)
        if high <= low:
            return 0.0
    chi = low + (high - low) * (NODES + 1) / 2
    half = np.hypot(by_seeds * chi, by_examples)
    above, below = special.ndtr((size - half) / se), special.ndtr((-size - half) / se)
    given = 2 * above - 1 if equate else above + below
    return float(((high - low) / 2 * WEIGHTS * given * stats.chi.pdf(chi, df)).sum())


def smallest(enough):
    """The smallest size that is enough, which some size is."""
    high = 1e-6
    while not enough(high):
        high *= 2
    low = high / 2
    while high - low > 1e-8 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def found_with(n, alpha, spread, example_se):
    """The smallest difference that is found with 80 %."""
    chance = {"n": n, "spread": spread, "example_se": example_se, "alpha": alpha}
    return smallest(lambda size: power(size, **chance, equate=False) >= 0.8)


def decided_with(n, alpha, spread, example_se):
    """The smallest margin at which a difference is found, and the lack of one shown, with 80 %."""
    chance = {"n": n, "spread": spread, "example_se": example_se, "alpha": alpha}
    return smallest(lambda size: min(power(size, **chance, equate=e) for e in (False, True)) >= 0.8)


def seeds_for(margin, alpha, spread, example_se):
    """The fewest seeds that decide on a margin; None if a thousand do not."""

    def enough(n):
        chance = {"n": n, "spread": spread, "example_se": example_se, "alpha": alpha}
        return min(power(margin, **chance, equate=equate) for equate in (False, True)) >= 0.8

    if not enough(1000):
        return None
    low, high = 1, 1000
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def bca(values):
    """BCa of the mean, over all resamples there are instead of some: of n values, n^n."""
    values = np.array(values)
    n = len(values)
    means = np.sort([values[list(drawn)].mean() for drawn in product(range(n), repeat=n)])
    below = (means < values.mean()).mean() / 2 + (means <= values.mean()).mean() / 2
    without = np.array([np.delete(values, i).mean() for i in range(n)])
    apart = without.mean() - without
    acceleration = (apart**3).sum() / (6 * (apart**2).sum() ** 1.5)
    z0 = stats.norm.ppf(below)
    shifted = [z0 + (z0 + z) / (1 - acceleration * (z0 + z)) for z in stats.norm.ppf([0.025, 0.975])]
    return np.quantile(means, stats.norm.cdf(shifted))


def mcnemar(one, other):
    only, against = int(((one > 0) & (other == 0)).sum()), int(((one == 0) & (other > 0)).sum())
    p = stats.binomtest(only, only + against).pvalue if only + against else 1.0
    return int(((one > 0) & (other > 0)).sum()), only, against, int(((one == 0) & (other == 0)).sum()), p


# -- what a verdict rests on -------------------------------------------------------------------------------------------


def judged(metric, value):
    """On the scale on which it is judged: a perplexity as the loss."""
    return math.log(value) if metric == "perplexity" else value


def as_level(metric, value):
    return math.exp(value) if metric == "perplexity" else value


def as_effect(metric, value):
    return math.exp(value) - 1 if metric == "perplexity" else value


@dataclass
class Outcomes:
    arm: str
    not_run: list
    failed: dict
    values: dict
    """On the scale on which they are judged."""
    num_ran: int

    @property
    def num_planned(self):
        return self.num_ran + len(self.not_run)

    @property
    def rate_at_most(self):
        k, n = len(self.failed), self.num_ran
        return 1.0 if k == n else float(stats.beta.ppf(0.95, k + 1, n - k))  # Clopper and Pearson

    def with_failures_at(self, worst):
        return {**self.values, **dict.fromkeys(self.failed, worst)}

    def told(self):
        shown = {"arm": self.arm, "planned": self.num_planned, "not_run": self.not_run, "failed": self.failed}
        return {**shown, "failure_rate_at_most": self.rate_at_most}


def collapsed(folder, cell):
    """How a classifier has learned nothing; None if it has learned something, or is none."""
    if cell.record["status"] != "done" or cell.value(folder.metric) is None:
        return None
    columns = cell.columns()
    if "label" not in columns:
        share, accuracy = (folder.simple or {"majority": {}})["majority"].get("validation"), cell.value("accuracy")
        if cell.kept or share is None or accuracy is None:
            return None
        near = share + 2 * math.sqrt(share * (1 - share) / cell.examples)
        return {"accuracy": accuracy, "share": share} if accuracy <= near else None
    labels, predicted = columns["label"], columns["prediction"]
    share, accuracy = np.bincount(labels).max() / len(labels), (labels == predicted).mean()
    if accuracy <= share + 2 * math.sqrt(share * (1 - share) / len(labels)):
        return {"accuracy": accuracy, "share": share}
    chance = math.log(max(2, len(np.bincount(labels))))
    if cell.value("loss") >= 0.98 * chance and accuracy < share + 0.1 * (1 - share):
        return {"loss": cell.value("loss"), "chance": chance}
    same = np.bincount(predicted).max() / len(labels)
    return {"same": same} if same >= 0.99 and share < 0.95 else None


def outcomes(folder, arm, metric):
    values = {seed: judged(metric, value) for seed, value in folder.values(arm, metric).items()}
    seeds = folder.study["seeds"]
    if metric in MEASURED:
        return Outcomes(arm, [], {}, values, len(values))
    cells = folder.of(arm)
    not_run = [seed for seed in seeds if seed not in cells]
    failed = {seed: cell.record["status"] for seed, cell in cells.items() if cell.record["status"] != "done"}
    failed |= {seed: "no number" for seed in cells if seed not in failed and seed not in values}
    nothing = [seed for seed, cell in cells.items() if collapsed(folder, cell)]
    if len(nothing) < len(seeds):
        failed |= dict.fromkeys(nothing, "learned nothing")
    left = {seed: value for seed, value in values.items() if seed not in failed}
    return Outcomes(arm, not_run, dict(sorted(failed.items())), left, len(seeds) - len(not_run))


def worst_value(folder, metric):
    if metric not in LOSSES:
        return -1.0 if metric == "matthews" else 0.0
    first = [cell.steps[0]["loss"] for cell in folder.cells.values() if cell.steps]
    ends = [judged(metric, value) for arm in folder.arms for value in folder.values(arm, metric).values()]
    return max([*first, *ends])


def failures_add_to(folder, both, metric):
    """What failures of the first arm alone can only make more so, unless it is the baseline: that it is worse."""
    first, *others = both
    if not first.failed or any(one.failed for one in others) or first.arm == folder.baseline:
        return None
    return "above" if metric in LOWER_IS_BETTER else "below"


def example_rows(folder, arms, metric, seeds, combine, split=None):
    """One row a seed in which all arms have kept their examples; None of fewer than two."""
    rows, tokens = [], None
    for seed in seeds:
        found = [folder.cells[arm, seed].scores(metric, split=split) for arm in arms]
        if all(scores is not None for scores, _ in found):
            rows.append(combine(*(scores for scores, _ in found)))
            tokens = found[0][1]
    return (rows, tokens) if len(rows) > 1 else None


def chance_of(values, rows):
    """Of values by seed: over seeds and, where there are rows, over examples."""
    chance = over_seeds(values)
    return Chance(chance.mean, chance.seeds, over_examples(*rows) if rows else None)


def shared_differences(one, other):
    return {seed: one[seed] - other[seed] for seed in one if seed in other}


# -- comparisons -------------------------------------------------------------------------------------------------------


@dataclass
class Compared:
    """Before the family is looked at."""

    arm: str
    against: str
    metric: str
    differences: dict
    chance: Chance
    rows: tuple | None
    both: tuple
    """Outcomes of the two arms."""
    worst: float | None
    tested: Chance | BothWays
    margin: float | None
    blocked: bool

    @property
    def incomplete(self):
        return any(one.not_run for one in self.both)

    @property
    def exact(self):
        """Counts, and memory to the byte, where all seeds agree."""
        return self.metric in (*COUNTS, "peak_memory") and len(set(self.differences.values())) == 1

    def raw(self, *, equate, alone=False):
        """The p value before correction: it must hold with the failures and without."""
        tested = self.chance if alone else self.tested
        if self.exact and not self.blocked and len(self.differences) > 1:
            return 0.0 if self.chance.mean and not equate else 1.0
        if self.blocked or self.incomplete or not self.chance.decides or (equate and self.margin is None):
            return 1.0
        if equate:
            return max(tested.p_above(-self.margin), tested.p_below(self.margin))
        return min(1.0, 2 * min(tested.p_above(0), tested.p_below(0)))


def compare(folder, arm, against, metric, blocked=False):
    both = tuple(outcomes(folder, name, metric) for name in (arm, against))
    differences = shared_differences(*(one.values for one in both))
    rows = example_rows(folder, (arm, against), metric, differences, np.subtract)
    chance = chance_of(differences.values(), rows)
    worst, tested = None, chance
    if any(one.failed for one in both):
        worst = worst_value(folder, metric)
        at_worst = over_seeds(shared_differences(*(one.with_failures_at(worst) for one in both)).values())
        counted = Chance(at_worst.mean, at_worst.seeds, chance.examples)
        tested = BothWays(chance, counted, failures_add_to(folder, both, metric))
    own = {metric, folder.metric} in ({folder.metric}, {"loss", "perplexity"})
    effect = folder.study["compare"]["min_effect"] if own else None
    margin = math.log1p(effect) if effect is not None and folder.metric == "perplexity" else effect
    return Compared(arm, against, metric, differences, chance, rows, both, worst, tested, margin, blocked)


def judge_family(found, family, alpha=0.05):
    """What a report tells of each comparison."""
    p = {
        (equate, alone): holm({one.arm: one.raw(equate=equate, alone=alone) for one in found}, family)
        for equate in (False, True)
        for alone in (False, True)
    }
    of = {one.arm: {name: values[one.arm] for name, values in p.items()} for one in found}
    return {one.arm: _told(one, family, of[one.arm], alpha) for one in found}


def _told(one, family, p, alpha):
    metric, chance, n = one.metric, one.chance, len(one.differences)
    verdict = "invalid" if one.blocked else _verdict(one, p[False, False], p[True, False], alpha)
    survivors = _verdict(one, p[False, True], p[True, True], alpha)
    if one.exact:  # needs no test
        verdict = verdict if one.blocked else _direction(one) if chance.mean else "equivalent"
        survivors = "inconclusive"
    factor, sides = family, 1
    if not one.exact and verdict in ("better", "worse", "equivalent"):
        equate = verdict == "equivalent"
        factor, sides = p[equate, False] / one.raw(equate=equate), 2 if equate else 1
    level = 1 - sides * alpha / factor
    spread, example_se = chance.seeds[0] * math.sqrt(n), chance.examples[0] if chance.examples else 0.0
    power_of = {"alpha": alpha / family, "spread": spread, "example_se": example_se}
    shown = lambda interval: [as_effect(metric, end) for end in interval] if interval else None  # noqa: E731
    return {
        "verdict": verdict,
        "n": n,
        "estimate": as_effect(metric, chance.mean) if n else None,
        "interval": shown(chance.interval()),
        "deciding_interval": shown(chance.interval(level)),
        "deciding_level": level,
        "over_seeds": shown(Chance(chance.mean, chance.seeds).interval()),
        "margin": as_effect(metric, one.margin) if one.margin is not None else None,
        "family": family,
        "alpha": alpha,
        "p_differs": p[False, False],
        "p_equivalent": p[True, False] if one.margin is not None else None,
        "detectable": as_effect(metric, found_with(n, **power_of)) if chance.decides else None,
        "seeds_needed": seeds_for(one.margin, **power_of) if chance.decides and one.margin is not None else None,
        "survivors": survivors,
        "worst": as_level(metric, one.worst) if one.worst is not None else None,
        "change": dict(_change_of_verdict(one, verdict, chance.interval(level), power_of)),
    }


def _verdict(one, p_differs, p_equivalent, alpha):
    if one.margin is not None and p_equivalent < alpha:
        return "equivalent"
    return _direction(one) if p_differs < alpha else "inconclusive"


def _direction(one):
    return "better" if (one.chance.mean > 0) == (one.metric not in LOWER_IS_BETTER) else "worse"


def by_stages(first, second, decided):
    """What the first look has decided stays so; the rest is judged by all seeds, once all of them are there."""
    for name, one in first.items():
        later = second[name]
        not_run = {seed for outcome in later["outcomes"] for seed in outcome.not_run}
        if one[decided] != "inconclusive" or not later["outcomes"]:
            yield name, one
        elif not not_run:
            yield name, later
        else:
            number = later["outcomes"][0].num_planned - one["outcomes"][0].num_planned
            stage = {"n": number - len(not_run), "number": number}
            yield name, {**one, "stage": stage, "change": {"change-stage": stage}}


# -- what would change it ----------------------------------------------------------------------------------------------


def _change_of_verdict(one, verdict, deciding, power_of):
    """By what is said, the numbers of it: how far a verdict hangs on the margin, or what would give one."""
    if verdict == "invalid" or one.exact or one.incomplete or not one.differences:
        return
    if verdict == "inconclusive" and not one.chance.decides:
        yield "change-more-seeds", {}
        return
    if one.margin is None:
        yield "change-no-margin", {}
        return
    shown = lambda value: as_effect(one.metric, value)  # noqa: E731
    margin = shown(one.margin)
    if verdict == "inconclusive":
        yield needed(len(one.differences), one.margin, margin, power_of)
        # Two tests, each at what the family leaves: what they do not put inside is not excluded.
        widest = one.chance.interval(1 - 2 * power_of["alpha"])
        yield "change-excluded", {"beyond": shown(max(map(abs, widest))), "margin": margin}
    elif verdict == "equivalent":
        yield "change-margin", {"least": shown(max(map(abs, deciding))), "margin": margin}
    else:
        least = shown(min(map(abs, deciding)))
        yield "change-settled" if least > margin else "change-may-not-matter", {"least": least, "margin": margin}


def needed(n, margin, shown, power_of):
    """Seeds that a new study would need to decide on a margin, or examples; or it had enough and no luck."""
    number = seeds_for(margin, **power_of)
    if number is None and seeds_for(margin, **{**power_of, "example_se": 0.0}) is not None:
        return "change-examples", {"margin": shown}
    if number is None or number <= n:
        return "change-luck", {"margin": shown, "n": n}
    return "change-seeds", {"number": number, "margin": shown}


def changes(arms, hypotheses):
    """By what is said, and of whom: their numbers."""
    told = {}
    for name, one in [*hypotheses.items(), *arms.items()]:
        for key, values in one["change"].items():
            told.setdefault(key, {}).setdefault(name, []).append(values)
        for outcome in one["outcomes"]:
            if outcome.not_run:
                told.setdefault("change-run", {})[outcome.arm] = [{"seeds": outcome.not_run}]
            if outcome.failed:
                said = {"number": len(outcome.failed), "n": outcome.num_ran, "seeds": list(outcome.failed)}
                told.setdefault("change-failed", {})[outcome.arm] = [said | {"most": outcome.rate_at_most}]
    return told


# -- hypotheses --------------------------------------------------------------------------------------------------------


def judge_hypotheses(folder, blocked=frozenset()):
    found = {name: _hypothesis(folder, one, name in blocked) for name, one in folder.study["hypotheses"].items()}
    tested = [name for name, one in found.items() if not one["exact"]]
    corrected = {
        which: holm({name: found[name]["p"][which] for name in tested}, len(tested))
        for which in ("supported", "refuted", "alone", "alone_refuted")
    }
    told = {}
    for name, one in found.items():
        p = {which: corrected[which].get(name, value) for which, value in one["p"].items()}
        alpha, family = folder.alpha, 1 if one["exact"] else len(tested)
        status = "invalid" if name in blocked else _status(p["supported"], p["refuted"], alpha)
        survivors = "inconclusive" if one["exact"] else _status(p["alone"], p["alone_refuted"], alpha)
        told[name] = {**one["told"], "status": status, "survivors": survivors, "p_supported": p["supported"]}
        told[name] |= {"p_refuted": p["refuted"], "family": family, "alpha": alpha, "change": {}}
        told[name] |= dict.fromkeys(("deciding_interval", "deciding_level"))
        if one["exact"]:
            continue
        factor, sides = family, 1
        if status in ("supported", "refuted"):
            sides = 2 if (status, one["rule"]) == ("supported", "within") else 1
            factor = p[status] / one["p"][status]
        level = 1 - sides * alpha / factor
        interval = one["chance"].interval(level)
        told[name] |= {"deciding_interval": [one["back"](end) for end in interval] if interval else None}
        told[name]["deciding_level"] = level
        if status == "inconclusive":
            told[name]["change"] = dict(_change_of_hypothesis(folder, one, alpha / family))
    return told


def _status(supported, refuted, alpha):
    return "supported" if supported < alpha else "refuted" if refuted < alpha else "inconclusive"


def _change_of_hypothesis(folder, one, alpha):
    chance, n = one["chance"], one["told"]["n"]
    if any(outcome.not_run for outcome in one["told"]["outcomes"]):
        return
    if one["timed"]:
        yield "change-rounds", {}
    elif not chance.decides:
        yield "change-more-seeds", {}
    elif one["distance"] is not None:
        power_of = {"spread": chance.seeds[0] * math.sqrt(n), "example_se": (chance.examples or (0.0,))[0]}
        yield needed(n, *one["distance"], power_of | {"alpha": alpha})


def _distance(folder, hypothesis, metric, arms, ratio):
    """From no difference to the margin, on the scale of the estimate and as it is written; of 0, what matters."""
    margin, effect = hypothesis["margin"], folder.study["compare"]["min_effect"] if metric == folder.metric else None
    if len(arms) == 1:
        return None
    if ratio:
        whole = 1 + margin if hypothesis["rule"] == "within" else margin
        if whole == 1 and metric == "perplexity" and effect:
            whole += effect
        return (abs(math.log(whole)), abs(whole - 1)) if whole not in (0, 1) else None
    margin = margin or effect
    return (abs(margin), abs(margin)) if margin else None


def _hypothesis(folder, hypothesis, blocked):
    terms = re.findall(r"(\w+)\(([^()]+)\)", hypothesis["estimand"])
    metric, arms = terms[0][0], [arm for _, arm in terms]
    ratio = ") / " in hypothesis["estimand"]
    if metric == "step_seconds" and ratio and folder.bench is not None:
        return _timed(folder.bench, hypothesis, *arms)
    both = [outcomes(folder, arm, metric) for arm in arms]
    as_log = ratio or metric == "perplexity"
    by_seed = _estimand(metric, [one.values for one in both], ratio)
    told = {"n": len(by_seed), "worst": None, "margin": hypothesis["margin"], "outcomes": both}
    p = dict.fromkeys(("supported", "refuted", "alone", "alone_refuted"), 1.0)
    values = list(by_seed.values())
    if metric in COUNTS and len(set(values)) == 1:
        holds = {"below": values[0] < hypothesis["margin"], "above": values[0] > hypothesis["margin"]}
        holds["within"] = abs(values[0] - (1.0 if ratio else 0.0)) < hypothesis["margin"]
        is_true = holds[hypothesis["rule"]]
        p |= {"supported": 0.0 if is_true else 1.0, "refuted": 1.0 if is_true else 0.0}
        return {"exact": True, "p": p, "told": {**told, "value": values[0], "interval": None}, "rule": None}
    chance = chance_of(
        [math.log(value) for value in values] if as_log else values, _rows(folder, arms, metric, by_seed, ratio)
    )
    p["alone"], p["alone_refuted"] = _rule(hypothesis, chance, ratio, as_log)
    p["supported"], p["refuted"] = p["alone"], p["alone_refuted"]
    if any(one.failed for one in both):
        worst = worst_value(folder, metric)
        told["worst"] = as_level(metric, worst)
        at_worst = list(_estimand(metric, [one.with_failures_at(worst) for one in both], ratio).values())
        counted = NOTHING
        if not as_log or all(0 < value < math.inf for value in at_worst):
            counted = over_seeds([math.log(value) for value in at_worst] if as_log else at_worst)
        counted = Chance(counted.mean, counted.seeds, chance.examples)
        adds = failures_add_to(folder, both, metric)
        if adds is None and len(both) == 2:  # of the other arm, the other way round
            turned = failures_add_to(folder, both[::-1], metric)
            adds = {"above": "below", "below": "above", None: None}[turned]
        tested = BothWays(chance, counted, adds)
        p["supported"], p["refuted"] = _rule(hypothesis, tested, ratio, as_log)
    if any(one.not_run for one in both):
        p["supported"] = p["refuted"] = 1.0
    if blocked:
        p = dict.fromkeys(p, 1.0)
    back = math.exp if as_log else float
    interval = chance.interval()
    told |= {"value": back(chance.mean), "interval": [back(end) for end in interval] if interval else None}
    found = {"exact": False, "p": p, "told": told, "rule": hypothesis["rule"], "chance": chance, "back": back}
    return found | {"timed": False, "distance": _distance(folder, hypothesis, metric, arms, ratio)}


def _estimand(metric, by_arm, ratio):
    levels = [{seed: as_level(metric, value) for seed, value in one.items()} for one in by_arm]
    if len(levels) == 1:
        return levels[0]
    one, other = levels
    shared = [seed for seed in one if seed in other]
    if ratio:
        return {seed: one[seed] / other[seed] if other[seed] else math.inf for seed in shared}
    return {seed: one[seed] - other[seed] for seed in shared}


def _rows(folder, arms, metric, seeds, ratio):
    """How every example moves the estimand: of a logarithm of a ratio, by its share of either mean."""
    if not ratio or metric == "perplexity":
        return example_rows(folder, arms, metric, seeds, lambda *scores: scores[0] - sum(scores[1:]))
    means = [np.mean([folder.values(arm, metric)[seed] for seed in seeds]) for arm in arms]
    return example_rows(folder, arms, metric, seeds, lambda one, other: one / means[0] - other / means[1])


def _rule(hypothesis, chance, ratio, as_log):
    """That it is kept to and that it is not: `within` is two tests at 5 %, all others are one-sided at 2.5 %."""
    if not chance.decides:
        return 1.0, 1.0
    margin, scale = hypothesis["margin"], (lambda x: math.log(x) if x > 0 else -math.inf) if as_log else float
    if hypothesis["rule"] == "below":
        return min(1.0, 2 * chance.p_below(scale(margin))), min(1.0, 2 * chance.p_above(scale(margin)))
    if hypothesis["rule"] == "above":
        return min(1.0, 2 * chance.p_above(scale(margin))), min(1.0, 2 * chance.p_below(scale(margin)))
    middle = 1.0 if ratio else 0.0
    low, high = scale(middle - margin), scale(middle + margin)
    outside = min(chance.p_below(low), chance.p_above(high))
    return max(chance.p_above(low), chance.p_below(high)), min(1.0, 2 * outside)


def _timed(bench, hypothesis, arm, against):
    """By the bench: the interval of the ratio is read as one of t, of as many rounds as are independent."""
    assert against == bench["against"], "what this opinion knows of"
    ratio = bench["arms"][arm]["ratios"]["step"]
    low, high = math.log(ratio["low"]), math.log(ratio["high"])
    df = max(math.floor(ratio["rounds"] / ratio["block_length"]) - 1, 1)
    chance = Chance((low + high) / 2, ((high - low) / 2 / stats.t.isf(0.025, df), df))
    p = dict(zip(("supported", "refuted"), _rule(hypothesis, chance, True, True), strict=True))
    p |= {"alone": p["supported"], "alone_refuted": p["refuted"]}
    told = {"value": ratio["median"], "interval": [ratio["low"], ratio["high"]], "n": ratio["rounds"]}
    told |= {"worst": None, "margin": hypothesis["margin"], "outcomes": []}
    found = {"exact": False, "p": p, "told": told, "rule": hypothesis["rule"], "chance": chance, "back": math.exp}
    return found | {"timed": True}


# -- arms --------------------------------------------------------------------------------------------------------------


def arm_alone(folder, arm):
    metric = folder.metric
    final = measured(folder, arm, metric)
    counts = [cell.value("trainable") for cell in folder.of(arm).values()]
    return {
        "final": final["by_seed"],
        "best": folder.values(arm, metric, "best"),
        "mean": final["mean"],
        "interval": final["interval"],
        "measured": every_metric(folder, arm),
        "validation": {seed: cell.last_validation(metric) for seed, cell in folder.of(arm).items()},
        "trainable": counts[0],
        "tuned": best_rates(folder, arm),
        "lr_sensitivity": lr_sensitivity(folder, arm),
    }


def measured(folder, arm, metric, split=None):
    """Over all seeds with a number and, of what is a mean of kept examples, over these."""
    found = folder.values(arm, metric, split=split)
    values = {seed: judged(metric, value) for seed, value in found.items()}
    chance = chance_of(values.values(), example_rows(folder, (arm,), metric, values, lambda scores: scores, split))
    interval = chance.interval()
    mean = as_level(metric, chance.mean) if found else None
    return {"mean": mean, "interval": interval and [as_level(metric, end) for end in interval], "by_seed": found}


def every_metric(folder, arm):
    """By test split and metric, all that any cell of the arm has a number of."""
    told = {}
    for cell in folder.of(arm).values():
        for split, metrics in cell.record["test"].get("final", {}).get("splits", {}).items():
            for metric in metrics:
                told.setdefault(split, {})[metric] = measured(folder, arm, metric, split)
    return told


def best_rates(folder, arm):
    """By seed, what its own trials did best with on the validation split; of a shared choice, all of them."""
    if folder.study["tune"] is None:
        return {}
    shared = folder.study["tune"].get("seeds")
    chosen = {}
    for seed in folder.of(arm):
        scores = trial_scores(folder, arm, shared or [seed])
        chosen[seed] = max(scores, key=lambda rate: np.mean(scores[rate]))
    return {"optimizer.lr": chosen}


def lr_sensitivity(folder, arm):
    """By seed of the tuning: the mean loss over the grid less the best, none worse than that of the first step."""
    found = {}
    for seed in {seed for name, _, seed in folder.trials if name == arm}:
        trials = [trial for (name, _, own), trial in folder.trials.items() if (name, own) == (arm, seed)]
        losses = [min(trial["evaluations"][-1]["metrics"]["loss"], trial["first_loss"]) for trial in trials]
        found[seed] = np.mean(losses) - min(losses)
    return found


def trial_scores(folder, arm, seeds):
    """By learning rate and seed, on the validation split at the last step; more is better."""
    sign = -1 if folder.metric in LOWER_IS_BETTER else 1
    return {
        rate: [sign * folder.trials[arm, rate, seed]["evaluations"][-1]["metrics"][folder.metric] for seed in seeds]
        for rate in folder.study["tune"]["optimizer.lr"]
    }


# -- checks ------------------------------------------------------------------------------------------------------------


def numbers_of_checks(folder):
    """By code, and by what a number is called: all that a check may say of this folder."""
    told = {"UNTUNED": {"rates": [cell.record["spec"]["recipe"]["optimizer"]["lr"] for cell in folder.cells.values()]}}
    not_run = [seed for arm in folder.study["arms"] for seed in outcomes(folder, arm, folder.metric).not_run]
    told["INCOMPLETE"] = {"seeds": not_run, "number": [len(folder.study["seeds"])]}
    told["LR-DIFFERS"] = dict.fromkeys(("value", "other"), told["UNTUNED"]["rates"])
    for rule in (_few_seeds, _learned_nothing, _below_simple, _tuning_noise, _few_examples, _final_and_best):
        for code, name, number in rule(folder):
            told.setdefault(code, {}).setdefault(name, []).append(number)
    return told


def _few_seeds(folder):
    metric, aim = folder.metric, folder.study["compare"]["min_effect"]
    yield "FEW-SEEDS", "aim", aim
    for arm in folder.arms:
        differences = list(compare(folder, arm, folder.baseline, metric).differences.values())
        n = len(differences)
        yield "FEW-SEEDS", "n", n
        if arm == folder.baseline or n < 2:
            continue
        smallest_found = decided_with(n, folder.alpha / len(folder.treated), np.std(differences, ddof=1), 0.0)
        # A standard deviation of n values may be that of a true one so many times as large.
        times = round(math.sqrt((n - 1) / stats.chi2.ppf(0.05, n - 1)), 3 if n == 3 else 2)
        yield "FEW-SEEDS", "times", times
        yield "FEW-SEEDS", "smallest", as_effect(metric, smallest_found)
        yield "FEW-SEEDS", "smallest", as_effect(metric, times * smallest_found)
        if n < 5:  # of two treated arms in a hypothesis: in standard deviations, as one of all hypotheses
            hypotheses = [one for one in folder.study["hypotheses"].values() if not one["estimand"].startswith(COUNTS)]
            yield "FEW-SEEDS", "smallest", found_with(n, folder.alpha / max(len(hypotheses), 1), 1.0, 0.0)


def _learned_nothing(folder):
    for (_, seed), cell in folder.cells.items():
        found = collapsed(folder, cell)
        if found is not None:
            yield "COLLAPSED", "seeds", seed
            for name, number in found.items():
                yield "COLLAPSED", name, float(number)


def _below_simple(folder):
    """An arm less the simple model: over seeds, and over examples, paired where its answers are kept."""
    metric = folder.metric
    if folder.simple is None or metric not in folder.simple["splits"]["validation"]:
        return
    level = judged(metric, folder.simple["splits"]["validation"][metric])
    for arm in folder.arms:
        values = [judged(metric, value) for value in folder.values(arm, metric).values()]
        if not values:
            continue
        chance, cells = over_seeds([value - level for value in values]), list(folder.of(arm).values())
        if metric == "accuracy":
            examples, bits = cells[0].examples, folder.simple["right"].get("validation")
            mean = np.mean(values)
            chance.examples = (math.sqrt((mean * (1 - mean) + level * (1 - level)) / examples), examples - 1)
            if bits is not None and all(cell.kept for cell in cells):
                right = np.unpackbits(np.frombuffer(bytes.fromhex(bits), dtype=np.uint8), count=examples)
                chance.examples = over_examples([cell.scores(metric)[0] - right for cell in cells])
        elif metric in LOSSES:
            rows = example_rows(folder, (arm,), metric, folder.values(arm, metric), lambda scores: scores)
            chance.examples = over_examples(*rows) if rows else None
        interval = chance.interval()
        told = {"value": np.mean(values), "level": level, "gap": abs(chance.mean), "n": len(values)}
        for name, number in told.items():
            yield "BELOW-SIMPLE-BASELINE", name, number
        yield "BELOW-SIMPLE-BASELINE", "half", interval[1] - chance.mean if interval else None


def _tuning_noise(folder):
    """Of a shared choice: by how much the best point is better than the second best."""
    shared = (folder.study["tune"] or {}).get("seeds") or []
    for arm in folder.arms if shared else ():
        best, second = sorted(trial_scores(folder, arm, shared).values(), key=np.mean, reverse=True)[:2]
        yield "TUNING-NOISE", "apart", np.mean(best) - np.mean(second)
        yield "TUNING-NOISE", "n", len(best)


def _final_and_best(folder):
    for cell in folder.cells.values():
        values = [row["metrics"][folder.metric] for row in cell.record["evaluations"]]
        yield "FINAL-BELOW-BEST", "last", values[-1]
        yield "FINAL-BELOW-BEST", "best", min(values) if folder.metric in LOWER_IS_BETTER else max(values)


def _few_examples(folder):
    cell = next(cell for cell in folder.cells.values() if cell.record["status"] == "done")
    size, columns = cell.examples, cell.columns()
    yield "FEW-EXAMPLES", "examples", size
    yield "FEW-EXAMPLES", "one", 1 / size
    yield "FEW-EXAMPLES", "half", 1.96 * math.sqrt(0.25 / size)
    yield "IMBALANCED", "examples", size
    if "label" in columns:
        yield "IMBALANCED", "share", np.bincount(columns["label"]).max() / size


# -- all of it ---------------------------------------------------------------------------------------------------------


def second_opinion(place, blocked=()):
    """What a report should tell of arms and hypotheses; `blocked` are the arms and hypotheses that a check blocks."""
    folder = read_folder(place)
    compared, hypotheses = look(folder, folder.study["seeds"], blocked)
    if folder.study.get("second_stage"):
        again = look(folder, [*folder.study["seeds"], *folder.study["second_stage"]], blocked)
        compared = dict(by_stages(compared, again[0], "verdict"))
        hypotheses = dict(by_stages(hypotheses, again[1], "status"))
    change = changes(compared, hypotheses)
    for one in [*compared.values(), *hypotheses.values()]:
        one["outcomes"] = [outcome.told() for outcome in one["outcomes"]]
    arms = {arm: arm_alone(folder, arm) | {"differences": {}, "comparison": None} for arm in folder.arms}
    for arm, one in compared.items():
        arms[arm] |= {"differences": one["differences"], "comparison": one}
    checks = numbers_of_checks(folder)
    return {"arms": arms, "hypotheses": list(hypotheses.values()), "checks": checks, "what_would_change": change}


def look(folder, seeds, blocked):
    """Verdicts on the arms, and the hypotheses, by these seeds."""
    seen = folder.stage(seeds)
    found = [
        compare(seen, arm, folder.baseline, folder.metric, blocked=arm in blocked)
        for arm in folder.arms
        if arm != folder.baseline
    ]
    told = judge_family(found, len(folder.treated), folder.alpha)
    for one in found:
        shown = {seed: as_effect(folder.metric, value) for seed, value in one.differences.items()}
        told[one.arm] |= {"outcomes": one.both, "differences": shown}
    return told, judge_hypotheses(seen, blocked)


def sentence_numbers(one):
    """What the sentence of a verdict or a hypothesis may say, by what it is called: numbers that are told beside it."""
    interval, deciding = one["interval"] or [None] * 2, one.get("deciding_interval") or [None] * 2
    level, stage = one["deciding_level"] or 0.95, one.get("stage", {"n": 0, "number": 0})
    failed = [outcome["failed"] for outcome in one["outcomes"]]
    not_run = max((len(outcome["not_run"]) for outcome in one["outcomes"]), default=0)
    planned = max((outcome["planned"] for outcome in one["outcomes"]), default=0)
    return {
        "mean": [one.get("estimate")],
        "value": [one.get("value")],
        "low": [deciding[0], interval[0]],
        "high": [deciding[1], interval[1]],
        "level": [level],
        "percent": [100 * level, 100 * one["alpha"]],
        "family": [one["family"]],
        "margin": [one["margin"]],
        "worst": [one["worst"]],
        "p": [one.get("p_differs")],
        "smallest": [one.get("detectable")],
        "n": [one["n"], planned - not_run, stage["n"]],
        "number": [planned, stage["number"], one.get("seeds_needed"), *map(len, failed)],
        "seeds": [int(seed) for seeds in failed for seed in seeds],
        "most": [outcome["failure_rate_at_most"] for outcome in one["outcomes"]],
    }
