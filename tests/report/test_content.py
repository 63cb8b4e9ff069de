"""What a report says: its order, its verdict, its tables, and that nothing is dropped in silence."""

import json
import math
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

import oelm.report
from made_runs import STUDY, edit_sealed, make_runs, replace_at, score, seal_files, sealed, study_of
from oelm.analysis.results import read_results
from oelm.analysis.text_table import results_as_dict
from oelm.errors import CellError
from oelm.report.blocks import Folded, Table
from oelm.report.render.html import render_html
from oelm.report.render.markdown import render_markdown
from oelm.report.sections.summary import overall_verdict
from oelm.report.write import build_content
from oelm.text.messages import join_names
from oelm.text.messages import load_messages as words_table

pytestmark = pytest.mark.slow

REPORT = Path(oelm.report.__file__).parent


def section(content, name):
    return next(one for one in content.sections if one.name == name)


def tables(blocks):
    for one in blocks:
        if isinstance(one, Table):
            yield one
        elif isinstance(one, Folded):
            yield from tables(one.blocks)


def rows(content, name):
    """The rows of a section's tables as English text."""
    return [[cell.text.en for cell in row.cells] for one in tables(section(content, name).blocks) for row in one.rows]


def test_the_order(made):
    names = [one.name for one in made.content.sections]
    assert names == [
        "question",
        "verdict",
        "change",
        "checks",
        "results",
        "times",
        "figures",
        "differences",
        "hypotheses",
        "recommendations",
        "claims",
        "provenance",
        "excluded",
    ]


def test_the_verdict_names_every_arm_with_its_numbers(made):
    sentence = made.content.verdict.text.en
    for arm, one in made.results.comparisons.items():
        assert f"{arm} is {one.verdict} ({one.estimate.mean:+.4f}" in sentence
    assert made.content.verdict.kind == "mixed"
    kinds = {arm: one.verdict for arm, one in made.results.comparisons.items()}
    assert kinds == {
        "freeze-only": "equivalent",
        "oelm-freeze": "worse",
        "oelm-nofreeze": "better",
        "oelm-random_2": "worse",
    }


def test_the_question_is_said_in_words(made):
    asked, how = (block.text for block in section(made.content, "question").blocks)
    assert asked.en == (
        "Does it change the accuracy (higher is better) of minilm-l6 on sst2 to train it as "
        "freeze-only, oelm-freeze, oelm-nofreeze, oelm-random_2 instead of baseline?"
    )
    assert how.en == (
        "5 seeds each, trained on 60,000 examples and tested on 2,000 (validation). Every seed takes its own best of 3 "
        "settings of optimizer.lr on the validation split. The smallest effect of interest is 0.02: a smaller "
        "difference would not matter. 3 hypotheses were written down beforehand; every other comparison is"
        " exploratory. What is tested was locked when the first cell was started "
        f"(lock.json, SHA-256 {made.results.lock.digest[:12]})."
    )
    assert "每组 5 个种子" in how.zh


def test_every_verdict_is_one_line_with_the_interval_that_decides(made):
    (table,) = (one for one in section(made.content, "verdict").blocks if isinstance(one, Table))
    lines = [[cell.text.en for cell in row.cells] for row in table.rows]
    assert lines[0][1:] == ["supported", "0.9219", "exact"]
    assert lines[0][0].startswith("H1: fewer parameters")
    assert lines[1][0] == "H2: freezing costs at most 2 points"
    assert [line[0].split(" against ")[0] for line in lines[3:]] == list(made.results.comparisons)
    for one, line in zip([*made.results.hypotheses[1:], *made.results.comparisons.values()], lines[1:], strict=True):
        low, high, percent = one.deciding.low, one.deciding.high, 100 * one.deciding.level
        assert line[3] in (f"[{low:+.4f}, {high:+.4f}] {percent:.4g} %", f"[{low:.4f}, {high:.4f}] {percent:.4g} %")
    assert lines[4][0] == "oelm-freeze against baseline (orthogonalize, scale match, freeze qk); exploratory"
    assert [row.cells[1].badge for row in table.rows[3:]] == ["equivalent", "worse", "better", "worse"]


def test_what_would_change_it_names_arms_and_notes(made, hostile):
    (bullets,) = section(made.content, "change").blocks
    assert bullets.items[0].en.startswith("freeze-only: it would be open if differences below")
    assert bullets.items[-1].en == f"The study notes: {hostile}"


@pytest.mark.usefixtures("undrawn")
def test_many_verdicts_are_folded(tmp_path):
    arms = {"baseline": {"init": "keep", "freeze": "none"}}
    arms |= {f"arm-{k}": {"init": "keep", "freeze": "qk"} for k in range(9)}
    content = build_content(read_results(make_runs(tmp_path, study_of(arms=arms, seeds=[0, 1]), examples=60, steps=10)))
    first, rest, _ = section(content, "verdict").blocks
    assert len(first.rows) == 7
    assert rest.summary.en == "The other 2 verdicts"
    assert [row.arm for row in rest.blocks[0].rows] == ["arm-7", "arm-8"]


@pytest.mark.usefixtures("undrawn")
def test_what_decided_instead_of_the_interval_stands_beside_the_verdict(tmp_path):
    """In the lines of the verdict, in the table, on a terminal and for scripts."""

    def change(cell, record):
        failed = cell.arm == "oelm-freeze" and cell.seed > 2
        return replace(record, status="diverged", test={}) if failed else record

    results = read_results(make_runs(tmp_path, accuracy={"oelm-freeze": 0.98}, change=change))
    assert results.comparisons["oelm-freeze"].deciding.low > 0, "the interval alone would say better"
    content = build_content(results)
    for name, column in (("verdict", 1), ("results", 6)):
        table = next(tables(section(content, name).blocks))
        (row,) = (row for row in table.rows if row.arm == "oelm-freeze")
        assert row.cells[column].text.en == "inconclusive (seeds failed)"
        assert row.cells[column].text.zh == "尚无定论（有种子失败）"  # noqa: RUF001
        (plain,) = (row for row in table.rows if row.arm == "freeze-only")
        assert "(" not in plain.cells[column].text.en, "where it follows, nothing is said"
    assert "inconclusive (seeds failed)" in render_markdown(content)
    assert "inconclusive (seeds failed)" in str(results)
    told = results_as_dict(results)["arms"]
    assert told["oelm-freeze"]["comparison"]["remark"] == "seeds failed"
    assert told["freeze-only"]["comparison"]["remark"] is None


def two_splits(cell, record):
    """As of MNLI: another test split, on which all are a little worse."""
    if not record.test:
        return record
    first = record.test["final"].splits["validation"]
    scores = replace(record.test["final"], splits={"matched": first, "mismatched": {**first, "accuracy": 0.5}})
    return replace(record, test={"final": scores, "best": scores})


@pytest.mark.usefixtures("undrawn")
def test_every_metric_and_every_test_split_is_shown(tmp_path):
    folder = make_runs(tmp_path, study_of(seeds=[0, 1]), examples=60, steps=10, change=two_splits)
    results = read_results(folder)
    assert results.measured == dict.fromkeys(("matched", "mismatched"), ("accuracy", "macro_f1", "f1", "loss"))
    content = build_content(results)
    found = section(content, "results").blocks
    table = list(tables(found))[1]
    assert [column.title.en for column in table.columns] == ["Arm", "Test split", "accuracy", "macro_f1", "f1", "loss"]
    assert [(row.arm, row.cells[1].text.en) for row in table.rows[:2]] == [
        ("baseline", "matched"),
        ("baseline", "mismatched"),
    ]
    assert table.rows[1].cells[2].sort == 0.5
    assert table.rows[0].cells[5].sort == pytest.approx(results.mean("baseline", "loss").mean)
    cells = next(one for one in found if isinstance(one, Folded) and one.name == "cells").blocks[0]
    titles = [column.title.en for column in cells.columns]
    assert {"accuracy, final, mismatched", "loss, final, matched"} <= set(titles)
    frame = results.table()
    assert (frame["accuracy (mismatched)"] == 0.5).all()
    assert {"loss (mismatched)", "f1 (mismatched, best)"} <= set(frame.columns)
    assert results_as_dict(results)["arms"]["baseline"]["measured"]["mismatched"]["accuracy"]["mean"] == 0.5
    assert "mismatched" in str(results)


@pytest.mark.usefixtures("undrawn")
def test_one_metric_on_one_split_needs_no_second_table(tmp_path):
    def change(cell, record):
        return score(record, accuracy=record.value("accuracy"))

    folder = make_runs(tmp_path, study_of(seeds=[0, 1]), examples=60, steps=10, change=change)
    blocks = section(build_content(read_results(folder)), "results").blocks
    assert [type(one).__name__ for one in blocks[:3]] == ["Prose", "Table", "Folded"]
    assert "Test split" not in repr(blocks)


@pytest.mark.usefixtures("undrawn")
def test_all_invalid_says_so_with_the_codes(tmp_path):
    arms = {
        "baseline": {"init": "keep", "freeze": "none"},
        "oelm-freeze": {"init": "orthogonalize", "scale": "match", "freeze": "qk", "overrides": {"optimizer.lr": 1e-3}},
    }
    results = read_results(make_runs(tmp_path, study_of(arms=arms)))
    content = build_content(results)
    assert content.verdict.kind == "invalid"
    assert content.verdict.text.en == "No comparison of this study is valid: LR-DIFFERS."
    assert "LR-DIFFERS" in content.verdict.text.zh
    quality = rows(content, "recommendations")[0]
    assert quality[1:] == ["\u2013", "no evidence yet: the comparisons are invalid (LR-DIFFERS)"]
    assert ["oelm-freeze", "orthogonalize", "match", "qk", "0.001"] in rows(content, "differences")


def test_many_arms_are_grouped_by_verdict(tmp_path):
    arms = {"baseline": {"init": "keep", "freeze": "none"}}
    arms |= {f"arm-{k}": {"init": "keep", "freeze": "qk"} for k in range(9)}
    study = study_of(arms=arms, seeds=[0, 1, 2])
    results = read_results(make_runs(tmp_path, study, accuracy={"baseline": 0.95}, examples=400))
    sentence = overall_verdict(results).text.en
    assert sentence.startswith("Against baseline in accuracy: worse: arm-")
    by_kind = {part.split(": ")[-2]: part.split(": ")[-1] for part in sentence.rstrip(".").split("; ")}
    for kind, told in by_kind.items():
        arms = [arm for arm, one in results.comparisons.items() if one.verdict == kind]
        assert told == join_names(arms).en
    assert set(by_kind) == {one.verdict for one in results.comparisons.values()}
    assert " and " in by_kind["worse"]


def test_without_the_baseline_it_says_that_there_is_nothing_to_compare_with(tmp_path):
    folder = make_runs(tmp_path, change=lambda cell, record: None if cell.arm == "baseline" else record)
    content = build_content(read_results(folder))
    assert content.verdict.text.en == "test numbers are shown when the study is complete; missing cells: 5"
    assert ["baseline", "no record of these seeds: 0, 1, 2, 3, 4"] in rows(content, "excluded")


@pytest.mark.parametrize("seeds", [[0], [0, 1]])
def test_few_seeds(tmp_path, seeds):
    content = build_content(read_results(make_runs(tmp_path, study_of(seeds=seeds), accuracy={"oelm-freeze": 0.7})))
    everything = repr(content)
    assert "inf" not in re.findall(r"[+-](inf|nan)", everything)
    if len(seeds) == 1:
        assert "no interval" in content.verdict.text.en
        assert content.verdict.kind == "inconclusive"


def test_identical_arms_are_no_evidence(tmp_path):
    """Zero variance: the same predictions in every arm and seed."""
    folder = make_runs(tmp_path)
    first = folder / "baseline" / "seed-0"
    for place in folder.glob("*/seed-*"):
        test = json.loads((first / "record.json").read_text())["test"]
        edit_sealed(place / "record.json", lambda data, test=test: data.update(test=test))
        (place / "predictions.parquet").write_bytes((first / "predictions.parquet").read_bytes())
        seal_files(place)
    content = build_content(read_results(folder))
    assert content.verdict.kind == "inconclusive"
    assert rows(content, "recommendations")[0][2] == "no evidence yet"


def test_no_predictions_still_gives_a_report(tmp_path):
    folder = make_runs(tmp_path)
    for path in folder.rglob("predictions.parquet"):
        path.unlink()
    content = build_content(read_results(folder))
    assert "95 % interval" in content.verdict.text.en


def test_the_results_table_holds_what_the_records_hold(made):
    table = next(tables(section(made.content, "results").blocks))
    assert [row.arm for row in table.rows] == made.results.arms
    for row in table.rows:
        values = list(made.results.values(row.arm, "accuracy").values())
        assert row.cells[1].sort == pytest.approx(sum(values) / len(values))
        assert row.cells[1].href == "#cells"
        assert row.cells[3].text.en == "5"
    baseline, frozen = table.rows[0], table.rows[1]
    assert baseline.cells[4].text.en == "\u2013"
    assert frozen.cells[7].text.en == f"{100 * frozen.cells[1].sort / baseline.cells[1].sort:.1f} %", "quality kept"
    assert [cell.text.en for cell in frozen.cells[9:11]] == ["20,939,906", "92.2 %"]
    assert frozen.cells[9].sort < baseline.cells[9].sort


def test_every_cell_links_to_its_record(made):
    cells = next(
        one for one in section(made.content, "results").blocks if isinstance(one, Folded) and one.name == "cells"
    )
    (table,) = cells.blocks
    assert len(table.rows) == len(made.results.records) == 25
    hrefs = {cell.href for row in table.rows for cell in row.cells if cell.href is not None}
    assert len(hrefs) == 25
    assert all((made.folder / href).is_file() for href in hrefs)


def test_statistics_show_both_sources(made):
    one = made.results.comparisons["oelm-freeze"]
    found = next(row for row in rows(made.content, "results") if row[0] == "oelm-freeze" and row[3][0] == "[")
    assert found[3] == f"[{one.over_seeds.low:+.4f}, {one.over_seeds.high:+.4f}]"
    assert found[4] == f"[{one.bootstrap.low:+.4f}, {one.bootstrap.high:+.4f}]"
    assert found[5] == f"[{one.over_examples.low:+.4f}, {one.over_examples.high:+.4f}]"
    assert found[6] == f"[{one.interval.low:+.4f}, {one.interval.high:+.4f}]"
    assert found[7:9] == [f"{one.examples.seed_se:.4f}", f"{one.estimate.examples.se:.4f}"], "as they are used"
    tests = [row for row in rows(made.content, "results") if row[0] == "oelm-freeze" and len(row) == 7]
    assert [row[1] for row in tests] == ["0", "1", "2", "3", "4"]


@pytest.mark.usefixtures("undrawn")
def test_what_the_tuning_has_cost_is_said_beside_the_times_of_the_cells(made, tmp_path):
    said = repr(section(made.content, "results"))
    trials = [record.seconds["training"] for cell, record in made.results.tuning.items() if cell.arm == "baseline"]
    assert f"The trials of the tuning took, in all: baseline {sum(trials):,.0f} s ({len(trials)})" in said
    assert "trials of the tuning" not in repr(section(build_content(read_results(make_runs(tmp_path))), "results"))


def test_recommendations_follow_the_verdicts(made):
    found = {row[0]: row[1:] for row in rows(made.content, "recommendations")}
    assert found["the best quality"][0] == "oelm-nofreeze"
    assert set(found["the fastest steps"][0].split(", ")) == {"freeze-only", "oelm-freeze", "oelm-random_2"}
    assert "7.8%" in found["the fewest trainable parameters"][1]


def test_hypotheses_are_judged(made):
    found = {row[0]: row for row in rows(made.content, "hypotheses")}
    assert found["H1"][-1] == "supported"
    assert found["H1"][3] == "0.9219"
    assert found["H2"][-1] == "refuted"


def test_claims_that_the_study_tests_come_first(made):
    own, rest = [[row.cells[0].text.en for row in one.rows] for one in tables(section(made.content, "claims").blocks)]
    assert "C1" in own
    assert sorted(own + rest) == sorted(f"C{k}" for k in range(1, 23))
    one = next(row for row in rows(made.content, "claims") if row[0] == "C1")
    assert "GRIM" in one[2]
    assert one[3].startswith("inconclusive. BERT-base, SST-2: inconclusive: accuracy(oelm-freeze) - ")
    assert "; it decides nothing, as it was not run as shipped: " in one[3]
    assert "MiniLM-L6, SST-2, CPU: no records yet" in one[3]


@pytest.mark.usefixtures("undrawn")
def test_a_study_that_tests_no_claim_says_so(tmp_path):
    content = build_content(read_results(make_runs(tmp_path)))
    assert "None of the claims in the ledger is tested here" in repr(section(content, "claims").blocks[1])


@pytest.mark.usefixtures("undrawn")
def test_found_differences_are_marked(tmp_path):
    def change(cell, record):
        return replace_at(record, "provenance.threads", 1 if cell.arm == "oelm-freeze" else 2)

    content = build_content(read_results(make_runs(tmp_path, change=change)))
    (table,) = tables(section(content, "differences").blocks)
    assert [column.title.en for column in table.columns] == ["Arm", "init", "scale", "freeze", "threads (found)"]
    assert [row.cells[-1].text.en for row in table.rows] == ["2", "2", "1"]
    assert ["threads", "1 (5), 2 (10)"] in rows(content, "provenance")


def test_nothing_is_dropped_in_silence(bad_runs):
    """Every cell of the study is counted among the results, or is named with its reason."""
    results = read_results(bad_runs)
    content = build_content(results)
    reasons = dict(rows(content, "excluded"))
    assert "accuracy is nan, and can be from 0 to 1" in reasons["freeze-only/seed-1"]
    assert reasons["freeze-only/seed-2"].startswith("diverged: the loss is NaN")
    assert reasons["freeze-only"] == "no record of these seeds: 3"
    assert "is damaged" in reasons["oelm-freeze/seed-0"]
    assert "format 99" in reasons["oelm-freeze/seed-1"]
    assert "another study, another <b>study</b>" in reasons["oelm-freeze/seed-2"]
    assert "not finished" in reasons["oelm-freeze/seed-3"]
    counted = {str(cell) for cell, record in results.records.items() if record.status == "done"}
    told = set(reasons) | {"freeze-only/seed-3"}
    assert counted | told >= {f"{arm}/seed-{seed}" for arm in results.study.arms for seed in results.study.seeds}
    assert not counted & told


def test_neither_a_study_nor_a_lock_is_one_clear_error(tmp_path):
    folder = make_runs(tmp_path, change=lambda cell, record: record if cell.arm == "baseline" else None)
    for name in ("study.json", "lock.json"):
        (folder / name).unlink()
    with pytest.raises(CellError, match="neither"):
        read_results(folder)


def test_hundreds_of_cells(tmp_path):
    """Made by copying records."""
    arms = {**STUDY["arms"], "oelm-nofreeze": {"init": "orthogonalize", "scale": "match", "freeze": "none"}}
    study = study_of(seeds=list(range(100)), arms=arms)
    small = make_runs(tmp_path / "small", replace(study, seeds=(0,)), steps=5, examples=200)
    folder = tmp_path / "big" / study.name
    for arm in study.arms:
        kept = {name: json.loads((small / arm / "seed-0" / name).read_text()) for name in ("record.json", "cell.json")}
        for seed in study.seeds:
            place = folder / arm / f"seed-{seed}"
            place.mkdir(parents=True)
            record = json.loads(json.dumps(kept["record.json"]))
            record["spec"]["seed"] = seed
            record["batches"] = record["start"]["weights"] = str(seed)
            for model in record["test"].values():
                model["splits"]["validation"] = {"accuracy": (150 + (seed * 7 + len(arm)) % 20) / 200}
            (place / "record.json").write_text(sealed(json.dumps(record)))
            kept["cell.json"]["spec"]["seed"] = seed
            (place / "cell.json").write_text(sealed(json.dumps(kept["cell.json"])))
            for name in ("steps.jsonl", "predictions.parquet"):
                os.link(small / arm / "seed-0" / name, place / name)
    (folder / "study.json").write_text(json.dumps(study.to_dict()))
    results = read_results(folder)
    assert len(results.records) == 400
    text = render_html(build_content(results))
    assert text.count("record.json") >= 400
    assert len(text) < 1_500_000


def test_made_twice_it_is_the_same(made):
    assert build_content(read_results(made.folder)) == made.content


def test_named():
    assert join_names(["a", "b"]).en == "a, b"
    assert join_names([str(k) for k in range(9)]).en == "0, 1, 2, 3, 4, 5 and 3 more"


# -- words ---------------------------------------------------------------------------------------------------------

SOURCES = [*REPORT.rglob("*.py"), *REPORT.rglob("*.jinja"), REPORT.parent / "cli" / "report.py"]
FAMILIES = {
    "word-": [
        "better",
        "worse",
        "equivalent",
        "inconclusive",
        "invalid",
        "mixed",
        "supported",
        "refuted",
        "warn",
        "note",
    ],
    "is-": ["better", "worse", "equivalent", "inconclusive", "invalid"],
    "better-": ["higher", "lower"],
    "status-": ["done", "running", "stopped", "pending", "failed", "diverged", "audit-failed"],
    "heads-": ["start", "final"],
    "entropy-": ["start", "final"],
    "maps-": ["untreated", "start", "final"],
    "recommend-": ["quality", "memory", "fastest"],
    "times-": ["precision", "budget", "interrupted"],
    "part-": ["step", "forward", "backward", "optimizer", "best"],
    "column-": ["forward", "backward", "optimizer", "at-best", "reached", "outliers", "whole-runs"],
}


def keys_used():
    for path in SOURCES:
        text = path.read_text()
        yield from re.findall(r'say\(\s*"([\w-]+)"\s*[,)]', text)
        yield from re.findall(r'"((?:axis|corner|overall|recommend|differences|figure|times|part)-[\w-]+)"', text)
        for prefix in re.findall(r'say\(\s*f?"([\w-]+-)(?:\{|")', text):
            yield from (prefix + rest for rest in FAMILIES.get(prefix, []))


def test_every_word_that_is_used_is_there():
    missing = {key for key in keys_used() if key not in words_table()}
    assert not missing
    assert len(set(keys_used())) > 120


def test_both_languages_have_the_same_places_to_fill():
    for key, text in words_table().items():
        places = [sorted(re.findall(r"\{(\w+)", told)) for told in (text.en, text.zh)]
        assert places[0] == places[1], key


def test_each_language_is_itself():
    chinese = re.compile(r"[\u4e00-\u9fff]")
    for key, text in words_table().items():
        if key in ("page-other-language", "verbatim"):  # it names the other one; it is not translated
            continue
        assert not chinese.search(text.en), key
        without = re.sub(r"\{[^}]*\}", "", text.zh)
        assert chinese.search(text.zh) or not re.search(r"[a-z]{4,}", without), key


def test_numbers_are_finite_in_what_is_shown(made):
    for one in made.content.sections:
        for table in tables(one.blocks):
            for row in table.rows:
                assert len(row.cells) == len(table.columns)
                assert all(cell.sort is None or math.isfinite(cell.sort) for cell in row.cells)
