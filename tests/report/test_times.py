"""Times that were measured in turns, in the report: beside those of whole trainings, with all that was around them."""

import re
from dataclasses import replace

import pytest

from made_bench import LOAD, edited, ratio, write_bench
from made_runs import TEXT, make_runs, make_text_runs, study_of, text_study_of
from oelm.analysis.results import load, read_results
from oelm.analysis.verdicts import compare_arms
from oelm.report.blocks import Bullets, Prose, Table
from oelm.report.render.html import render_html
from oelm.report.render.markdown import escaped, render_markdown
from oelm.report.render.pdf import _plain, render_pdf
from oelm.report.sections.figures import figures_section
from oelm.report.sections.recommendations import _fastest, recommendations_section
from oelm.report.write import build_content

pytestmark = pytest.mark.slow


def times_of(content):
    return next(one for one in content.sections if one.name == "times").blocks


def rows(blocks, lang="en"):
    """Of every table: its columns, and its cells by arm."""
    found = []
    for one in blocks:
        if isinstance(one, Table):
            titles = [column.title[lang] for column in one.columns]
            found.append(
                {row.arm: dict(zip(titles, (c.text[lang] for c in row.cells), strict=True)) for row in one.rows}
            )
    return found


def prose(blocks, lang="en"):
    return " ".join(one.text[lang] for one in blocks if isinstance(one, Prose))


@pytest.fixture
def small(tmp_path):
    """(make the report of a bench of oelm-freeze): the study's own part of it is as small as can be."""
    study = study_of(seeds=[0, 1])
    folder = make_runs(tmp_path, study, examples=60, steps=10)

    def report(told=0.95, change=None, **parts):
        write_bench(folder, study, {"oelm-freeze": told}, **parts)
        return build_content(read_results(edited(folder, change) if change else folder))

    return report


def test_the_table_holds_what_was_measured(made):
    times, memory = rows(times_of(made.content))
    assert list(times) == list(made.results.bench.arms) == made.results.arms
    one = times["oelm-freeze"]
    assert one["Step time"] == "256.2 ms"
    assert one["Of baseline's time [95 % interval]"] == "0.9490 [0.9396, 0.9585]"
    assert (one["Forward"], one["Backward"], one["Optimizer"]) == ("1.000", "0.924", "0.920")
    assert (one["At best"], one["Reached of it"], one["Slow steps"]) == ("0.9450", "93%", "3")
    assert times["baseline"]["Of baseline's time [95 % interval]"] == "\u2013"
    assert times["oelm-nofreeze"]["Reached of it"] == "\u2013"
    assert memory["oelm-freeze"]["Gradients + optimizer"] == "240.0 MiB"
    assert memory["oelm-freeze"]["By theory"] == "240.0 MiB"
    assert memory["oelm-freeze"]["Checkpoint"] == "247.0 MiB"


def test_whole_trainings_stand_beside_it(made):
    """As the records have it, and it says which of the two to trust."""
    told = rows(times_of(made.content))[0]["freeze-only"]["Whole trainings [95 % interval]"]
    assert float(told.split()[0]) == pytest.approx(0.95, abs=0.002)
    text = times_of(made.content)[0].text
    assert "Where the two differ, trust the turns." in text.en
    assert "以轮流测得的为准" in text.zh
    results = next(one for one in made.content.sections if one.name == "results")
    assert "Step time" in [column.title.en for column in results.blocks[1].columns], "they are still shown"


@pytest.mark.usefixtures("undrawn")
def test_the_circumstances_are_told(made, small):
    told = prose(times_of(made.content))
    for part in (
        "64 rounds in 151 s, batch 32 x 26 tokens.",
        "every interval was within 0.01 to each side",
        "Device: cpu (a CPU).",
        "Cores: 2.",
        "Load average: 1.1 to 1.9.",
        "Other processes used 4% of the cores.",
    ):
        assert part in told
    assert "the time was used up" in prose(times_of(small(stopped_by="budget")))
    assert "It was interrupted" in prose(times_of(small(stopped_by="interrupted")))
    isolated = times_of(small(isolated="it was asked for"))
    assert "Every block of steps was a process of its own: it was asked for." in prose(isolated)
    assert "每次轮到一组都用一个单独的进程" in prose(isolated, "zh")
    assert "memory together" not in prose(isolated)
    unknown = prose(times_of(small(system=replace(LOAD, load=None, others=None))))
    assert "Load average" not in unknown
    assert "Other processes" not in unknown


@pytest.mark.usefixtures("undrawn")
def test_one_round_is_one(tmp_path):
    study = study_of(seeds=[0, 1])
    folder = make_runs(tmp_path, study, examples=60, steps=10)
    results = read_results(write_bench(folder, study, {"oelm-freeze": ratio(0.95, rounds=1)}, rounds=1))
    blocks = times_of(build_content(results))
    assert "1 round in 151 s" in prose(blocks)
    assert "共 151 秒" in prose(blocks, "zh")
    figure = next(one for one in figures_section(results) if one.name == "timed")
    assert "over 1 round:" in figure.caption.en


@pytest.mark.parametrize(
    ("change", "told"),
    [({}, True), ({"precision": "bf16"}, False), ({"compile": True}, False)],
    ids=["fp32", "bf16", "compiled"],
)
@pytest.mark.usefixtures("undrawn")
def test_the_head_of_a_language_model_counts_as_forward(tmp_path, change, told):
    """Only where the loss is taken in chunks."""
    recipe = {**TEXT["recipe"], **change}
    study = text_study_of(recipe=recipe, seeds=[0, 1])
    arm = next(name for name in study.arms if name != study.compare.baseline)
    content = build_content(read_results(write_bench(make_text_runs(tmp_path, study), study, {arm: 0.97})))
    assert ("read forward and backward together" in prose(times_of(content))) == told
    assert ("前向与反向应合起来看" in prose(times_of(content), "zh")) == told


def test_a_classifier_has_no_such_head(made):
    assert "forward and backward together" not in prose(times_of(made.content))


@pytest.mark.usefixtures("undrawn")
def test_without_a_bench_it_says_how_to_get_one(tmp_path):
    content = build_content(read_results(make_runs(tmp_path, study_of(seeds=[0]), examples=60, steps=10)))
    (only,) = times_of(content)
    assert only.text.en.endswith("oelm bench RUNS/made/study.json")
    assert only.text.zh.endswith("oelm bench RUNS/made/study.json")


@pytest.mark.usefixtures("undrawn")
def test_a_damaged_bench_is_named_where_all_else_is(small):
    content = small(change=lambda data: data.pop("arms"))
    _, why = times_of(content)
    assert "of no use here: bench.json is damaged" in why.items[0].en
    excluded = next(one for one in content.sections if one.name == "excluded")
    assert "bench.json is damaged" in repr(excluded)


@pytest.mark.usefixtures("undrawn")
def test_above_the_ceiling_it_is_an_issue(small):
    content = small(0.7)
    (bullets,) = (one for one in times_of(content) if isinstance(one, Bullets))
    (text,) = bullets.items
    assert text.en.startswith(
        "SPEEDUP-ABOVE-CEILING (docs/fair-comparison.md#times): in turns, oelm-freeze saves 30.0%"
    )
    assert "测到的是别的东西" in text.zh
    table = next(one for one in times_of(content) if isinstance(one, Table))
    assert [row.cells[7].badge for row in table.rows] == [None, "invalid"]
    checks = next(one for one in content.sections if one.name == "checks")
    assert "SPEEDUP-ABOVE-CEILING" in repr(checks)
    assert not any(isinstance(one, Bullets) for one in times_of(small(0.95)))


@pytest.mark.usefixtures("undrawn")
def test_the_bench_warns_in_its_own_words_once(small):
    warnings = ("SPEEDUP-ABOVE-CEILING: oelm-freeze is faster", "other processes used 30 % of the cores meanwhile")
    (bullets,) = (one for one in times_of(small(0.7, warnings=warnings)) if isinstance(one, Bullets))
    assert len(bullets.items) == 2, "the issue is not said twice"
    assert bullets.items[1].en == "oelm bench warning: other processes used 30 % of the cores meanwhile"


@pytest.mark.usefixtures("undrawn")
def test_few_rounds_and_no_memory_are_dashes(small):
    def bare(data):
        for arm in data["arms"].values():
            arm["memory"] = None

    (times,) = rows(times_of(small(ratio(0.95, rounds=3), change=bare)))
    assert times["oelm-freeze"]["Of baseline's time [95 % interval]"] == "0.9500 [\u2013]"


def recommendations(content):
    section = next(one for one in content.sections if one.name == "recommendations")
    return {row.cells[0].text.en: [cell.text.en for cell in row.cells[1:]] for row in section.blocks[1].rows}


@pytest.mark.usefixtures("undrawn")
def test_the_fastest_steps_are_those_of_the_bench(small):
    arms, why = recommendations(small(ratio(0.95, half=0.02)))["the fastest steps"]
    assert arms == "oelm-freeze"
    assert why == (
        "oelm-freeze: -5.0% of time a step against baseline "
        "(95 % interval -6.9% to -3.1%, in turns by oelm bench, 64 rounds)"
    )
    assert recommendations(small(1.0))["the fastest steps"] == ["\u2013", "no evidence yet"]
    assert recommendations(small(1.1))["the fastest steps"] == ["baseline", "all other arms are worse"]
    assert "SPEEDUP-ABOVE-CEILING" in recommendations(small(0.7))["the fastest steps"][1]


def test_the_fastest_steps_are_those_of_the_whole_family(tmp_path):
    """Whichever arms are shown: 19 others were planned."""
    study, close = study_of(), ratio(0.95, half=0.04)
    bench = load(write_bench(make_runs(tmp_path, study, examples=60, steps=10), study, {"oelm-freeze": close})).bench
    assert _fastest(bench, 1)[0].en == "oelm-freeze"
    assert _fastest(bench, 20)[0].en == "\u2013"


@pytest.mark.parametrize("arms", [None, ["baseline", "oelm-freeze"]])
def test_what_else_is_recommended_is_tested_in_the_planned_family(tmp_path, monkeypatch, arms):
    families = set()

    def compare(*args, family, **options):
        families.add(family)
        return compare_arms(*args, family=family, **options)

    monkeypatch.setattr("oelm.report.sections.recommendations.compare_arms", compare)
    results = load(make_runs(tmp_path, examples=60, steps=10))
    recommendations_section(results if arms is None else results.restricted(arms=arms))
    assert families == {2}


def test_the_hypothesis_says_rounds_and_not_seeds(made):
    section = next(one for one in made.content.sections if one.name == "hypotheses")
    found = {row.cells[0].text.en: row for row in section.blocks[1].rows}
    assert found["H3"].cells[5].text.en == "64 rounds"
    assert found["H3"].cells[5].text.zh == "64 轮"
    assert found["H2"].cells[5].text.en == "5"
    assert found["H3"].cells[-1].text.en == "supported"


# -- in all formats ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_markdown_has_the_section(made, lang):
    text = render_markdown(made.content, lang=lang)
    section = text.split(f"## {'Times, measured in turns' if lang == 'en' else '轮流测得的时间'}\n")[1].split("\n## ")[
        0
    ]
    assert r"0.9490 \[0.9396, 0.9585\]" in section
    assert escaped("oelm bench warning" if lang == "en" else "oelm bench 警告") in section
    assert "<script" not in section
    name = "timed.svg" if lang == "en" else "timed.zh.svg"
    assert f"report-figures/{name}" in text


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_page_has_the_section(made, lang):
    text = render_html(made.content, lang=lang)
    section = re.search(r'<section id="times">(.*?)</section>', text, re.DOTALL)[1]
    for word in ("Times, measured in turns", "轮流测得的时间", "0.9490 [0.9396, 0.9585]", "Slow steps", "慢步"):
        assert word in section
    assert "<script" not in section
    assert 'data-arm="oelm-freeze"' in section
    assert 'id="figure-timed"' in text


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_paper_has_the_section(made, lang):
    told = repr([_plain(block, lang) for block in times_of(made.content)])
    assert "0.9490 [0.9396, 0.9585]" in told
    assert ("64 rounds in 151 s" if lang == "en" else "64 轮") in told


def test_the_paper_can_be_set(small):
    assert render_pdf(small(0.7, warnings=("#panic(1) $x$",))).startswith(b"%PDF-")
