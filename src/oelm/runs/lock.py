"""lock.json: what a study had planned when its first cell was started. Launches and readers hold the study to it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, asdict, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from oelm.errors import CellError
from oelm.runs.files import FileType, write_text, writing
from oelm.runs.layout import LOCK
from oelm.study.cells import flatten
from oelm.study.forbid_extra import as_in_file
from oelm.study.hypothesis import Hypothesis
from oelm.study.recipe import WITHOUT_EFFECT, CheckpointConfig, Recipe
from oelm.study.study import Arm, Compare, Study, Tune, Value

_NAMES = (".model.name", ".model.from", ".data.tokenizer.name")  # of a folder, perhaps
_COPIED = re.compile(r"-[0-9a-f]{12}$")  # what the name of a copy on another machine ends with


@dataclass(frozen=True, kw_only=True)
class Lock:
    """What was planned; written once, before the first cell is started. Words (`because`, `notes`) are not part of it,
    and neither is what has no effect on a result."""

    study: str
    """Name of the study."""
    arms: dict[str, Arm]
    """By name."""
    seeds: tuple[int, ...]
    """Those that are compared."""
    second_stage: tuple[int, ...]
    """Those of the second stage, if one is planned."""
    compare: Compare
    """Baseline, metric and smallest effect of interest."""
    hypotheses: tuple[Hypothesis, ...]
    """What the study sets out to show, with the rules that decide."""
    tune: Tune | None
    """The grid, and the seeds of the tuning."""
    recipe: Recipe
    """What the arms share."""

    @property
    def digest(self) -> str:
        """By which cells name what they were started under."""
        return hashlib.sha256(json.dumps(_said(self), sort_keys=True).encode()).hexdigest()


def _said(value: Any) -> Any:
    """Plain data without what is as it is by default, so that a setting which a later version adds changes nothing."""
    if is_dataclass(value):
        given = {field.name: (getattr(value, field.name), _default(field)) for field in fields(value)}
        return {name: _said(one) for name, (one, default) in given.items() if one != default}
    if isinstance(value, Mapping):
        return {key: _said(one) for key, one in value.items()}
    return [_said(one) for one in value] if isinstance(value, list | tuple) else value


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


LOCK_FILE = FileType(
    LOCK,
    Lock,
    format=1,
    hint="move it away; with the study as it was when its first cell was started, oelm run makes it again",
    has_checksum=True,
)


@dataclass(frozen=True, kw_only=True)
class LockChange:
    """Something that was planned, and is not so any more."""

    path: str
    was: str
    now: str
    arm: str | None = None
    """That it is about; None: the whole study, or a hypothesis."""
    hypothesis: str | None = None

    def __str__(self) -> str:
        return f"{self.path}: was {self.was}, is {self.now}"


@dataclass(frozen=True, kw_only=True)
class LockChanges:
    """How a study departs from what was planned: what came later, and what is another."""

    arms: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    hypotheses: tuple[str, ...] = ()
    changed: tuple[LockChange, ...] = ()

    @property
    def added(self) -> tuple[str, ...]:
        """What came later, by name."""
        named = [("arm", self.arms), ("seed", self.seeds), ("hypothesis", self.hypotheses)]
        return tuple(f"{kind} {name}" for kind, names in named for name in names)


def make_lock(study: Study) -> Lock:
    """What there would be to lock."""
    return Lock(
        study=study.name,
        arms={name: replace(arm, overrides=_in_effect(arm.overrides)) for name, arm in study.arms.items()},
        seeds=study.seeds,
        second_stage=study.second_stage,
        compare=replace(study.compare, because=None),
        hypotheses=study.hypotheses,
        tune=study.tune,
        recipe=replace(
            study.recipe,
            data=replace(study.recipe.data, path=None),
            checkpoint=CheckpointConfig(),
            parallel="ddp",
            trackers=(),
        ),
    )


def locked_study(lock: Lock) -> Study:
    """The study that was planned."""
    return Study(
        name=lock.study,
        version=1,
        **{
            part: getattr(lock, part)
            for part in ("recipe", "arms", "seeds", "second_stage", "compare", "tune", "hypotheses")
        },
    )


def lock_study(folder: Path, study: Study) -> Lock:
    """The lock of the study in this folder, which is written now if it was not: whoever comes first decides."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    if (found := read_lock(folder, study.name)) is None:
        write_text(folder / LOCK, LOCK_FILE.dumps(make_lock(study)), once=True)
        found = read_lock(folder, study.name)
    assert found is not None
    return found


def read_lock(folder: Path, study: str | None) -> Lock | None:
    """What was planned of the study in this folder, of any name if it is None; None if nothing was started yet."""
    lock = LOCK_FILE.read(folder)
    if lock is not None and study not in (None, lock.study):
        raise CellError(f"{folder / LOCK} is of another study, '{lock.study}'", hint=LOCK_FILE.hint)
    return lock


def find_changes(lock: Lock, study: Study) -> LockChanges:
    """How the study departs from what was locked."""
    now = make_lock(study)
    planned_seeds = {*lock.seeds, *lock.second_stage}
    return LockChanges(
        arms=tuple(name for name in now.arms if name not in lock.arms),
        seeds=tuple(seed for seed in (*now.seeds, *now.second_stage) if seed not in planned_seeds),
        hypotheses=tuple(
            one.name for one in now.hypotheses if one.name not in {other.name for other in lock.hypotheses}
        ),
        changed=tuple(_changes(lock, now)),
    )


def _changes(lock: Lock, now: Lock) -> Iterator[LockChange]:
    for part in ("compare", "tune", "recipe"):
        yield from _differences(part, getattr(lock, part), getattr(now, part))
    for part, before, after in (
        ("seeds", lock.seeds, now.seeds),
        ("second_stage", lock.second_stage, now.second_stage),
    ):
        if not set(before) <= set(after):
            yield LockChange(path=part, was=str(list(before)), now=str(list(after)))
    for name, arm in lock.arms.items():
        for change in _differences(f"arms.{name}", arm, now.arms.get(name)):
            yield replace(change, arm=name)
    by_name = {one.name: one for one in now.hypotheses}
    for one in lock.hypotheses:
        for change in _differences(f"hypotheses.{one.name}", one, by_name.get(one.name)):
            yield replace(change, hypothesis=one.name)


def _differences(path: str, before: Any, after: Any) -> Iterator[LockChange]:
    if before is not None and after is None:
        yield LockChange(path=path, was="planned", now="missing")
        return
    plain = [asdict(one, dict_factory=as_in_file) if one is not None else None for one in (before, after)]
    was, now = (flatten({path: one}) if one is not None else {} for one in plain)
    for at in {**was, **now}:
        if was.get(at) != now.get(at) and not _is_relocated(at, was.get(at), now.get(at)):
            yield LockChange(path=at, was=repr(was.get(at)), now=repr(now.get(at)))


def _is_relocated(path: str, *names: object) -> bool:
    """Whether both name one model or tokenizer in a folder, which lies elsewhere on another machine."""
    if not path.endswith(_NAMES) or not all(isinstance(name, str) for name in names):
        return False
    paths = [Path(str(name)) for name in names]
    return any(one.is_absolute() for one in paths) and len({_COPIED.sub("", one.name) for one in paths}) == 1


def _in_effect(overrides: Mapping[str, Value]) -> dict[str, Value]:
    return {path: value for path, value in overrides.items() if not path.startswith(WITHOUT_EFFECT)}
