"""Parent and child: typed events in a file, whatever happens to the child."""

import signal
import sys

import pytest

from oelm.errors import CellError, Stopped
from oelm.launch.backends.child import start_child
from oelm.launch.backends.events import (
    EVENTS_VARIABLE,
    CellFailed,
    CellStopped,
    EventReader,
    EventWriter,
    LogLine,
    events_file,
    report_to_parent,
)
from oelm.study.cells import Cell
from oelm.train.progress import MessageProgress

CELL = Cell(arm="baseline", seed=0)
EVENTS = [
    LogLine(text="two\nlines, and ünïcode"),
    CellStopped(step=4, total=8),
    CellFailed(what="CellError: no"),
]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "events"
    path.touch()
    return path


def test_what_is_written_is_read_once(file):
    writer, reader = EventWriter(file), EventReader(file)
    for event in EVENTS:
        writer.write(event)
    writer.close()
    assert reader.read() == EVENTS
    assert reader.read() == []


def test_a_torn_or_strange_line_is_not_an_event(file):
    reader = EventReader(file)
    file.write_bytes(b'nonsense\n{"kind": "Other"}\n{"kind": "LogLine"}\n[1]\n{"kind": "LogLine", "text": "a"}\n{"kind')
    assert reader.read() == [LogLine(text="a")]
    with file.open("ab") as more:
        more.write(b'": "LogLine", "text": "b"}\n')
    assert reader.read() == [LogLine(text="b")], "read when it is complete"


@pytest.mark.parametrize(
    ("error", "event"),
    [
        (Stopped("stopped", signal=15, step=4, total=8), CellStopped(step=4, total=8)),
        (Stopped("stopped at once", signal=15), CellStopped(step=None, total=None)),
        (CellError("no"), CellFailed(what="CellError: no")),
    ],
)
def test_how_a_cell_ends_is_an_event(file, error, event):
    def child():
        with report_to_parent(file) as progress:
            progress.on_message("begins")
            raise error

    with pytest.raises(type(error)):
        child()
    assert EventReader(file).read() == [LogLine(text="begins"), event]


def test_of_several_ranks_one_writes(monkeypatch, file):
    monkeypatch.setenv(EVENTS_VARIABLE, str(file))
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert events_file() is None
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert events_file() == file
    monkeypatch.delenv(EVENTS_VARIABLE)
    assert events_file() is None, "nobody has started us"


def child(code):
    started = start_child([sys.executable, "-c", code], CELL, env={})
    started.process.wait()
    lines = []
    started.listen(MessageProgress(lines.append))
    return started, lines


WRITES = (
    "import os; file = os.open(os.environ['OELM_EVENTS'], os.O_WRONLY | os.O_APPEND);"
    """os.write(file, b'{"kind": "LogLine", "text": "so far"}\\n{"kind": "CellSto');"""
)


def test_a_child_that_is_killed_has_said_what_it_said():
    started, lines = child(f"{WRITES} os.write(2, b'last words'); os.kill(os.getpid(), {int(signal.SIGKILL)})")
    assert lines == ["baseline/seed-0: so far"]
    assert started.process.returncode == -signal.SIGKILL
    assert started.why_ended() == "last words"
    assert started.where_stopped() == "stopped before its first step"
    started.close()
    assert not started.events_file.exists()


def test_what_a_child_says_counts_more_than_what_it_prints():
    """English on its standard error is not read for meaning."""
    write = """os.write(file, b'\\n{"kind": "CellFailed", "what": "DataError: no data"}\\n');"""
    started, _ = child(f"{WRITES} {write} os.write(2, b'stopped at step 3 of 9\\nValueError: wrong'); os._exit(2)")
    assert started.why_ended() == "DataError: no data"
    assert started.where_stopped() == "stopped before its first step"
    started.close()
