"""`oelm claims`: what has been published, which checks fire on it, and what our own records say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from oelm.cli.compare import JsonOption
from oelm.errors import OelmError, StudyError, did_you_mean
from oelm.records.store import RUNS
from oelm.words.text import Lang, Text, say

if TYPE_CHECKING:
    from oelm.analysis.claims import Judged, Ledger
    from oelm.analysis.results import Results


class _Listing(TyperGroup):
    """`oelm claims RUNS` is `oelm claims ls RUNS`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = (*self.commands, "--help")
        return super().parse_args(ctx, args if args and args[0] in known else ["ls", *args])


app = typer.Typer(
    cls=_Listing,
    add_completion=False,
    rich_markup_mode=None,
    help="Published claims: the checks that fire on them, and what our records say. Without a command it lists them: "
    "oelm claims ls --help has the options.",
)
LedgerOption = Annotated[str, typer.Option(help="A ledger file, or the name of a shipped ledger.")]
LangOption = Annotated[Lang, typer.Option(help="The language.")]


@app.command()
def ls(
    runs: Annotated[Path | None, typer.Argument(help=f"A folder of runs; {RUNS} by default, if it is there.")] = None,
    ledger: LedgerOption = "oelm-first",
    as_json: JsonOption = False,
    lang: LangOption = "en",
) -> None:
    """List the claims, the checks that fire on each, and what our records say so far."""
    from oelm.analysis.claims import judge, load_ledger, standing

    loaded = load_ledger(ledger)
    found = _results(loaded, runs)
    told = {name: standing(claim, found) for name, claim in loaded.claims.items()}
    judged = {name: judge(claim) for name, claim in loaded.claims.items()}
    if as_json:
        data = {name: {**_plain(one, loaded), "standing": _both(told[name])} for name, one in judged.items()}
        typer.echo(json.dumps(data, indent=2, ensure_ascii=False))
        return
    for name, one in judged.items():
        codes = ", ".join(one.codes) or say("claims-clean")[lang]
        lines = [("claims-checks", codes), *_computed(one, lang), ("claims-standing", told[name][lang])]
        _show(name, one.claim.claim[lang], lines, lang)


@app.command()
def check(
    names: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Only these claims.")] = None,
    ledger: LedgerOption = "oelm-first",
    as_json: JsonOption = False,
    lang: LangOption = "en",
) -> None:
    """Show what every check says of the claims, with the numbers."""
    from oelm.analysis.claims import judge, load_ledger

    loaded = load_ledger(ledger)
    for name in names or ():
        if name not in loaded.claims:
            known = ", ".join(loaded.claims)
            raise StudyError(f"there is no claim '{name}'{did_you_mean(name, loaded.claims)}", hint=f"one of {known}")
    judged = {name: judge(loaded.claims[name]) for name in names or loaded.claims}
    if as_json:
        data = {name: _plain(one, loaded) for name, one in judged.items()}
        typer.echo(json.dumps(data, indent=2, ensure_ascii=False))
        return
    for name, one in judged.items():
        lines = [("claims-source", loaded.sources[one.claim.source][lang])]
        said = [found.line(lang) for found in one.flags] or [say("claims-clean")[lang]]
        lines += [("claims-checks", text) for text in said]
        lines += _computed(one, lang)
        lines += [("claims-note", note[lang]) for note in one.claim.notes]
        _show(name, one.claim.claim[lang], lines, lang)


def _results(ledger: Ledger, runs: Path | None) -> dict[str, Results]:
    """Of the studies that re-test a claim, by their names, which are those of their folders."""
    from oelm.analysis.results import read_results, study_folders

    if runs is None and not RUNS.is_dir():
        return {}
    wanted = {retest.study for claim in ledger.claims.values() for retest in claim.retested_by}
    found = {}
    try:
        folders = study_folders(runs or RUNS)
    except OelmError:
        if runs is not None:
            raise
        return {}  # nobody asked for these
    for folder in folders:
        name = folder.resolve().name
        if name in wanted and name not in found:
            try:
                found[name] = read_results(folder)
            except OelmError as error:  # the claims that it does not re-test are still worth showing
                typer.echo(f"left out: {' '.join(str(error).split())}", err=True)
    return found


def _computed(one: Judged, lang: Lang) -> list[tuple[str, str]]:
    """What the published numbers themselves give."""
    pairs = [("claims-paired", pair.text[lang]) for pair in one.paired]
    return pairs + [("claims-rule", rule[lang]) for rule in one.rules]


def _show(name: str, claim: str, lines: list[tuple[str, str]], lang: Lang) -> None:
    typer.echo(f"{name}  {claim}")
    width = max(len(say(key)[lang]) for key, _ in lines)
    before = ""
    for key, text in lines:
        label = say(key)[lang]
        typer.echo(f"    {label if label != before else '':<{width}}  {text}")
        before = label


def _plain(one: Judged, ledger: Ledger) -> dict[str, Any]:
    return {
        "claim": _both(one.claim.claim),
        "source": _both(ledger.sources[one.claim.source]),
        "checks": [
            {"code": found.code, "severity": found.severity, "where": found.where, "message": _both(found.message)}
            for found in one.flags
        ],
        "paired": [
            {"arm": pair.arm, "against": pair.against, "metric": pair.metric, "n": pair.n, "mean": pair.mean}
            | {"low": pair.interval.low, "high": pair.interval.high}
            for pair in one.paired
        ],
        "rules": [{"rule": _both(rule.rule), "value": rule.number, "holds": rule.holds} for rule in one.claim.rules],
        "notes": [_both(note) for note in one.claim.notes],
    }


def _both(text: Text) -> dict[str, str]:
    return {"en": text.en, "zh": text.zh}
