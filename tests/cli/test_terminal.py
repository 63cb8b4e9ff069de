"""What is in a file cannot steer the terminal that it is shown on, nor the page that it is printed on."""

import ast
import io
import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console
from rich.progress import Progress as RichProgress

import oelm
from made_runs import make_runs, study_of
from oelm.analysis.results import read_results
from oelm.cli.echo import echo, plain_text
from oelm.cli.main import main
from oelm.cli.progress import BarProgress
from oelm.format import escape_controls, format_columns
from oelm.report.blocks import Prose
from oelm.report.render.html import render_html
from oelm.report.render.markdown import render_markdown
from oelm.report.render.pdf import _visible
from oelm.report.write import build_content
from oelm.text.messages import untranslated
from oelm.train.progress import Progress, log_to_file

CLI = Path(oelm.__file__).parent / "cli"
# A title for the window, a color, a jump to the beginning of the line, 8-bit controls, text from right to left.
BAD = "\x1b]0;owned\x07\x1b[31mred\r\x9b2Jdone\u202eenod\u2066\x7f\ud800"
SHOWN = r"\x1b]0;owned\x07\x1b[31mred\x0d\u009b2Jdone\u202eenod\u2066\u007f\ud800"


def is_safe(text: str) -> bool:
    return escape_controls(text) == text


def test_controls_are_shown_as_what_they_are():
    assert escape_controls(BAD) == SHOWN
    plain = "one\ttwo\nthree 中文 é \U0001f600 \\x1b"
    assert escape_controls(plain) == plain
    assert format_columns([("cell", "state"), ("a\nb\x1b", "x")], left=("cell",))[1] == r"a\x0ab\x1b      x"


@given(st.text(st.characters(exclude_categories=[])))
@example(BAD)
def test_nothing_but_tabs_and_lines_is_left_and_json_keeps_its_meaning(text):
    shown = escape_controls(text)
    assert is_safe(shown)
    assert all(letter.isprintable() or letter in "\t\n" for letter in shown if ord(letter) < 0xA0)
    for ascii_only in (True, False):
        assert json.loads(escape_controls(json.dumps([text], ensure_ascii=ascii_only))) == [text]


@pytest.mark.parametrize("path", sorted(CLI.glob("*.py")), ids=lambda path: path.name)
def test_commands_write_through_echo(path):
    """Rich is given texts that `plain_text` has made."""
    if path.name == "echo.py":
        return
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    for call in calls:
        name = ast.unparse(call.func)
        assert name not in ("typer.echo", "typer.secho", "click.echo", "print", "os.write"), name
        assert not name.startswith("sys.std") or name.endswith((".flush", ".fileno")), name
        if name.endswith(("console.print", "live.update", "console.status", "_status.update")):
            (text,) = call.args
            assert isinstance(text, ast.Constant) or ast.unparse(text).startswith("plain_text("), ast.unparse(call)


def call(monkeypatch, capsys, *words):
    monkeypatch.setattr("sys.argv", ["oelm", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code, *capsys.readouterr()


@pytest.fixture
def runs(tmp_path):
    """Records that try, in a host, an error, a log, a study's note and the name of a folder."""
    folder = make_runs(tmp_path / "runs", study_of(seeds=[0, 1]), examples=20, steps=5)
    record = folder / "baseline/seed-0/record.json"
    text = json.loads(record.read_text())
    record.unlink()
    cell = folder / "baseline/seed-0"
    (cell / "log.txt").write_text(BAD.replace("\ud800", "") + "\n", encoding="utf-8")
    study = json.loads((folder / "study.json").read_text())
    (folder / "study.json").write_text(json.dumps(study | {"notes": [BAD.replace("\ud800", "")]}))
    other = folder / "\x1b[31m\u202ered" / "seed-0"
    other.mkdir(parents=True)
    (other / "record.json").write_text(json.dumps(text | {"status": "\x1b[2J\u202e"}))
    return tmp_path / "runs"


def test_commands_show_them(runs, monkeypatch, capsys):
    for words in (["status", runs], ["check", runs], ["logs", "baseline/seed-0", "--runs", runs], ["report", runs]):
        code, out, err = call(monkeypatch, capsys, *words)
        assert is_safe(out), words
        assert is_safe(err), words
        assert code in (0, 1, 2)
        assert r"\x1b" in out + err or words[0] in ("check", "report"), "and they are seen"
    code, _, err = call(monkeypatch, capsys, "status", "no\x1b[31mwhere")
    assert (code, is_safe(err)) == (2, True)
    assert r"no\x1b[31mwhere" in err


def test_a_json_text_stays_exact(capsys):
    echo(json.dumps({"name": BAD}, ensure_ascii=False))
    out = capsys.readouterr().out
    assert is_safe(out)
    assert json.loads(out) == {"name": BAD}


def test_bars_and_logs_show_them_and_brackets_are_brackets(tmp_path):
    file = io.StringIO()
    console = Console(file=file, force_terminal=False, width=200)
    with RichProgress(console=console, auto_refresh=False) as bars:
        progress = BarProgress(bars, 1)
        progress.on_message(f"{BAD} [bold]x[/nothing]")
        progress.on_prepare(BAD, 1, 2)
        assert all(is_safe(task.description) for task in bars.tasks)
    assert f"{SHOWN} [bold]x[/nothing]" in file.getvalue()
    assert str(plain_text("[b]")) == "[b]"
    with log_to_file(Progress(), tmp_path / "log.txt") as progress:
        progress.on_message(BAD)
    assert (tmp_path / "log.txt").read_text().endswith(f"  {SHOWN}\n")


def test_a_report_keeps_its_order(tmp_path):
    """Characters that turn the direction of a line would turn the rest of the page."""
    content = build_content(read_results(make_runs(tmp_path, study_of(seeds=[0, 1]), examples=20, steps=5)))
    first = content.sections[0]
    hostile = Prose(text=untranslated(BAD))
    object.__setattr__(first, "blocks", (hostile, *first.blocks))
    object.__setattr__(content, "study", f"name {BAD}")
    for text in (render_html(content), render_markdown(content)):
        assert is_safe(text)
        assert r"\u202eenod" in text.replace("\\\\u", "\\u")
    assert _visible({"a": [BAD, 1, None]}) == {"a": [SHOWN, 1, None]}
