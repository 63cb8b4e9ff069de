"""Load a ledger: a YAML file, or a shipped one by its name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from oelm.analysis.checks.reported_number import parse_number
from oelm.claims.schema import Ledger, ResultTable
from oelm.errors import StudyError, did_you_mean
from oelm.metrics import SHARES
from oelm.study import yaml
from oelm.study.problems import validate_config
from oelm.study.shipped import shipped_studies

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
        for number, rule in enumerate(claim.rules):
            if sum(limit is not None for limit in (rule.about, rule.above, rule.at_most)) != 1:
                yield f"{at}.rules.{number}", "needs exactly one of about, above, at_most"
            if rule.of is not None and parse_number(rule.of).value == 0:
                yield f"{at}.rules.{number}.of", "must not be 0"
        for number, retest in enumerate(claim.retested_by):
            if retest.study is None and retest.why is None:
                yield f"{at}.retested_by.{number}", "names no study: say why"
            if retest.study is not None and retest.arm is None:
                yield f"{at}.retested_by.{number}.arm", "is missing"
            if retest.study is not None and retest.study not in shipped:
                known = did_you_mean(retest.study, shipped) or "; oelm studies ls lists them"
                yield f"{at}.retested_by.{number}.study", f"'{retest.study}' is not a shipped study{known}"


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
