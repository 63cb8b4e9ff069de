"""Load a ledger: a YAML file, or a shipped one by its name."""

from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from oelm import yaml
from oelm.analysis.checks.reported_number import parse_number
from oelm.claims.schema import ClaimTest, Ledger, ResultTable
from oelm.data.tasks import TASKS
from oelm.errors import StudyError, did_you_mean
from oelm.metrics import MEASURED, SHARES, metric_names
from oelm.study.hypothesis import estimand_problems
from oelm.study.load import load_study
from oelm.study.problems import validate_config
from oelm.study.shipped import shipped_studies
from oelm.study.study import Study

FIRST = "oelm-first"
"""The ledger of the reports that the method comes from."""


def shipped_ledgers() -> dict[str, Path]:
    """File by name."""
    return {path.stem: path for path in sorted((Path(__file__).parent / "ledgers").glob("*.yaml"))}


def load_ledger(path: str | Path = FIRST) -> Ledger:
    """A ledger from a file, or a shipped one by its name."""
    shipped = shipped_ledgers()
    file = shipped.get(str(path), Path(path))
    try:
        there = file.is_file()
    except (OSError, ValueError) as error:  # a name that is too long, or not the name of a file
        raise StudyError(f"{path} cannot be read", why=str(error)) from error
    if not there:
        raise StudyError(f"unknown ledger {path}{did_you_mean(file.stem, shipped)}", hint="docs/claims.md")
    return ledger_from_dict(yaml.read(file), where=str(file))


def ledger_from_dict(raw: Any, *, where: str = "the ledger") -> Ledger:
    """A ledger from plain data in the form of the file."""
    if not isinstance(raw, dict):
        raise StudyError(f"{where} is not a ledger", why="it is not a mapping with `ledger:`, `sources:` and `claims:`")
    return validate_config(raw, Ledger, where=where, also=_problems)


def _problems(ledger: Ledger) -> Iterator[tuple[str, str]]:
    shipped = shipped_studies()
    for name, claim in ledger.claims.items():
        at = f"claims.{name}"
        if claim.source not in ledger.sources:
            known = did_you_mean(claim.source, ledger.sources)
            yield f"{at}.source", f"'{claim.source}' is none of the sources{known}"
        if claim.arms and claim.against is None:
            yield f"{at}.against", "is missing: which of the arms are the others compared with?"
        named = [(f"{at}.against", claim.against)] if claim.against is not None else []
        named += [(f"{at}.pairs", arm) for pair in claim.pairs for arm in pair]
        for label, table in claim.results.items():
            if claim.arms:
                named += [(f"{at}.results.{label}.arms", arm) for arm in table.arms]
            yield from _table_problems(table, f"{at}.results.{label}")
        for path, arm in named:
            if arm not in claim.arms:
                yield path, f"'{arm}' is not an arm{did_you_mean(arm, claim.arms)}"
        for number, test in enumerate(claim.tests):
            for place, wrong in _test_problems(test, shipped):
                yield f"{at}.tests.{number}{place}", wrong


def _test_problems(test: ClaimTest, shipped: Collection[str]) -> Iterator[tuple[str, str]]:
    for name in test.studies:
        if name not in shipped:
            known = did_you_mean(name, shipped) or "; oelm studies ls lists them"
            yield ".studies", f"'{name}' is not a shipped study{known}"
            continue
        study = shipped_study(name)
        measured = (*TASKS[study.recipe.data.task].metrics, *MEASURED)
        if test.estimand.metric not in measured:
            guess = did_you_mean(test.estimand.metric, measured) or f"; there are {', '.join(measured)}"
            yield ".estimand", f"'{test.estimand.metric}' is not measured by {name}{guess}"
        elif test.estimand.metric in metric_names("tuning") and not study.tunes_lr:
            yield ".estimand", f"there is no {test.estimand.metric} in {name}, which does not tune the learning rate"
        for place, wrong in estimand_problems(test.estimand, test.rule, test.margin, arms=study.arms):
            yield f".{place}", f"{wrong} ({name})"
    if not test.studies:
        for place, wrong in estimand_problems(test.estimand, test.rule, test.margin, arms=()):
            yield f".{place}", wrong
        if test.needs is None:
            yield "", "names no study: say what it `needs`"
    if len(test.studies) > 1 and test.combine is None:
        yield ".combine", "is missing: mean or interaction?"
    if len(test.studies) != 2 and test.combine == "interaction":
        yield ".combine", f"an interaction is between two studies, got {len(test.studies)}"
    if len(test.studies) < 2 and test.combine == "mean":
        yield ".combine", f"a mean is over two studies or more, got {len(test.studies)}"


@cache
def shipped_study(name: str) -> Study:
    """A shipped study by its name, read once."""
    return load_study(name)


def _table_problems(table: ResultTable, at: str) -> Iterator[tuple[str, str]]:
    if table.class_counts is not None:
        if table.examples is not None and sum(table.class_counts) != table.examples:
            yield f"{at}.class_counts", f"sum to {sum(table.class_counts)}, and there are {table.examples} examples"
        if table.classes is not None and len(table.class_counts) != table.classes:
            yield f"{at}.class_counts", f"are {len(table.class_counts)}, and there are {table.classes} classes"
    for arm, row in table.arms.items():
        shares = [row.best, row.final, *row.listed, *row.values] if table.metric in SHARES else []
        for text in (*shares, row.f1):
            if text is not None and not 0 <= parse_number(text).value <= 1:
                yield f"{at}.arms.{arm}", f"'{text}' is not a share: write '91.42 %' or '0.9142'"
