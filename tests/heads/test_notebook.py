"""What a notebook shows of a treatment and of its audit."""

from xml.etree import ElementTree

import oelm
from oelm.heads.audit import Audit, Finding
from zoo import FAMILIES

GPT2 = next(f for f in FAMILIES if f.name == "gpt2")


def tables(shown) -> list[list[list[str]]]:
    """The cells of every table, which must be well-formed."""
    page = ElementTree.fromstring(f"<div>{shown._repr_html_()}</div>")
    return [[["".join(cell.itertext()) for cell in row] for row in table.iter("tr")] for table in page.iter("table")]


def test_a_treatment_is_the_table_that_is_printed():
    applied = oelm.apply(GPT2.model(), init="orthogonal", freeze="q")
    (table,) = tables(applied)
    printed = str(applied).splitlines()
    words = [" ".join(cell for cell in row if cell).split() for row in table]
    assert words == [line.split() for line in printed[1:6]]
    assert printed[0] in applied._repr_html_()
    assert printed[6] in applied._repr_html_()


def test_an_audit_shows_its_parts_and_its_findings():
    applied = oelm.apply(GPT2.model(), init="orthogonal", freeze="qk")
    audit = applied.audit()
    (parts,) = tables(audit)
    assert dict(parts[1:]) == audit.examined
    assert "audit passed" in audit._repr_html_()
    applied.frozen[0].rows(0).add_(1.0)
    audit = applied.audit()
    _, findings = tables(audit)
    assert [row[:2] for row in findings[1:]] == [[one.code, one.where] for one in audit.findings]
    assert "audit FAILED" in audit._repr_html_()


def test_what_a_model_is_called_is_not_taken_for_html():
    finding = Finding(code="A&B", expected="<b>", measured="'\"", where="<script>alert(1)</script>")
    audit = Audit(findings=(finding,), examined={"<i>": "</table>"})
    parts, findings = tables(audit)
    assert parts[1] == ["<i>", "</table>"]
    assert findings[1] == ["A&B", "<script>alert(1)</script>", "<b>", "'\""]
    assert "<script" not in audit._repr_html_()
    cls = type("<script>", (type(GPT2.model()),), {})
    model = GPT2.model()
    model.__class__ = cls
    assert "<script>" not in oelm.apply(model, freeze="qk")._repr_html_()
