"""The published claims that studies test, and those that they do not."""

from collections.abc import Sequence

from oelm.analysis.results import Results
from oelm.claims.judge import JudgedClaim, judge_claim
from oelm.claims.schema import Ledger
from oelm.message import Message, Text
from oelm.report.blocks import Block, Folded, Prose, TableRow, make_row, make_table, text_columns
from oelm.text.messages import join_texts, say, translate


def claims_section(studies: Sequence[Results], ledger: Ledger) -> list[Block]:
    there = {results.study.name for results in studies}
    columns = text_columns("claim", "said", "checks", "hypothesis-status")
    own: list[TableRow] = []
    rest: list[TableRow] = []
    for name, claim in ledger.claims.items():
        judged = judge_claim(claim, studies)
        codes = ", ".join(judged.codes) if judged.codes else say("claims-clean")
        row = make_row(name, claim.claim, codes, _verdict(judged))
        (rest if all(there.isdisjoint(test.studies) for test in claim.tests) else own).append(row)
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
