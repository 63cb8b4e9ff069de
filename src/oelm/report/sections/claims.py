"""The published claims that a study tests, and those that it does not."""

from __future__ import annotations

from oelm.analysis.results import Results
from oelm.claims.judge import JudgedClaim, judge_claim
from oelm.claims.schema import Ledger
from oelm.message import Message, Text
from oelm.report.blocks import Block, Folded, Prose, TableRow, make_table, text_cell
from oelm.text.messages import join_texts, say, translate


def claims_section(results: Results, ledger: Ledger) -> list[Block]:
    columns = [(say(f"column-{name}"), False) for name in ("claim", "said", "checks", "hypothesis-status")]
    own: list[TableRow] = []
    rest: list[TableRow] = []
    for name, claim in ledger.claims.items():
        judged = judge_claim(claim, {results.study.name: results})
        row = TableRow(
            cells=(
                text_cell(name),
                text_cell(claim.claim),
                text_cell(", ".join(judged.codes) if judged.codes else say("claims-clean")),
                text_cell(_verdict(judged)),
            )
        )
        (own if any(results.study.name in test.studies for test in claim.tests) else rest).append(row)
    blocks: list[Block] = [Prose(text=say("claims-how"))]
    blocks.append(make_table(columns, own) if own else Prose(text=say("claims-none-here")))
    if rest:
        blocks.append(Folded(summary=say("claims-rest", n=len(rest)), blocks=(make_table(columns, rest),)))
    return blocks


def _verdict(judged: JudgedClaim) -> Text:
    """The verdict, and what every test says."""
    parts = [Message("claim-sentence", said=judged.verdict.message)]
    parts += [Message("claim-test", scale=one.test.scale, said=one.message) for one in judged.verdict.tests]
    return join_texts([translate(part) for part in parts])
