"""Checks of a design: what would make a comparison say something else than it seems to.

They see a `Design`, so a study file, records and a published claim are all held to the same rules.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from oelm.analysis.checks.registry import Issue, Severity, by_severity, issue
from oelm.analysis.checks.undecidable import check_tests
from oelm.analysis.design import Design, Side, planned_design
from oelm.analysis.stats.power import decidable, detectable
from oelm.message import Message, MessageValue
from oelm.metrics import find_metric
from oelm.study.study import LR, Study, as_number
from oelm.treatment import Treatment

if TYPE_CHECKING:
    from oelm.analysis.results import Results

# Where things were run. It changes no result on purpose, so it is said and does not block.
SURROUNDINGS = ("oelm", "commit", "python", "device", "cpu", "gpu", "threads", "host", "versions", "processes")
# Said and not blocking too: what the models that arms start from were trained with, beside their treatments.
_WARNED = (*SURROUNDINGS, "origin")
# Sections that are one choice: who declares a part of it declares what becomes of the rest.
_ONE_CHOICE = ("budget", "data.tokenizer")
# Inits that keep what a pretrained head looks at: its row space.
KEEPS_ROWS = frozenset({"keep", "orthogonalize", "orthogonalize-global", "polar", "frames"})
# Initial logits that differ by less than this factor are the same for our purposes.
_SAME_SCALE = 1.05
# Weights of one size may still see more or less of what comes in; this much is worth a note.
_OTHER_LOGITS = 1.5
_ENOUGH_SEEDS = 5
# By number of seeds: how many times their standard deviation the true one may be, at 95 % (chi-squared).
_SPREAD_AT_MOST = {2: 15.95, 3: 4.415, 4: 2.920}


def check_study(study: Study) -> list[Issue]:
    """What can be said of a study before anything is run."""
    return check_design(planned_design(study))


def check_results(results: Results, *, pair: tuple[str, str] | None = None) -> list[Issue]:
    """What can be said of a study's records; of a comparison that the study does not name too, if `pair` is one."""
    from oelm.analysis.checks.lock import check_lock
    from oelm.analysis.checks.runs import check_runs
    from oelm.analysis.checks.tuning import check_tuning

    design = results.design
    if pair is not None:
        design = replace(design, pairs=(*design.pairs, pair), hypotheses=1)  # it is tested by itself
    of_runs = [*check_tuning(results), *check_runs(results, design.compared)]
    return by_severity([*check_lock(results), *check_design(design), *of_runs])


def check_design(design: Design) -> list[Issue]:
    rules = (_settings, _tuning, _untuned, _alike, _factors, _scales, _erased, _baseline, _backbone, _seeds, _split)
    return by_severity([*(found for rule in rules for found in rule(design)), *check_tests(design.tests)])


# -- settings ------------------------------------------------------------------------------------------------------


def _settings(design: Design) -> Iterator[Issue]:
    for arm, against in design.compared:
        one, other = design.sides[arm], design.sides[against]
        known = [path for path in {**one.settings, **other.settings} if _knows(one, path) and _knows(other, path)]
        apart = [path for path in known if one.settings.get(path) != other.settings.get(path)]
        tuned = [path for path in apart if _chosen(one, path) and _chosen(other, path) and one.grid == other.grid]
        for path in tuned:
            code = "LR-DIFFERS" if path == LR else "SETTING-DIFFERS"
            yield issue(
                code,
                where=_place(design, arm, against),
                arms=(arm, against),
                severity="note",
                key="differs-tuned",
                path=path,
                value=_plain(one.settings[path]),
                other=_plain(other.settings[path]),
            )
        rest = [path for path in apart if path not in tuned]
        if LR in rest:
            yield issue(
                "LR-DIFFERS",
                where=_place(design, arm, against),
                arms=(arm, against),
                against=against,
                value=_plain(one.settings[LR]),
                other=_plain(other.settings[LR]),
                declared=_declared(one, other, [LR]),
            )
        severities: tuple[Severity, ...] = ("invalid", "warn")
        for severity in severities:
            named = [path for path in rest if path != LR and (path.split(".")[0] in _WARNED) == (severity == "warn")]
            if named:
                settings = tuple(
                    Message(
                        "differing-setting",
                        path=path,
                        value=_plain(one.settings.get(path)),
                        other=_plain(other.settings.get(path)),
                    )
                    for path in named
                )
                yield issue(
                    "SETTING-DIFFERS",
                    where=_place(design, arm, against),
                    arms=(arm, against),
                    severity=severity,
                    against=against,
                    settings=settings,
                    declared=_declared(one, other, named),
                )


def _knows(side: Side, path: str) -> bool:
    """Whether it is there, or its section is absent: of `tokenizer: null` there is no `tokenizer.name`."""
    parts = path.split(".")
    return any(".".join(parts[:number]) in side.settings for number in range(1, len(parts) + 1))


def _chosen(side: Side, path: str) -> bool:
    """Whether the tuning can have chosen what it was trained with."""
    chosen = set(side.tuned.get(path, {}).values())
    return bool(chosen) and chosen <= set((side.grid or {}).get(path, ()))


def _place(design: Design, arm: str, against: str) -> str:
    """Where an issue of a comparison is; the baseline is not named."""
    return arm if against == design.against else f"{arm} / {against}"


def _declared(one: Side, other: Side, paths: list[str]) -> Message:
    declared = one.declared | other.declared
    sections = {section for section in _ONE_CHOICE if any(path.startswith(f"{section}.") for path in declared)}
    is_declared = (path in declared or path.rpartition(".")[0] in sections for path in paths)
    return Message("declared" if all(is_declared) else "not-declared")


def _plain(value: object) -> MessageValue:
    """A setting as a number where it is one, else as it is written."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


# -- tuning --------------------------------------------------------------------------------------------------------


def _tuning(design: Design) -> Iterator[Issue]:
    for arm, against in design.compared:
        one, other = design.sides[arm], design.sides[against]
        if one.trials is None and other.trials is None:
            continue
        if (one.grid, one.trials) != (other.grid, other.trials):
            yield issue(
                "TUNING-UNEQUAL",
                where=_place(design, arm, against),
                arms=(arm, against),
                against=against,
                trials=_trials(one),
                other=_trials(other),
            )
    for side in design.sides.values():
        for path, values in (side.grid or {}).items():
            if _has_no_effect(path, side):
                at_arm: dict[str, Any] = {"where": side.name, "arms": (side.name,)}
                yield issue(
                    "TUNING-UNEQUAL", **at_arm, severity="warn", key="tuning-in-vain", path=path, number=len(values)
                )
        for path, at in edges(side).items():
            yield issue(
                "TUNING-UNEQUAL",
                where=side.name,
                arms=(side.name,),
                severity="warn" if at.is_usual else "note",
                key="tuning-edge",
                path=path,
                value=tuple(map(_plain, at.values)),
                edge=Message(f"edge-{at.edge}"),
                grid=tuple(_numbers(side, path)),
                number=at.number,
                seeds=at.seeds,
            )


@dataclass(frozen=True, kw_only=True)
class AtEdge:
    """Where seeds have chosen the lowest or highest value of a grid."""

    values: tuple[float, ...]
    """Those that were chosen: one edge, or both."""
    edge: Literal["lowest", "highest", "both"]
    number: int
    """Of seeds that have chosen one of them."""
    seeds: int
    """Of all."""

    @property
    def is_usual(self) -> bool:
        """One seed of several may end there by chance."""
        return 2 * self.number >= self.seeds


def edges(side: Side) -> dict[str, AtEdge]:
    """By path: where seeds have chosen an edge of the grid, whichever it is."""
    found = {}
    for path, chosen in side.tuned.items():
        grid = _numbers(side, path) if not _has_no_effect(path, side) else []
        numbers = [number for value in chosen.values() if (number := as_number(value)) is not None]
        at = {number: edge for number in (numbers if grid else ()) if (edge := at_edge(number, grid)) is not None}
        if at:
            found[path] = AtEdge(
                values=tuple(sorted(at)),
                edge="both" if len(set(at.values())) > 1 else next(iter(at.values())),
                number=sum(number in at for number in numbers),
                seeds=len(chosen),
            )
    return found


def _has_no_effect(path: str, side: Side) -> bool:
    """Queries and keys that never learn have no learning rate."""
    if path != "optimizer.qk_lr" or side.treatment is None:
        return False
    treatment = side.treatment
    is_frozen = treatment.freeze == "qk" and treatment.layers == "all" and treatment.unfreeze is None
    return is_frozen or side.training not in ("", "trains: biases")


def at_edge(chosen: float, grid: Sequence[float]) -> Literal["lowest", "highest"] | None:
    """At which edge of what was tried the choice lies: a better value may be beyond. One or two values are all edge."""
    if chosen <= min(grid):
        return "lowest"
    return "highest" if chosen >= max(grid) else None


def _numbers(side: Side, path: str) -> list[float]:
    """What was tried of a setting that is a number."""
    values = (side.grid or {}).get(path, ())
    return [number for value in values if (number := as_number(value)) is not None]


def is_untuned(side: Side) -> bool:
    """Whether it is known to have been given the one learning rate that it has."""
    return side.trials is not None and LR not in (side.grid or {})


def _untuned(design: Design) -> Iterator[Issue]:
    """If only some of them are tuned, that is `TUNING-UNEQUAL`."""
    sides = [design.sides[name] for name in dict.fromkeys(name for pair in design.compared for name in pair)]
    rates = dict.fromkeys(_plain(side.settings[LR]) for side in sides if LR in side.settings)
    if rates and all(map(is_untuned, sides)):
        yield issue("UNTUNED", rates=tuple(rates))


def _trials(side: Side) -> Message:
    if not side.trials or side.trials == 1:
        return Message("trials-none")
    return Message("trials", number=side.trials)


# -- treatments ----------------------------------------------------------------------------------------------------


def _alike(design: Design) -> Iterator[Issue]:
    """Arms that differ in their names alone, which change nothing."""
    for arm, against in design.compared:
        one, other = design.sides[arm], design.sides[against]
        made = [(side.treatment, side.training, side.origin, dict(side.settings), side.grid) for side in (one, other)]
        if one.treatment is not None and one.settings and made[0] == made[1]:
            yield issue("ARMS-ALIKE", where=_place(design, arm, against), arms=(arm, against), against=against)


def _factors(design: Design) -> Iterator[Issue]:
    """Init, scale, freeze, what is trained and what it starts from changed at once, with no arm in between to tell
    them apart."""
    base = design.sides.get(design.against)
    if base is None or base.treatment is None or base.treatment.init != "keep":  # a treated baseline is another fault
        return
    sides = {name: side for name, side in design.sides.items() if _has_heads(side)}
    kinds = {name: _changed(side, base) for name, side in sides.items()}
    pairs = itertools.combinations(sides.values(), 2)
    told_apart = {factor for pair in pairs if len(found := _changed(*pair)) == 1 for factor in found}
    for name, changed in kinds.items():
        between = [other for other, fewer in kinds.items() if fewer and fewer < changed]
        if len(changed) < 2 or between:
            continue
        yield issue(
            "MANY-FACTORS",
            where=name,
            arms=(name, design.against),
            severity="note" if len(changed - told_apart) < 2 else "warn",  # two other arms differ in it alone
            factors=tuple(sorted(changed)),
            missing=_between(sides[name], base, changed),
        )


def _between(side: Side, base: Side, changed: frozenset[str]) -> str:
    """An arm that would tell them apart: only the adapter, only the freezing, or the new weights at the old scale."""
    assert side.treatment is not None
    assert base.treatment is not None
    if "training" in changed:
        return f"{{init: {base.treatment.init}, {side.training or 'trains: all'}}}"
    frozen_alone = "freeze" in changed
    init, scale = (base.treatment.init, base.treatment.scale) if frozen_alone else (side.treatment.init, "match")
    parts = [f"init: {init}", *([] if scale is None else [f"scale: {scale}"]), f"freeze: {side.treatment.freeze}"]
    return f"{{{', '.join([*parts, *([side.training] if side.training else [])])}}}"


def _changed(one: Side, other: Side) -> frozenset[str]:
    treatment, base = _as_attention_sees(one), _as_attention_sees(other)
    changed = {name for name in ("init", "freeze") if getattr(treatment, name) != getattr(base, name)}
    if _scale(treatment) != _scale(base):
        changed.add("scale")
    if one.training or other.training:
        changed.discard("freeze")  # what is not trained is frozen, whatever the treatment says
    if one.training != other.training:
        changed.add("training")
    if one.origin != other.origin:
        changed.add("pretraining")
    return frozenset(changed)


def _scale(treatment: Treatment) -> str | float:
    """Weights that are kept keep their scale, and so does a spectrum."""
    return "match" if treatment.scale in (None, "keep") else treatment.scale


def _has_heads(side: Side) -> bool:
    """Without queries and keys there is nothing to tell apart: that is the control of the study, not of an arm."""
    return side.treatment is not None and side.treatment.init != "zero"


def _as_attention_sees(side: Side) -> Treatment:
    """Frozen frames with their own spectrum are the weights that were there, in other coordinates."""
    treatment = side.treatment
    assert treatment is not None
    is_frozen = treatment.freeze == "qk" or bool(side.training)
    is_same = treatment.init == "frames" and treatment.scale == "keep" and is_frozen
    return replace(treatment, init="keep", scale=None) if is_same else treatment


def _controls(design: Design) -> Iterator[tuple[Side, Side]]:
    """(treated, control): arms that differ in how Q/K are made and agree in what is frozen and where."""
    treated = [side for side in design.sides.values() if _has_heads(side) and side.name != design.against]
    for one, other in itertools.combinations(treated, 2):
        assert one.treatment is not None
        assert other.treatment is not None
        if (one.training, one.treatment.layers) != (other.training, other.treatment.layers):
            continue
        if not one.training and one.treatment.freeze != other.treatment.freeze:
            continue
        if one.treatment.init == other.treatment.init:
            continue
        yield (one, other) if one.treatment.rows != "any" else (other, one)


def _severity(design: Design, one: Side, other: Side) -> Severity:
    """Two arms that nobody compares may still be read side by side."""
    return "invalid" if _are_compared(design, one, other) else "note"


def _are_compared(design: Design, one: Side, other: Side) -> bool:
    return any({one.name, other.name} == set(pair) for pair in design.compared)


def _scales(design: Design) -> Iterator[Issue]:
    for treated, control in _controls(design):
        assert treated.treatment is not None
        assert control.treatment is not None
        compared = _are_compared(design, treated, control)
        if treated.treatment.rows == "any" or (control.treatment.rows != "any" and not compared):
            continue
        factor, measured = _scale_factor(treated, control, design), _measured_factor(treated, control)
        at: dict[str, Any] = {"where": f"{treated.name} / {control.name}", "arms": (treated.name, control.name)}
        names: dict[str, Any] = {"treated": treated.name, "control": control.name}
        if factor is None:
            if _scale(treated.treatment) != _scale(control.treatment):
                what = f"{treated.treatment.scale} | {control.treatment.scale or 'keep'}"
                yield issue(
                    "SCALE-CONFOUND", **at, severity="warn" if compared else "note", key="scale-unknown", what=what
                )
        elif not 1 / _SAME_SCALE <= factor <= _SAME_SCALE:
            severity = _severity(design, treated, control)
            yield issue("SCALE-CONFOUND", **at, severity=severity, factor=measured or factor, **names)
        elif measured is not None and not 1 / _OTHER_LOGITS <= measured <= _OTHER_LOGITS:
            yield issue("SCALE-CONFOUND", **at, severity="note", key="scale-directions", factor=measured, **names)


def _measured_factor(one: Side, other: Side) -> float | None:
    """How many times larger the first attention logits of one side were."""
    return one.logit_spread / other.logit_spread if one.logit_spread and other.logit_spread else None


def _scale_factor(one: Side, other: Side, design: Design) -> float | None:
    """How many times larger they are by the size of the weights alone: queries and keys both scale them."""
    if one.head_norm and other.head_norm:
        return _squared(one.head_norm / other.head_norm)
    assert one.treatment is not None
    assert other.treatment is not None
    lengths = [_row_length(treatment, design.width) for treatment in (one.treatment, other.treatment)]
    if None not in lengths:
        return _squared(lengths[0] / lengths[1])  # type: ignore[operator]
    if _scale(one.treatment) == _scale(other.treatment) == "match":
        return 1.0
    return _measured_factor(one, other)


def _squared(ratio: float) -> float:
    return ratio * ratio  # `**` would raise an error where this is infinite


def _row_length(treatment: Treatment, width: int | None) -> float | None:
    """Root mean square length of a row of a head's block, where the treatment alone tells."""
    if treatment.scale == "unit":
        return 1.0
    if isinstance(treatment.scale, float) and width is not None:
        return treatment.scale * math.sqrt(width)
    return None


def _erased(design: Design) -> Iterator[Issue]:
    if not design.pretrained:
        return
    for treated, control in _controls(design):
        assert treated.treatment is not None
        assert control.treatment is not None
        if treated.treatment.rows == "any" or control.treatment.rows != "any":
            continue  # the difference is not said to be orthogonality's
        keeps = [side.name for side in (treated, control) if _keeps(side)]
        loses = [side.name for side in (treated, control) if not _keeps(side)]
        if keeps and loses:
            yield issue(
                "PRETRAINED-ERASED",
                where=f"{treated.name} / {control.name}",
                arms=(treated.name, control.name),
                severity=_severity(design, treated, control),
                keeps=keeps[0],
                loses=loses[0],
            )


def _keeps(side: Side) -> bool:
    return side.treatment is not None and side.treatment.init in KEEPS_ROWS


def _baseline(design: Design) -> Iterator[Issue]:
    base = design.sides.get(design.against)
    if base is not None and base.treatment is not None:
        done = [f"init {base.treatment.init}"] if base.treatment.init != "keep" else []
        done += [f"freeze {base.treatment.freeze}"] if base.treatment.freeze != "none" else []
        if done:
            yield issue("BASELINE-TREATED", where=base.name, arms=(base.name,), what=tuple(done))


def _backbone(design: Design) -> Iterator[Issue]:
    for side in design.sides.values():
        if side.training and design.pretrained is False:
            yield issue("RANDOM-BACKBONE", where=side.name, arms=(side.name,))


# -- evidence ------------------------------------------------------------------------------------------------------


def _seeds(design: Design) -> Iterator[Issue]:
    aim, shown = design.min_effect, find_metric(design.metric).effect if design.metric is not None else float
    about = Message("aimed", aim=shown(aim)) if aim is not None else ""
    for arm, against in design.compared:
        one, other = design.sides[arm].seeds, design.sides[against].seeds
        if one is None or other is None:
            continue
        n = len(set(one) & set(other))
        few = functools.partial(issue, "FEW-SEEDS", where=_place(design, arm, against), arms=(arm, against), n=n)
        own = against == design.against
        spread, alpha = design.spreads.get(arm) if own else None, design.alpha
        alpha /= max(design.family if own else design.hypotheses, 1)
        if n < 2:
            yield few(key="one-seed")
        elif spread is None:
            if n < _ENOUGH_SEEDS:
                yield few(key="few-seeds-planned", severity="note", smallest=detectable(n, alpha=alpha))
        else:
            # Under Holm, and for equivalence too: what is neither found nor excluded is not decided.
            smallest, times = decidable(n, spread=spread, alpha=alpha), _SPREAD_AT_MOST.get(n, 1.0)
            if aim is None or smallest > aim:
                yield few(severity="note" if aim is None else "warn", smallest=shown(smallest), about=about)
            elif times * smallest > aim:
                largest = shown(times * smallest)
                yield few(key="few-seeds-agree", severity="note", times=times, smallest=largest, about=about)


def _split(design: Design) -> Iterator[Issue]:
    if design.same_split is not None:
        yield issue("SAME-SPLIT", split=design.same_split)
