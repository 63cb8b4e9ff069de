"""Schedule: the learning rate of every step."""

import math

from oelm.study.recipe import ScheduleConfig


def lr_at(step: int, *, total: int, peak: float, schedule: ScheduleConfig) -> float:
    """The learning rate of step `step` (from 0) of `total`: a pure function, so there is no state to lose."""
    warmup = round(schedule.warmup if schedule.warmup >= 1 else schedule.warmup * total)
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    if schedule.name == "constant":
        return peak
    share = (step - warmup) / max(1.0, total - warmup)
    falling = 1 - share if schedule.name == "linear" else (1 + math.cos(math.pi * share)) / 2
    return peak * (schedule.floor + (1 - schedule.floor) * falling)
