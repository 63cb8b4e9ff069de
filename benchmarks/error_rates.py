"""How often verdicts are wrong, and how often they are reached, by simulation: no training, minutes of one core.

    python benchmarks/error_rates.py [--number 200000]

Arms against one baseline, normal differences, Holm's correction over all arms, as in `oelm.analysis.verdicts`; and arms
that are the same, each tuned on a grid of learning rates.
Shape suffixes: B = studies, A = treated arms (or all, where they are tuned), S = seeds, K = points of the grid.
"""

import argparse
import math

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t

from oelm.analysis.stats.power import ALPHA, decidable, detectable

Array = NDArray[np.float64]
WORST = -100.0  # of a failure, in standard deviations
# True accuracy over the grid: all points alike, the best a little better, the best far better.
RESPONSES = {
    "flat": (0.90, 0.90, 0.90, 0.90),
    "medium": (0.895, 0.90, 0.897, 0.88),
    "steep": (0.80, 0.90, 0.85, 0.60),
}
TRAINING = 0.006  # how far trainings of one point scatter, over seeds; their test and validation share it
VALIDATION, TEST = 0.009, 0.006  # what the examples of a split add to it, training by training
COMMON = 0.005  # and what they add to a point in every training, as all are measured on the same examples


def p_values(d_BAS: Array, margin: float) -> tuple[Array, Array]:
    """Of B studies, A arms and S seeds: that they differ, and that they do not."""
    n = d_BAS.shape[-1]
    mean, se = d_BAS.mean(-1), np.maximum(d_BAS.std(-1, ddof=1), 1e-12) / math.sqrt(n)
    return 2 * t.sf(np.abs(mean) / se, n - 1), t.sf((margin - np.abs(mean)) / se, n - 1)


def holm(p_BA: Array) -> Array:
    order = np.argsort(p_BA, axis=1)
    factors = p_BA.shape[1] - np.arange(p_BA.shape[1])
    stepped = np.maximum.accumulate(np.minimum(np.take_along_axis(p_BA, order, 1) * factors, 1), axis=1)
    adjusted = np.empty_like(stepped)
    np.put_along_axis(adjusted, order, stepped, 1)
    return adjusted


def judge(d_BAS: Array, margin: float, alpha: float = ALPHA) -> Array:
    """+1 better, -1 worse, 2 equivalent, 0 inconclusive."""
    differs, equal = map(holm, p_values(d_BAS, margin))
    return np.where(equal < alpha, 2, np.where(differs < alpha, np.sign(d_BAS.mean(-1)), 0))


def judge_stages(d_BAS: Array, first: int, margin: float) -> Array:
    """With a planned second stage: what the first seeds leave open, all of them decide, at half the level each."""
    early = judge(d_BAS[..., :first], margin, ALPHA / 2)
    return np.where(early != 0, early, judge(d_BAS, margin, ALPHA / 2))


def judge_with_failures(d_BAS: Array, failed_BAS: NDArray[np.bool_], margin: float, worst: float | Array) -> Array:
    """The verdict must hold without failures and with them at the worst value: below 0 in a treated arm, above it in
    the baseline. That a treated arm is worse than a baseline without failures needs no more than the other seeds."""
    B, A, S = d_BAS.shape
    adds_BA = ~(failed_BAS & (np.broadcast_to(worst, d_BAS.shape) >= 0)).any(-1)
    differs, equal = np.ones((B, A)), np.ones((B, A))
    worst_differs, worst_equal = p_values(np.where(failed_BAS, worst, d_BAS), margin)
    worst_sign = np.sign(np.where(failed_BAS, worst, d_BAS).mean(-1))
    signs = np.zeros((B, A))
    for number in range(S + 1):
        at = failed_BAS.sum(-1) == number
        if S - number < 2 or not at.any():
            continue
        left = d_BAS[at][~failed_BAS[at]].reshape(-1, 1, S - number)
        alone_differs, alone_equal = (p[:, 0] for p in p_values(left, margin))
        signs[at] = np.sign(left.mean(-1)[:, 0])
        if number == 0:
            differs[at], equal[at] = alone_differs, alone_equal
        else:
            is_one_way = signs[at] == worst_sign[at]
            both = np.where(is_one_way, np.maximum(alone_differs, worst_differs[at]), 1.0)
            differs[at] = np.where(adds_BA[at] & (signs[at] < 0), alone_differs, both)
            equal[at] = np.maximum(alone_equal, worst_equal[at])
    return np.where(holm(equal) < ALPHA, 2, np.where(holm(differs) < ALPHA, signs, 0))


def draw(random: np.random.Generator, number: int, arms: int, n: int, effect: float | Array = 0.0) -> Array:
    """Differences of `arms` - 1 treated arms to one baseline: they have its luck in common."""
    values = random.normal(0, 1 / math.sqrt(2), (number, arms, n))
    return values[:, 1:] - values[:, :1] + effect


def fail_alike(random: np.random.Generator, shape: tuple[int, ...]) -> tuple[NDArray[np.bool_], Array]:
    """One seed in five fails, of the baseline as of the treated arms; and the difference that it then counts as."""
    B, _, S = shape
    arm_BAS, base_B1S = random.random(shape) < 0.2, random.random((B, 1, S)) < 0.2
    return arm_BAS | base_B1S, WORST * (arm_BAS.astype(float) - base_B1S)


def rates(number: int, *, n: int, arms: int, random: np.random.Generator) -> dict[str, float]:
    alpha = ALPHA / (arms - 1)
    same = draw(random, number, arms, n)
    one = np.zeros((arms - 1, 1))
    one[0] = detectable(n, alpha=alpha)
    margin = decidable(n, alpha=alpha)
    failed = random.random(same.shape) < 0.2
    counted = judge_with_failures(same, failed, 2 * margin, WORST)
    either, at = fail_alike(random, same.shape)
    more = np.concatenate([same, draw(random, number, arms, n)], axis=-1)
    return {
        "false": float(np.isin(judge(same, 1e-9), (1, -1)).any(axis=1).mean()),
        "found": float((judge(draw(random, number, arms, n, one), 1e-9)[:, 0] == 1).mean()),
        "equivalent": float((judge(same, margin) == 2).mean()),
        "failing": float((counted[failed.any(-1)] == 2).mean()),
        "lucky": float((counted == 2).mean()),
        "alike": float(np.isin(judge_with_failures(same, either, 1e-9, at), (1, -1)).any(axis=1).mean()),
        "stages": float(np.isin(judge_stages(more, n, 1e-9), (1, -1)).any(axis=1).mean()),
    }


def tune_twins(
    random: np.random.Generator, number: int, response: tuple[float, ...], *, arms: int, n: int, shared: int = 0
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """(B) each: whether arms that are the same are called better or worse, and whether `TUNING-NOISE` is said of one.

    Every seed takes the best of its own grid, or all of an arm that of so many `shared` tuning seeds.
    """
    trained_BASK = train(random, number, response, arms=arms, n=n)
    test_BASK = measure(random, trained_BASK, TEST)
    tuning_BASK = train(random, number, response, arms=arms, n=shared) if shared else trained_BASK
    validation_BASK = measure(random, tuning_BASK, VALIDATION)
    if shared:
        validation_BASK, tried_BASK = validation_BASK.mean(2, keepdims=True), validation_BASK
    chosen_BAS1 = np.broadcast_to(validation_BASK.argmax(-1)[..., None], (number, arms, n, 1))
    taken_BAS = np.take_along_axis(test_BASK, chosen_BAS1, -1)[..., 0]
    wrong_B = np.isin(judge(taken_BAS[:, 1:] - taken_BAS[:, :1], 1e-9), (1, -1)).any(1)
    return wrong_B, is_within_noise(tried_BASK) if shared else np.zeros(number, dtype=bool)


def train(random: np.random.Generator, number: int, response: tuple[float, ...], *, arms: int, n: int) -> Array:
    return np.array(response) + TRAINING * random.standard_normal((number, arms, n, len(response)))


def measure(random: np.random.Generator, trained_BASK: Array, noise: float) -> Array:
    common_B11K = COMMON * random.standard_normal((len(trained_BASK), 1, 1, trained_BASK.shape[-1]))
    return trained_BASK + noise * random.standard_normal(trained_BASK.shape) + common_B11K


def is_within_noise(tried_BASK: Array) -> NDArray[np.bool_]:
    """(B): whether the best two points of any arm are not apart, by a 95 % interval over the tuning seeds."""
    order_BAK = np.argsort(-tried_BASK.mean(2), -1)
    best, second = (np.take_along_axis(tried_BASK, order_BAK[:, :, None, [k]], -1)[..., 0] for k in (0, 1))
    apart_BAS = best - second
    n = apart_BAS.shape[-1]
    return (apart_BAS.mean(-1) <= t.isf(0.025, n - 1) * apart_BAS.std(-1, ddof=1) / math.sqrt(n)).any(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--number", type=int, default=200_000, help="studies of each kind")
    number = parser.parse_args().number
    print("false: identical arms, any called better or worse (at most 5 %)")
    print("found, equivalent: a difference that is promised to be found, arms that are alike (80 % or more)")
    print("failing: one seed in five fails; `equivalent` of arms in which one did. lucky: of all arms")
    print("alike: false, where one seed in five fails in every arm and in the baseline (at most 5 %)")
    print("stages: false, with as many seeds again in a planned second stage (at most 5 %)")
    names = ("seeds", "arms", "false", "found", "equivalent", "failing", "lucky", "alike", "stages")
    print(" ".join(f"{name:>{width}}" for name, width in zip(names, (5, 5, 8, 8, 11, 8, 8, 8, 8), strict=True)))
    for n in (2, 3, 5, 10, 20):
        for arms in (2, 3, 6):
            row = rates(number, n=n, arms=arms, random=np.random.default_rng([n, arms]))
            shown = " ".join(
                f"{value:{width}.2%}" for value, width in zip(row.values(), (8, 8, 11, 8, 8, 8, 8), strict=True)
            )
            print(f"{n:>5} {arms:>5} {shown}", flush=True)
    print("\nnested: arms that are the same, each seed with the best of its own grid, any called better or worse")
    print("shared: the same with the choice of three tuning seeds; unwarned: of all, where TUNING-NOISE was not said")
    print(f"{'response':>8} {'seeds':>5} {'arms':>5} {'nested':>8} {'shared':>8} {'unwarned':>8}")
    for name, response in RESPONSES.items():
        for n in (3, 5, 10):
            for arms in (2, 3):
                random = np.random.default_rng([n, arms, len(name)])
                nested, _ = tune_twins(random, number // 10, response, arms=arms, n=n)
                wrong, warned = tune_twins(random, number // 10, response, arms=arms, n=n, shared=3)
                found = (nested.mean(), wrong.mean(), (wrong & ~warned).mean())
                print(f"{name:>8} {n:>5} {arms:>5} {' '.join(f'{share:8.2%}' for share in found)}", flush=True)


if __name__ == "__main__":
    main()
