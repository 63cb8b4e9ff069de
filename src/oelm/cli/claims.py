"""`oelm claims`: what has been published, the verdict of its tests, and which checks fire on it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from oelm.cli.echo import echo, warn
from oelm.cli.options import JsonOption
from oelm.errors import OelmError, StudyError, did_you_mean
from oelm.format import finite_or_none
from oelm.message import Lang, Message, Text
from oelm.runs.archive import unpacked
from oelm.runs.layout import ARCHIVE, EVIDENCE, RUNS, find_started_studies
from oelm.text.messages import say, translate

if TYPE_CHECKING:
    from oelm.analysis.checks.registry import Issue
    from oelm.analysis.results import Results
    from oelm.claims.decide import JudgedTest
    from oelm.claims.judge import JudgedClaim
    from oelm.claims.schema import Claim, Ledger


class _Listing(TyperGroup):
    """`oelm claims RUNS` is `oelm claims ls RUNS`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = (*self.commands, "--help")
        return super().parse_args(ctx, args if args and args[0] in known else ["ls", *args])


claims_app = typer.Typer(
    cls=_Listing,
    add_completion=False,
    rich_markup_mode=None,
    help="List or check published claims, next to our records\n\nWithout a command: ls",
)
RUNS_HELP = f"Folder of runs, or of archives [default: {EVIDENCE}, or {RUNS}, if it exists]"
LedgerOption = Annotated[str, typer.Option(help="Ledger file, or name of a shipped ledger")]
LangOption = Annotated[Lang, typer.Option(help="Language")]


@claims_app.command("ls")
def list_claims(
    runs: Annotated[Path | None, typer.Argument(help=RUNS_HELP)] = None,
    ledger: LedgerOption = "oelm-first",
    as_json: JsonOption = False,
    lang: LangOption = "en",
) -> None:
    """List claims, the verdict of their tests, and the checks that fire on each"""
    loaded, judged = _judge(ledger, runs)
    if as_json:
        _echo_json(loaded, judged, lang)
        return
    for name, one in judged.items():
        codes = ", ".join(one.codes) or say("claims-clean")[lang]
        _show(name, one.claim.claim[lang], [*_verdict(one, lang), ("claims-checks", codes), *_paired(one, lang)], lang)


@claims_app.command("check")
def check_ledger(
    names: Annotated[list[str] | None, typer.Argument(metavar="ID", help="Only these claims")] = None,
    runs: Annotated[Path | None, typer.Option(help=RUNS_HELP)] = None,
    ledger: LedgerOption = "oelm-first",
    as_json: JsonOption = False,
    lang: LangOption = "en",
) -> None:
    """Show every test and check of the claims, with its numbers"""
    loaded, judged = _judge(ledger, runs, names)
    if as_json:
        _echo_json(loaded, judged, lang)
        return
    for name, one in judged.items():
        lines = [("claims-source", loaded.sources[one.claim.source][lang]), *_verdict(one, lang)]
        issues = [_issue_line(issue, lang) for issue in one.issues] or [say("claims-clean")[lang]]
        lines += [("claims-checks", text) for text in issues]
        lines += _paired(one, lang)
        lines += [("claims-rule", line) for line in _rules(one.claim, lang)]
        lines += [("claims-note", note[lang]) for note in one.claim.notes]
        _show(name, one.claim.claim[lang], lines, lang)


def _judge(ledger: str, runs: Path | None, names: list[str] | None = None) -> tuple[Ledger, dict[str, JudgedClaim]]:
    """The ledger, and its claims or some of them, judged by the records in a folder of runs."""
    from oelm.claims.judge import judge_claim
    from oelm.claims.load import load_ledger

    loaded = load_ledger(ledger)
    for name in names or ():
        if name not in loaded.claims:
            known = ", ".join(loaded.claims)
            raise StudyError(f"unknown claim '{name}'{did_you_mean(name, loaded.claims)}", hint=f"one of {known}")
    asked = replace(loaded, claims={name: loaded.claims[name] for name in names or loaded.claims})
    with _records(runs) as folder:
        results = _results(asked, folder, was_named=runs is not None)
        return asked, {name: judge_claim(claim, results) for name, claim in asked.claims.items()}


@contextmanager
def _records(runs: Path | None) -> Iterator[Path]:
    """The folder to read: the one that is named, or the evidence of a working copy, or that of runs."""
    for place in (runs,) if runs is not None else (EVIDENCE, RUNS):
        if any(place.glob(f"*/{ARCHIVE}")):
            if runs is None:
                warn(f"reading the archives in {place}; to read other records, name their folder, e.g. {RUNS}")
            with unpacked(place) as folder:
                yield folder
            return
    yield runs or RUNS


def _results(ledger: Ledger, runs: Path, *, was_named: bool) -> list[Results]:
    """Of the studies that test a claim: their names are those of their folders."""
    if not was_named and not runs.is_dir():
        return []
    wanted = {study for claim in ledger.claims.values() for test in claim.tests for study in test.studies}
    try:
        folders = find_started_studies(runs)
    except OelmError:
        if was_named:
            raise
        return []  # nobody asked for these
    named = ((folder, folder.resolve().name) for folder in folders)
    found = [_read(folder, name) for folder, name in named if name in wanted]
    return [results for results in found if results is not None]


def _read(folder: Path, name: str) -> Results | None:
    """None if it cannot be read, which is said: the claims that it does not test are still worth showing."""
    from oelm.analysis.results import read_results

    try:
        results = read_results(folder)
    except OelmError as error:
        warn(f"excluded: {' '.join(str(error).split())}")
        return None
    for out in results.excluded:
        if out.is_damaged:
            warn(f"excluded: {name}/{out}")
    if results.study.name != name:
        warn(f"excluded: {folder} holds the study '{results.study.name}'")
        return None
    return results


def _verdict(one: JudgedClaim, lang: Lang) -> list[tuple[str, str]]:
    """The verdict, and what every test says."""
    lines = [("claims-verdict", translate(one.verdict.message)[lang])]
    for judged in one.verdict.tests:
        said = Message("claim-test", scale=judged.test.scale, said=judged.message)
        lines.append(("claims-test" if judged.test.decides else "claims-beside", translate(said)[lang]))
    return lines


def _paired(one: JudgedClaim, lang: Lang) -> list[tuple[str, str]]:
    """What the published numbers themselves give."""
    return [("claims-paired", translate(pair.message)[lang]) for pair in one.paired]


def _rules(claim: Claim, lang: Lang) -> list[str]:
    """By what its tests decide, each rule once, and why the margin is that."""
    found: dict[Message | str, Text | None] = {}
    for test in claim.tests:
        rule = (
            str(test.hypothesis) if test.combine is None else Message(f"rule-{test.combine}", rule=str(test.hypothesis))
        )
        found[rule] = found.get(rule) or test.because
    return [say("rule-because" if why else "rule-alone", rule=rule, why=why)[lang] for rule, why in found.items()]


def _issue_line(issue: Issue, lang: Lang) -> str:
    where = f"{issue.where}: " if issue.where else ""
    return f"{issue.severity:<7} {issue.code}  {where}{translate(issue.message)[lang]}"


def _show(name: str, claim: str, lines: list[tuple[str, str]], lang: Lang) -> None:
    echo(f"{name}  {claim}")
    width = max(len(say(key)[lang]) for key, _ in lines)
    before = ""
    for key, text in lines:
        label = say(key)[lang]
        echo(f"    {label if label != before else '':<{width}}  {text}")
        before = label


def _plain(one: JudgedClaim, ledger: Ledger, lang: Lang) -> dict[str, object]:
    return {
        "claim": _both(one.claim.claim),
        "source": _both(ledger.sources[one.claim.source]),
        "verdict": {
            "status": one.verdict.status,
            "scale": _both(one.verdict.scale) if one.verdict.scale is not None else None,
            "text": translate(one.verdict.message)[lang],
        },
        "tests": [_plain_test(judged, lang) for judged in one.verdict.tests],
        "checks": [issue.to_dict() | {"text": translate(issue.message)[lang]} for issue in one.issues],
        "paired": [
            {
                "arm": pair.arm,
                "against": pair.against,
                "metric": pair.metric,
                "n": pair.n,
                "mean": pair.mean,
                "low": pair.interval.low,
                "high": pair.interval.high,
                "text": translate(pair.message)[lang],
            }
            for pair in one.paired
        ],
        "notes": [_both(note) for note in one.claim.notes],
    }


def _plain_test(judged: JudgedTest, lang: Lang) -> dict[str, object]:
    test, interval = judged.test, judged.interval
    return {
        "scale": _both(test.scale),
        "estimand": str(test.estimand),
        "rule": test.rule,
        "margin": test.margin,
        "because": _both(test.because) if test.because is not None else None,
        "studies": list(test.studies),
        "combine": test.combine,
        "needs": _both(test.needs) if test.needs is not None else None,
        "decides": test.decides,
        "status": judged.status,
        "value": finite_or_none(judged.value),
        "low": finite_or_none(interval.low) if interval is not None else None,
        "high": finite_or_none(interval.high) if interval is not None else None,
        **judged.message.to_dict(),
        "text": translate(judged.message)[lang],
    }


def _echo_json(ledger: Ledger, judged: dict[str, JudgedClaim], lang: Lang) -> None:
    data = {name: _plain(one, ledger, lang) for name, one in judged.items()}
    echo(json.dumps(data, indent=2, ensure_ascii=False))


def _both(text: Text) -> dict[str, str]:
    return {"en": text.en, "zh": text.zh}
