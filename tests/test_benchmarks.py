"""The benchmarks: that they run, and that their page says what they found. What they find is not asserted."""

import importlib.util
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
with pytest.MonkeyPatch.context() as patch:  # not for longer: its names are not for the other tests
    patch.syspath_prepend(BENCHMARKS)
    import side_by_side
    from result import Result, Target
    from side_by_side import Turns, take_turns
    from table import cells, page

AT_LEAST, AT_MOST, HOLDS = (
    Target(rule="at least", number=8.0),
    Target(rule="at most", number=0.98),
    Target(rule="holds", number=1.0),
)


def result(**parts):
    return Result(**{"question": "q", "what": "a / b", **parts})


def runner():
    spec = importlib.util.spec_from_file_location("benchmarks_main", BENCHMARKS / "__main__.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("target", "value", "low", "high", "reached"),
    [
        (AT_LEAST, 8.0, 7.0, 9.0, True),  # by the value, whatever the interval says
        (AT_LEAST, 7.99, 7.0, 9.0, False),
        (AT_MOST, 0.98, 0.9, 1.1, True),
        (AT_MOST, 0.981, 0.9, 1.1, False),
        (HOLDS, 1.1, 0.99, 1.2, True),
        (HOLDS, 1.1, 1.01, 1.2, False),
        (HOLDS, 0.9, 0.8, 0.99, False),
        (HOLDS, 1.0, None, None, None),  # without an interval, nobody knows
        (AT_LEAST, None, None, None, None),
        (None, 3.0, 2.0, 4.0, None),
    ],
)
def test_whether_a_target_is_reached(target, value, low, high, reached):
    assert result(target=target, value=value, low=low, high=high).reached is reached


def test_a_miss_says_by_how_much():
    assert result(target=AT_LEAST, value=6.0).missed_by == "6 instead of at least 8: 25.0% less"
    assert result(target=AT_MOST, value=0.9996).missed_by == "0.9996 instead of at most 0.98: 2.0% more"
    assert result(target=HOLDS, value=1.1, low=1.05, high=1.2).missed_by == "the interval 1.05 to 1.2 does not hold 1"


def test_a_result_as_a_line():
    whole = result(value=8.5, low=8.25, high=9.0, target=AT_LEAST, seconds={"a": 0.25, "b": 2.0}, rounds=7, note="why")
    expected = "q: a / b: 8.5 (8.25 to 9); target at least 8: reached; a 0.25 s, b 2 s; 7 rounds; why"
    assert str(whole) == expected
    assert str(result(value=0.31, unit="s")) == "q: a / b: 0.31 s"
    assert str(result(target=AT_LEAST, note="no bf16")) == "q: a / b: not measured; target at least 8: open; no bf16"


@pytest.mark.parametrize(
    "kept",
    [
        result(value=8.5, low=8.0, high=9.0, target=AT_LEAST, seconds={"a": 0.25}, rounds=7, note="why | how"),
        result(value=None, failed=True),
    ],
)
def test_a_result_survives_the_trip(kept):
    assert Result.from_json(kept.to_json()) == kept


def test_the_row_of_a_result():
    row = cells(result(value=1.0, target=AT_LEAST, seconds={"a": 0.25, "b": 2.0}, rounds=7, note="why"))
    assert row == ("q: a / b", "1", "at least 8", "**no**", "a 0.25 s, b 2 s", "7 rounds; why")
    assert cells(result(failed=True, what=""))[:4] == ("q", "failed", "", "")
    assert cells(result(target=AT_LEAST))[1:4] == ("not measured", "at least 8", "open")


def test_the_page():
    results = [result(value=9.0, target=AT_LEAST), result(question="p", value=4.0, target=AT_LEAST, note="x | y\nz")]
    text = page(results, facts={"machine": "a CPU"}, not_run=["trainer"], why="Because.\n")
    assert "- machine: a CPU\n" in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert rows[2:] == [
        "| q: a / b | 9 | at least 8 | yes |  |  |",
        r"| p: a / b | 4 | at least 8 | **no** |  | x \| y z |",
    ]
    assert "Not run: trainer." in text
    assert text.endswith("## Not reached\n\n- p: a / b: 4 instead of at least 8: 50.0% less\n\nBecause.\n")
    reached = page(results[:1], facts={}, why="Because.")
    assert "Not reached" not in reached, "what is written about misses goes with them"
    assert "Because" not in reached


# -- turns ---------------------------------------------------------------------------------------------------------


def machine(monkeypatch, costs):
    """Visits with a clock of their own: each takes what it costs. The names in the order in which they were there."""
    clock, seen = [0.0], []
    monkeypatch.setattr(side_by_side.time, "perf_counter", lambda: clock[0])

    def visit(name):
        def run():
            seen.append(name)
            clock[0] += costs[name]
            return costs[name]

        return run

    return {name: visit(name) for name in costs}, seen


@pytest.mark.parametrize(
    ("budget", "number"),
    [
        (60.0, 7),  # 8 s a round, after 4 s of warming up that are not of the budget: an eighth would be too much
        (10.0, 6),  # fewer have no interval
    ],
)
def test_turns_end_with_the_budget(monkeypatch, budget, number):
    visits, seen = machine(monkeypatch, {"a": 1.0, "b": 3.0})
    turns = take_turns(visits, budget=budget)
    assert turns.times["a"].shape == turns.times["b"].shape == (number, 2, 1)
    assert seen[:2] == ["a", "b"]
    orders = ["".join(seen[2 + 4 * i : 6 + 4 * i]) for i in range(number)]
    assert set(orders) == {"abba", "baab"}
    assert orders[0] != orders[1], "after an order its reverse"


def test_without_a_budget_it_is_one_round(monkeypatch):
    visits, _ = machine(monkeypatch, {"a": 1.0, "b": 3.0})
    found = take_turns(visits, budget=0.0).result("b", "a", question="q", what="b / a")
    assert math.isclose(found.value, 3.0)
    assert (found.low, found.high, found.rounds) == (None, None, 1)
    assert found.seconds == {"b": 3.0, "a": 1.0}


def test_the_result_of_turns_has_the_interval_of_the_bench():
    draw = np.random.default_rng(0)
    slow, fast = (seconds * draw.lognormal(0.0, 0.01, (20, 2, 1)) for seconds in (2.0, 1.0))
    turns = Turns(times={"slow": slow, "fast": fast}, others=0.5)
    found = turns.result("slow", "fast", question="q", what="w", target=Target(rule="at least", number=1.5), note="n")
    assert found.low < 2.0 < found.high
    assert found.high - found.low < 0.1
    assert found.reached
    assert found.note == "n; other processes used 50% of the cores meanwhile"


# -- the runner ----------------------------------------------------------------------------------------------------

SCRIPT = """
import sys
sys.path.insert(0, {place!r})
from result import Result, Target, parser_for, tell

def measure(options):
    yield Result(question={name!r}, what="quick" if options.quick else "whole", value=2.0)
    {then}

tell(measure, parser_for(__doc__, budget=1))
"""


def write_scripts(folder, **then):
    for name, line in then.items():
        (folder / f"{name}.py").write_text(SCRIPT.format(place=str(BENCHMARKS), name=name, then=line))
    return list(then)


def rows(path):
    return [line for line in path.read_text().splitlines() if line.startswith("| ")][2:]


def test_a_script_that_fails_is_a_row_and_the_others_still_run(tmp_path, capfd):
    scripts = write_scripts(tmp_path, first="pass", broken="raise RuntimeError('no such luck')", last="pass")
    out = tmp_path / "RESULTS.md"
    code = runner().main(["--out", str(out)], folder=tmp_path, scripts=scripts)
    assert code == 1
    assert rows(out) == [
        "| first: whole | 2 |  |  |  |  |",
        "| broken: whole | 2 |  |  |  |  |",  # what it had found until then
        "| broken | failed |  |  |  | RuntimeError: no such luck |",
        "| last: whole | 2 |  |  |  |  |",
    ]
    assert "no such luck" in capfd.readouterr().err


def test_some_of_the_scripts_and_quickly(tmp_path, capfd):
    scripts = write_scripts(tmp_path, first="pass", second="pass")
    out = tmp_path / "page.md"
    assert runner().main(["--only", "second", "--quick", "--out", str(out)], folder=tmp_path, scripts=scripts) == 0
    assert rows(out) == ["| second: quick | 2 |  |  |  |  |"]
    assert "[1/1] second" in capfd.readouterr().out


def test_an_interrupt_keeps_what_was_measured(tmp_path, monkeypatch):
    scripts = write_scripts(tmp_path, first="pass", second="pass", third="pass")
    module = runner()
    run = subprocess.run

    def interrupted(words, **options):
        if words[1].endswith("second.py"):
            raise KeyboardInterrupt
        return run(words, **options)

    monkeypatch.setattr(module.subprocess, "run", interrupted)
    out = tmp_path / "page.md"
    assert module.main(["--out", str(out)], folder=tmp_path, scripts=scripts) == 130
    assert rows(out) == ["| first: whole | 2 |  |  |  |  |", "| second | failed |  |  |  | interrupted |"]
    assert "Not run: third." in out.read_text()


def test_a_page_says_the_machine_and_not_its_name(tmp_path):
    import socket

    facts = runner()._facts()
    assert set(facts) == {"machine", "date", "commit", "versions", "threads"}
    assert socket.gethostname() not in " ".join(facts.values())


def test_a_name_that_is_no_benchmark(capsys):
    with pytest.raises(SystemExit) as ended:
        runner().main(["--only", "speed"])
    assert ended.value.code == 2
    assert "there is no benchmark 'speed'" in capsys.readouterr().err


def test_part_of_a_run_does_not_replace_the_page():
    module = runner()
    assert module._options([], module.SCRIPTS).out == BENCHMARKS / "RESULTS.md"
    assert module._options(["--only", "startup"], module.SCRIPTS).out is None
    assert module._options(["--quick"], module.SCRIPTS).out is None


def test_every_script_is_run():
    parts = {"__main__", "result", "sentences", "side_by_side", "table", "resize", "shape_figure", "shapes_file"}
    parts |= {"cost", "error_rates", "quickstart", "shapes"}  # which are run by themselves
    assert {path.stem for path in BENCHMARKS.glob("*.py")} - parts == set(runner().SCRIPTS)


@pytest.mark.slow
def test_the_cheap_ones_in_a_process(tmp_path, forked_python):
    out = tmp_path / "page.md"
    words = [sys.executable, str(BENCHMARKS), "--quick", "--only", "families,report", "--out", str(out)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    firsts = [row.split("|")[1] for row in rows(out)]
    assert sum("freezing, " in first for first in firsts) == 7
    assert sum("report of 4 cells" in first for first in firsts) == 3
    assert sum(" of 6 cells" in first for first in firsts) == 4
    assert sum("check of " in first and "cells" not in first for first in firsts) == 2
    assert len(firsts) == 7 + 3 + 4 + 2
