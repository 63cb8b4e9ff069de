"""`oelm claims`: what has been published, which checks fire on it, and what our own records say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from oelm.cli.echo import echo, warn
from oelm.cli.options import JsonOption
from oelm.errors import OelmError, StudyError, did_you_mean
from oelm.message import Lang, Message, Text
from oelm.runs.layout import RUNS
from oelm.text.messages import join_texts, say, translate

if TYPE_CHECKING:
    from oelm.analysis.checks.registry import Issue
    from oelm.analysis.results import Results
    from oelm.claims.judge import JudgedClaim
    from oelm.claims.schema import Ledger


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
LedgerOption = Annotated[str, typer.Option(help="Ledger file, or name of a shipped ledger")]
LangOption = Annotated[Lang, typer.Option(help="Language")]


@claims_app.command("ls")
def list_claims(
    runs: Annotated[Path | None, typer.Argument(help=f"Folder of runs [default: {RUNS}, if it exists]")] = None,
    ledger: LedgerOption = "oelm-first",
    as_json: JsonOption = False,
    lang: LangOption = "en",
) -> None:
    """List claims, the checks that fire on each, and what our records say"""
    from oelm.claims.judge import judge_claim, retest_status
    from oelm.claims.load import load_ledger

    loaded = load_ledger(ledger)
    found = _results(loaded, runs)
    status = {name: retest_status(claim, found) for name, claim in loaded.claims.items()}
    judged = {name: judge_claim(claim) for name, claim in loaded.claims.items()}
    if as_json:
        data = {
            name: {**_plain(one, loaded, lang), "status": [_message_as_dict(each, lang) for each in status[name]]}
            for name, one in judged.items()
        }
        echo(json.dumps(data, indent=2, ensure_ascii=False))
        return
    for name, one in judged.items():
        codes = ", ".join(one.codes) or say("claims-clean")[lang]
        records = join_texts([translate(each) for each in status[name]])[lang]
        lines = [("claims-checks", codes), *_computed(one, lang), ("claims-status", records)]
        _show(name, one.claim.claim[lang], lines, lang)


@claims_app.command("check")
def check_ledger(
    names: Annotated[list[str] | None, typer.Argument(metavar="ID", help="Only these claims")] = None,
    ledger: LedgerOption = "oelm-first",
    as_json: JsonOption = False,
    lang: LangOption = "en",
) -> None:
    """Show every check of the claims, with its numbers"""
    from oelm.claims.judge import judge_claim
    from oelm.claims.load import load_ledger

    loaded = load_ledger(ledger)
    for name in names or ():
        if name not in loaded.claims:
            known = ", ".join(loaded.claims)
            raise StudyError(f"unknown claim '{name}'{did_you_mean(name, loaded.claims)}", hint=f"one of {known}")
    judged = {name: judge_claim(loaded.claims[name]) for name in names or loaded.claims}
    if as_json:
        data = {name: _plain(one, loaded, lang) for name, one in judged.items()}
        echo(json.dumps(data, indent=2, ensure_ascii=False))
        return
    for name, one in judged.items():
        lines = [("claims-source", loaded.sources[one.claim.source][lang])]
        issues = [_issue_line(issue, lang) for issue in one.issues] or [say("claims-clean")[lang]]
        lines += [("claims-checks", text) for text in issues]
        lines += _computed(one, lang)
        lines += [("claims-note", note[lang]) for note in one.claim.notes]
        _show(name, one.claim.claim[lang], lines, lang)


def _results(ledger: Ledger, runs: Path | None) -> dict[str, Results]:
    """Of the studies that re-test a claim, by their names, which are those of their folders."""
    from oelm.analysis.results import read_results
    from oelm.runs.layout import find_started_studies

    if runs is None and not RUNS.is_dir():
        return {}
    wanted = {retest.study for claim in ledger.claims.values() for retest in claim.retested_by}
    found = {}
    try:
        folders = find_started_studies(runs or RUNS)
    except OelmError:
        if runs is not None:
            raise
        return {}  # nobody asked for these
    for folder in folders:
        name = folder.resolve().name
        if name in wanted and name not in found:
            try:
                found[name] = read_results(folder)
                for out in found[name].excluded:
                    if out.is_damaged:
                        warn(f"excluded: {name}/{out}")
            except OelmError as error:  # the claims that it does not re-test are still worth showing
                warn(f"excluded: {' '.join(str(error).split())}")
    return found


def _computed(one: JudgedClaim, lang: Lang) -> list[tuple[str, str]]:
    """What the published numbers themselves give."""
    pairs = [("claims-paired", translate(pair.message)[lang]) for pair in one.paired]
    return pairs + [("claims-rule", translate(rule)[lang]) for rule in one.rules]


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
        "rules": [
            {"rule": _both(rule.rule), "value": rule.number, "holds": rule.holds, "text": translate(message)[lang]}
            for rule, message in zip(one.claim.rules, one.rules, strict=True)
        ],
        "notes": [_both(note) for note in one.claim.notes],
    }


def _message_as_dict(message: Message, lang: Lang) -> dict[str, object]:
    return {**message.to_dict(), "text": translate(message)[lang]}


def _both(text: Text) -> dict[str, str]:
    return {"en": text.en, "zh": text.zh}
