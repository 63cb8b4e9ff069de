"""A machine that others use, made up: how many seconds each step takes on it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What disturbs every step, as parts of its cost, besides a jitter of 2 % with a heavy upper tail.

    Times are counted in steps: 100 of them are some seconds.
    """

    drift: float = 0.0
    """How much slower it becomes by heat, in the end; two thirds of it in the first 2000 steps."""
    autocorrelation: float = 0.0
    """Standard deviation of waves of slowness that last about 300 steps."""
    bursts: float = 0.0
    """Share of steps at which somebody else starts something: for 8 steps on average, 1.5 times slower or more."""
    modes: float = 0.0
    """How much slower the low clock is; the clock changes every 80 steps on average."""
    seed: int = 0

    def seconds(self, costs: NDArray[np.float64]) -> NDArray[np.float64]:
        """Seconds of steps that follow one another, from what they cost on a quiet machine; rows are separate runs."""
        draw = np.random.default_rng(self.seed)
        shape = costs.shape
        jitter = np.exp(0.02 * draw.standard_normal(shape) + 0.01 * draw.standard_exponential(shape) ** 2)
        heat = 1 + self.drift * -np.expm1(-np.arange(shape[-1]) / 2000)
        return costs * jitter * heat * self._waves(shape, draw) * self._bursts(shape, draw) * self._modes(shape, draw)

    def _waves(self, shape: tuple[int, ...], draw: np.random.Generator) -> NDArray[np.float64]:
        keep = np.exp(-1 / 300)
        noise = draw.standard_normal(shape) * np.sqrt(1 - keep**2)
        noise[..., 0] /= np.sqrt(1 - keep**2)  # the first is as large as any
        return np.exp(self.autocorrelation * lfilter([1.0], [1.0, -keep], noise))

    def _bursts(self, shape: tuple[int, ...], draw: np.random.Generator) -> NDArray[np.float64]:
        step = np.arange(shape[-1])
        starts = draw.random(shape) < self.bursts
        ends = np.maximum.accumulate(np.where(starts, step + draw.geometric(1 / 8, shape), 0), axis=-1)
        latest = np.maximum.accumulate(np.where(starts, step, 0), axis=-1)
        height = np.take_along_axis(1.5 * (1 + draw.pareto(2.0, shape)), latest, axis=-1)
        return np.where(ends > step, height, 1.0)

    def _modes(self, shape: tuple[int, ...], draw: np.random.Generator) -> NDArray[np.float64]:
        changes = draw.random(shape) < 1 / 80
        changes[..., 0] = draw.random(shape[:-1]) < 0.5
        return 1 + self.modes * (np.cumsum(changes, axis=-1) % 2)


MACHINES = {
    "quiet": Machine(seed=1),
    "drift": Machine(drift=0.15, seed=2),
    "waves": Machine(autocorrelation=0.08, seed=3),
    "bursts": Machine(bursts=0.02, seed=4),
    "two clocks": Machine(modes=0.25, seed=5),
    "all together": Machine(drift=0.15, autocorrelation=0.08, bursts=0.02, modes=0.25, seed=6),
}
