"""Figures: what is drawn says what it is, looks the same every time, and is drawn for everybody's eyes."""

import ast
import itertools
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oelm.report
from made_bench import ratio, write_bench
from made_runs import STUDY, make_runs, score, seal_files, study_of
from oelm.analysis.results import read_results
from oelm.facts import AttentionStats
from oelm.format import format_number
from oelm.message import Text
from oelm.report.figures.convergence import MOST_POINTS, convergence
from oelm.report.figures.palette import INK, PALETTE, VERDICT_COLORS, VERDICT_SIGNS, styles
from oelm.report.figures.plot import Plot, thinned
from oelm.report.figures.svg import drawing, for_page, for_paper
from oelm.report.figures.training_loss import loss_curve
from oelm.report.sections.figures import figures_section
from oelm.runs.record import ValidationScore
from oelm.study.cells import Cell
from oelm.text.messages import untranslated

pytestmark = pytest.mark.slow

NAMES = ["forest", "curves", "loss", "corners", "size", "speed", "timed", "tuning", "best-of-k", "heads", "entropy"]
NAMES += ["dose", "maps"]
NASTY = "<script>alert(\"1\")</script> $x^2$ & 'y'"


def figures(content):
    return {
        one.name: one
        for section in content.sections
        if section.name == "figures"
        for one in section.blocks
        if isinstance(one, Plot)
    }


def tips(svg):
    return re.findall(r'data-tip="([^"]*)"', svg)


def test_all_are_drawn_in_order(made):
    found = figures(made.content)
    assert list(found) == NAMES
    assert all(one.svg is not None for one in found.values())


def test_every_point_says_arm_seed_and_value(made):
    forest = tips(figures(made.content)["forest"].svg)
    for arm, one in made.results.comparisons.items():
        for seed, value in one.differences.items():
            assert f"{arm}, seed {seed}: {value:+.4f}" in forest
    assert len(forest) == 4 * (5 + 1)
    size = tips(figures(made.content)["size"].svg)
    for arm in made.results.arms:
        for seed, value in made.results.values(arm, "accuracy").items():
            assert f"{arm}, seed {seed}: {format_number(value)}" in size


def words(svg):
    return [one.text for one in ElementTree.fromstring(svg).iter() if one.tag.endswith("text")]


def test_the_verdict_stands_beside_every_arm_in_words_and_color(made):
    svg = figures(made.content)["forest"].svg
    for one in made.results.comparisons.values():
        assert f"{VERDICT_SIGNS[one.verdict]} {one.verdict}" in words(svg)
        name, color = VERDICT_COLORS[one.verdict]
        assert color in svg
        assert f"fill: var({name})" in for_page(svg, "forest")
    assert 'data-zh="▼ 更差"' in svg
    assert "#a33a00" in for_paper(svg, "en"), "on paper too"


def test_a_verdict_that_is_not_the_intervals_says_what_decided(tmp_path):
    def change(cell, record):
        failed = cell.arm == "oelm-freeze" and cell.seed > 2
        return replace(record, status="diverged", test={}) if failed else record

    arms = {**STUDY["arms"], "other-lr": {"init": "keep", "freeze": "qk", "overrides": {"optimizer.lr": 1e-3}}}
    folder = make_runs(tmp_path, study_of(arms=arms), examples=400, steps=10, change=change)
    svg = next(one.svg for one in figures_section(read_results(folder)) if one.name == "forest")
    assert "? inconclusive (seeds failed)" in words(svg)
    assert "× invalid (LR-DIFFERS)" in words(svg)  # noqa: RUF001


def test_the_bars_of_the_forest_are_the_intervals_that_decide(made):
    found = tips(figures(made.content)["forest"].svg)
    for arm, one in made.results.comparisons.items():
        low, high, percent = one.deciding.low, one.deciding.high, 100 * one.deciding.level
        assert (
            f"{arm}: {one.estimate.mean:+.4f}, {percent:.4g} % interval {low:+.4f} to {high:+.4f}, {one.verdict}"
            in found
        )


def test_verdicts_are_told_apart_by_every_kind_of_eye():
    """Simulated by Machado's matrices for full protanopia and deuteranopia; and each has a sign of its own."""
    eyes = {
        "all": np.eye(3),
        "protanopia": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
        "deuteranopia": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    }
    for matrix in eyes.values():
        seen = [
            np.array(matrix) @ np.array([int(color[k : k + 2], 16) / 255 for k in (1, 3, 5)])
            for kind, (_, color) in VERDICT_COLORS.items()
            if kind in ("better", "worse", "equivalent")
        ]
        assert all(np.abs(a - b).max() > 0.15 for a, b in itertools.combinations(seen, 2))
    assert len(set(VERDICT_SIGNS.values())) == len(VERDICT_SIGNS) == len(VERDICT_COLORS)


def test_points_are_where_their_values_are(made):
    """Seeds further right in the forest have larger differences: tips are not shifted against points."""
    root = ElementTree.fromstring(figures(made.content)["forest"].svg)
    group = next(one for one in root.iter() if one.get("data-arm") == "oelm-freeze" and len(tips_of(one)) == 5)
    places = []
    for point in group.iter():
        if point.get("data-tip"):
            x = point.get("x") or re.search(r"M (-?[\d.]+)", point.get("d"))[1]
            places.append((float(x), float(point.get("data-tip").split(": ")[1])))
    assert [value for _, value in sorted(places)] == sorted(value for _, value in places)


def tips_of(element):
    return [one for one in element.iter() if one.get("data-tip")]


def test_everything_of_an_arm_is_marked_as_its_own(made):
    """In every figure, what has an arm's color can be hidden with it."""
    look = styles(made.results.arms, "baseline")
    for name, one in figures(made.content).items():
        root = ElementTree.fromstring(one.svg)
        parents = {child: parent for parent in root.iter() for child in parent}
        for arm in made.results.arms[1:]:
            for element in root.iter():
                if look[arm].color not in element.get("style", "") or parents[element].tag.endswith("defs"):
                    continue
                above = itertools.takewhile(lambda x: x is not None, iterate(parents.get, element))
                assert arm in [up.get("data-arm") for up in above], (name, arm)


def iterate(step, start):
    while True:
        yield start
        start = step(start) if start is not None else None


def test_the_same_bytes_every_time(made):
    again = {one.name: one.svg for one in figures_section(read_results(made.folder))}
    assert again == {name: one.svg for name, one in figures(made.content).items()}


def test_no_global_figure():
    for path in Path(oelm.report.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not any("pyplot" in name or "torch" in name for name in names), path


def test_what_there_is_nothing_of_is_not_drawn_and_says_why(tmp_path):
    study = study_of(arms={"baseline": {"init": "keep", "freeze": "none"}, "a": {"init": "keep", "freeze": "qk"}})

    def change(cell, record):
        return replace(score(record), evaluations=(), counts=None)

    folder = make_runs(tmp_path, study, change=change)
    for path in folder.rglob("steps.jsonl"):
        path.unlink()
    for one in figures_section(read_results(folder)):
        assert one.svg is None, one.name
        assert one.caption.en
        assert one.caption.zh != one.caption.en


def test_one_seed_is_drawn_without_intervals(tmp_path):
    found = {one.name: one for one in figures_section(read_results(make_runs(tmp_path, study_of(seeds=[3]))))}
    assert "97.5 % interval \u2013 to \u2013" in " ".join(tips(found["forest"].svg))
    assert found["size"].svg is not None
    assert not any("nan" in (one.svg or "") for one in found.values())


def test_heads_that_were_measured_in_part_are_not_drawn(tmp_path):
    nothing = AttentionStats(norm={}, cosine={"q": ((),), "k": ()}, logit_spread=(None,), entropy=(None, math.nan))

    def change(cell, record):
        return replace(record, heads=(None, nothing)[cell.seed % 2])

    found = {one.name: one for one in figures_section(read_results(make_runs(tmp_path, change=change)))}
    assert found["heads"].svg is None
    assert found["entropy"].svg is None
    assert found["dose"].svg is None
    assert found["maps"].svg is None


def test_orthogonal_heads_are_dark_at_any_length(made):
    """What is drawn is the angle between rows; their size stands beside it."""
    svg = figures(made.content)["heads"].svg
    assert words(svg).count("5 \u2192 5") == 5
    assert "whatever the length" in figures(made.content)["heads"].caption.en


def test_training_loss_is_of_every_step(tmp_path):
    """Against numpy over all steps of all seeds, stretch by stretch."""
    results = read_results(make_runs(tmp_path, study_of(seeds=[0, 1]), examples=60, steps=100))
    losses = np.array([results.steps(Cell(arm="freeze-only", seed=seed)).loss for seed in (0, 1)])
    whole, thin = loss_curve(results, "freeze-only"), loss_curve(results, "freeze-only", most=30)
    assert whole.steps == 1
    assert np.array_equal(whole.median, np.median(losses, axis=0))
    assert (thin.steps, len(thin.step), thin.step[-1]) == (4, 30, 100)
    ends = [0, *thin.step.astype(int)]
    for number, (start, end) in enumerate(itertools.pairwise(ends)):
        some = losses[:, start:end]
        assert 3 <= some.shape[1] <= 4
        assert (thin.lowest[number], thin.highest[number]) == (some.min(), some.max())
        assert thin.median[number] == np.median(some)


def test_training_loss_names_what_it_does_not_show(tmp_path):
    folder = make_runs(tmp_path, study_of(seeds=[0, 1]), examples=60, steps=20)

    def edit(arm, step, loss):
        path = folder / arm / "seed-0" / "steps.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        rows[step - 1]["loss"] = loss
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        seal_files(path.parent)

    def caption():
        return next(one.caption.en for one in figures_section(read_results(folder)) if one.name == "loss")

    assert "Single steps" not in caption()
    assert "not a number" not in caption()
    edit("freeze-only", 7, 50.0)
    edit("oelm-freeze", 20, math.nan)
    assert "Single steps went beyond the figure, up to: freeze-only 50.0000." in caption()
    assert "infinite or not a number, which is not drawn: oelm-freeze 1." in caption()
    curve = loss_curve(read_results(folder), "oelm-freeze")
    assert np.isfinite(curve.median).all()


def test_the_bench_is_drawn_part_by_part(made):
    found = tips(figures(made.content)["timed"].svg)
    assert len(found) == 4 * 4
    assert "oelm-freeze, whole step: 0.9490, 95 % interval 0.9396 to 0.9585" in found
    for part, told in (("forward", "1.0000"), ("backward", f"{0.949**1.5:.4f}"), ("optimizer", "0.9200")):
        assert any(tip.startswith(f"oelm-freeze, {part}: {told}, 95 % interval ") for tip in found)
    assert not any("baseline" in tip for tip in found), "it is the unit"


def test_marks_of_the_bench_are_where_their_values_are(made):
    """The line at 1, the marks at the best that freezing could do, and the points, on one scale."""
    root = ElementTree.fromstring(figures(made.content)["timed"].svg)
    places = {}
    for point in root.iter():
        told = re.match(r"(.*), whole step: ([\d.]+)", point.get("data-tip") or "")
        if told:
            corners = [float(x) for x, _ in re.findall(r"(-?[\d.]+) (-?[\d.]+)", point.get("d"))]
            places[told[1]] = (min(corners) + max(corners)) / 2, float(told[2])
    (one, first), (other, second) = places["oelm-freeze"], places["oelm-nofreeze"]
    scale = (other - one) / (second - first)
    marks = {}
    for group in root.iter():
        paths = [path for path in group.iter() if path.tag.endswith("path") and "stroke-dasharray" in path.get("style")]
        if group.get("data-arm") and len(paths) == 1:
            marks[group.get("data-arm")] = float(re.match(r"M ([\d.]+)", paths[0].get("d"))[1])
    assert set(marks) == set(made.results.arms) - {"baseline"}
    assert marks["oelm-freeze"] == pytest.approx(one + (0.945 - first) * scale, abs=0.1)
    assert marks["oelm-nofreeze"] == pytest.approx(one + (1.0 - first) * scale, abs=0.1)


def test_a_bench_of_few_rounds_is_drawn_without_intervals(tmp_path):
    study = study_of(seeds=[0])
    folder = write_bench(make_runs(tmp_path, study, examples=60), study, {"oelm-freeze": ratio(0.95, rounds=3)})
    timed = next(one for one in figures_section(read_results(folder)) if one.name == "timed")
    assert "oelm-freeze, whole step: 0.9500, 95 % interval \u2013 to \u2013" in tips(timed.svg)
    assert "nan" not in timed.svg


@pytest.mark.parametrize("number", [3, 7, 10])
def test_arms_are_told_apart_without_color(number):
    arms = [f"arm-{k}" for k in range(number)]
    look = styles(arms, "arm-0")
    assert len({style.marker for style in look.values()}) == number
    assert len({(style.color, str(style.line)) for style in look.values()}) == number
    assert look["arm-0"].color == INK


def test_neighboring_colors_differ_in_gray():
    def gray(color):
        r, g, b = (int(color[k : k + 2], 16) / 255 for k in (1, 3, 5))
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    assert all(abs(gray(a) - gray(b)) > 0.04 for a, b in itertools.pairwise(PALETTE))


def nasty_drawing():
    with drawing() as draw:
        (axes,) = draw.axes()
        points = axes.scatter([1, 2], [3, 4], color=PALETTE[0])
        draw.mark(points, arm=NASTY, tips=[untranslated(NASTY), Text("two", "二")])
        draw.word(axes.title, untranslated(NASTY))
        draw.word(axes.xaxis.label, Text("words", "文字"))
        return draw.finish()


def test_any_name_is_shown_as_it_is():
    svg = nasty_drawing()
    root = ElementTree.fromstring(svg)
    assert "<script" not in svg
    assert NASTY in [one.text for one in root.iter() if one.tag.endswith("text")]
    assert {one.get("data-arm") for one in root.iter()} == {None, NASTY}
    assert {one.get("data-tip") for one in root.iter()} == {None, NASTY, "two"}


def test_on_paper_it_is_one_language_in_black():
    svg = nasty_drawing()
    en, zh = for_paper(svg, "en"), for_paper(svg, "zh")
    assert "words" in en
    assert "文字" not in en
    assert "文字" in zh
    assert "words" not in zh
    assert INK not in en
    assert "data-" not in en
    assert "currentColor" not in en


def test_on_a_page_it_has_both_languages_and_the_pages_colors():
    page = for_page(nasty_drawing(), "one")
    assert '<tspan class="en">words</tspan><tspan class="zh">文字</tspan>' in page
    assert "currentColor" in page
    assert "var(--arm-0)" in page
    assert not re.search("|".join([INK, *PALETTE]), page)


def test_references_inside_a_figure_stay_whole(made):
    seen = set()
    for name, one in figures(made.content).items():
        root = ElementTree.fromstring(for_page(one.svg, name))
        ids = [element.get("id") for element in root.iter() if element.get("id")]
        assert len(ids) == len(set(ids))
        assert not seen & set(ids)
        seen |= set(ids)
        for element in root.iter():
            if element.get("href", "").startswith("#"):
                assert element.get("href")[1:] in ids
            for target in re.findall(r"url\(#([^)]+)\)", " ".join(element.attrib.values())):
                assert target in ids


@given(st.integers(0, 20_000), st.integers(2, MOST_POINTS))
def test_thinned_curves_keep_their_ends(length, most):
    kept = thinned(length, most)
    assert len(kept) <= most
    assert kept == sorted(set(kept))
    if length:
        assert (kept[0], kept[-1]) == (0, length - 1)


def score_at(step, **metrics):
    return ValidationScore(step=step, metrics=metrics)


def test_convergence_is_to_what_every_arm_reaches(tmp_path):
    curves = {"baseline": [0.5, 0.7, 0.9], "freeze-only": [0.6, 0.8, 0.79], "oelm-freeze": [0.2, 0.75, 0.85]}

    def change(cell, record):
        rows = [score_at(20 * (k + 1), accuracy=v) for k, v in enumerate(curves[cell.arm])]
        if cell.seed == 1 and cell.arm == "oelm-freeze":
            rows[2] = score_at(60, accuracy=0.76)  # this one never gets there, its arm's mean does
        return replace(record, evaluations=tuple(rows))

    results = read_results(make_runs(tmp_path, study_of(seeds=[0, 1]), change=change))
    found = convergence(results)
    assert found.target == pytest.approx(0.8)
    steps = {arm: {s: r and r.step for s, r in by_seed.items()} for arm, by_seed in found.reached.items()}
    assert steps == {"baseline": {0: 60, 1: 60}, "freeze-only": {0: 40, 1: 40}, "oelm-freeze": {0: 60, 1: None}}
    one = found.reached["baseline"][0]
    log = next(iter(results.records))
    assert one.seconds == pytest.approx(results.steps(log).seconds[:60].sum())
    speed = next(one for one in figures_section(results) if one.name == "speed")
    assert "never reached it, so they are not drawn there: oelm-freeze" in speed.caption.en


def test_lower_is_better_turns_the_target_around(tmp_path):
    study = study_of(compare={"baseline": "baseline", "metric": "loss"}, seeds=[0])
    losses = {"baseline": [0.9, 0.4], "freeze-only": [0.6, 0.5], "oelm-freeze": [0.3, 0.2]}

    def change(cell, record):
        rows = [score_at(50 * (k + 1), loss=v) for k, v in enumerate(losses[cell.arm])]
        return replace(record, evaluations=tuple(rows))

    found = convergence(read_results(make_runs(tmp_path, study, change=change)))
    assert found.target == 0.5
    assert {arm: by_seed[0].step for arm, by_seed in found.reached.items()} == {
        "baseline": 100,
        "freeze-only": 100,
        "oelm-freeze": 50,
    }


def test_dose_and_response_have_a_point_an_arm(made):
    drawn = figures(made.content)["dose"]
    said = tips(drawn.svg)
    assert len(said) == len(made.results.comparisons) == 4
    for arm, one in made.results.comparisons.items():
        kl = np.mean(list(made.results.attention_kl(arm, "start").values()))
        assert any(tip.startswith(f"{arm}: KL {kl:.3g} nats") and f"{one.estimate.mean:+.4f}" in tip for tip in said)
    assert "accuracy, minus baseline" in words(drawn.svg)
    table = next(s for s in made.content.sections if s.name == "results").blocks[1]
    at = [column.title.en for column in table.columns].index("KL of attention")
    for row in table.rows:
        by_seed = (made.results.attention_kl(row.arm, moment).values() for moment in ("start", "final"))
        assert row.cells[at].text.en == " \u2192 ".join(f"{np.mean(list(some)):.3g}" for some in by_seed)


def test_maps_of_every_arm_stand_side_by_side(made):
    drawn = figures(made.content)["maps"]
    said = words(drawn.svg)
    assert said.count("before") == said.count("start") == said.count("end") == 3, "a head each"
    assert {"layer 0, head 0", "layer 2, head 0", *made.results.arms} <= set(said)
    assert drawn.svg.count("<image") == len(made.results.arms) + 1, "and the scale"
    assert "seed 0" in drawn.caption.en
