"""The published claims that a study re-tests, and those that it does not."""

from __future__ import annotations

from oelm.analysis.results import Results
from oelm.claims.judge import judge_claim, retest_status
from oelm.claims.schema import Ledger
from oelm.report.blocks import Block, Folded, Prose, TableRow, make_table, text_cell
from oelm.text.messages import join_texts, say, translate


def claims_section(results: Results, ledger: Ledger) -> list[Block]:
    columns = [(say(f"column-{name}"), False) for name in ("claim", "said", "checks", "hypothesis-status")]
    own: list[TableRow] = []
    rest: list[TableRow] = []
    for name, claim in ledger.claims.items():
        judged, status = judge_claim(claim), retest_status(claim, {results.study.name: results})
        row = TableRow(
            cells=(
                text_cell(name),
                text_cell(claim.claim),
                text_cell(", ".join(judged.codes) if judged.codes else say("claims-clean")),
                text_cell(join_texts([translate(each) for each in status])),
            )
        )
        (own if any(retest.study == results.study.name for retest in claim.retested_by) else rest).append(row)
    blocks: list[Block] = [Prose(text=say("claims-how"))]
    blocks.append(make_table(columns, own) if own else Prose(text=say("claims-none-here")))
    if rest:
        blocks.append(Folded(summary=say("claims-rest", n=len(rest)), blocks=(make_table(columns, rest),)))
    return blocks
