"""Events: what a process that runs a cell says to the one that started it, as typed messages.

The child appends JSON lines to a file that the parent names in the environment. A file outlives a child that is killed,
a line that was not written to its end is not an event, and of the processes that train a cell together one per machine
writes.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import get_args

from oelm.errors import Stopped
from oelm.train.progress import MessageProgress, Progress

EVENTS_VARIABLE = "OELM_EVENTS"
"""Names the file."""


@dataclass(frozen=True, kw_only=True)
class LogLine:
    text: str


@dataclass(frozen=True, kw_only=True)
class CellStopped:
    """It was asked to stop."""

    step: int | None
    """None before training starts."""
    total: int | None


@dataclass(frozen=True, kw_only=True)
class CellFailed:
    """It cannot run, and leaves no record."""

    what: str


Event = LogLine | CellStopped | CellFailed
_KINDS = {kind.__name__: kind for kind in get_args(Event)}


class EventWriter:
    def __init__(self, path: Path):
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND)

    def write(self, event: Event) -> None:
        line = json.dumps({"kind": type(event).__name__, **asdict(event)})
        os.write(self._file, f"{line}\n".encode())

    def close(self) -> None:
        os.close(self._file)


class EventReader:
    """Reads what was written since the last time."""

    def __init__(self, path: Path):
        self._path, self._offset = path, 0

    def read(self) -> list[Event]:
        with self._path.open("rb") as file:
            file.seek(self._offset)
            text = file.read()
        complete = text[: text.rfind(b"\n") + 1]
        self._offset += len(complete)
        return [event for line in complete.splitlines() if (event := _parse(line)) is not None]


def _parse(line: bytes) -> Event | None:
    """An event; None for what is damaged or of a kind that is not known."""
    try:
        content = json.loads(line)
        event: Event = _KINDS[content.pop("kind")](**content)
        return event
    except (ValueError, TypeError, LookupError, AttributeError):
        return None


def events_file() -> Path | None:
    """Where the parent of this process listens; None for one without, and for all but the first of a machine."""
    name = os.environ.get(EVENTS_VARIABLE)
    return Path(name) if name and os.environ.get("LOCAL_RANK", "0") == "0" else None


@contextmanager
def report_to_parent(path: Path) -> Iterator[Progress]:
    """A progress that the parent hears, and of how it ends. Steps are in steps.jsonl, which everybody reads."""
    writer = EventWriter(path)
    try:
        yield MessageProgress(lambda text: writer.write(LogLine(text=text)))
    except Stopped as error:
        writer.write(CellStopped(step=error.step, total=error.total))
        raise
    except Exception as error:
        writer.write(CellFailed(what=f"{type(error).__name__}: {error}"))
        raise
    finally:
        writer.close()
