"""Comparisons made from differences, without records."""

from oelm.analysis.stats.estimate import from_seeds
from oelm.analysis.verdicts import Comparison
from oelm.message import verbatim


def compared(differences, *, margin=None, higher=True, issues=()):
    """A comparison that is not judged yet, from its differences seed by seed."""
    estimate = from_seeds(differences)
    return Comparison(
        arm="arm",
        against="baseline",
        metric="accuracy" if higher else "loss",
        higher_is_better=higher,
        differences=dict(enumerate(differences)),
        estimate=estimate,
        interval=estimate.interval(),
        over_seeds=estimate.interval(),
        examples=None,
        margin=margin,
        p_differs=estimate.p_differs(),
        p_equivalent=None if margin is None else estimate.p_within(margin),
        family=1,
        deciding=estimate.interval(),
        outcomes=(),
        worst=None,
        with_failures=None,
        detectable=1.0,
        seeds_needed=10,
        issues=issues,
        verdict="inconclusive",
        message=verbatim(""),
    )
