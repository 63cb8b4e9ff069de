"""Files and status: files appear whole or not at all, and the folder of a cell says where it stands."""

import contextlib
import json
import os
import stat
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from made_runs import made_record, make_runs, study_of
from misplaced import PLACED, place_in
from oelm.cli.main import main
from oelm.errors import CellError, DiskError, OelmError
from oelm.runs.cell_start import CELL_FILE, StartedCell, read_cell
from oelm.runs.files import (
    FileType,
    digest_file,
    open_to_append,
    read_regular,
    read_unchanged,
    write_text,
    writing,
)
from oelm.runs.layout import CELL, RECORD, STEPS, find_cell_folders
from oelm.runs.lease import acquire, holder_of
from oelm.runs.record import RECORD_FILE
from oelm.runs.status import read_state, read_status
from oelm.runs.steps import read_steps
from oelm.study.cells import Cell


def hold(cell):
    with acquire(cell):
        pass


def test_statuses(tmp_path):
    cell = tmp_path / "cell"
    assert read_state(cell) == "pending"
    cell.mkdir()
    assert read_state(cell) == "pending"
    record = made_record(Cell(arm="baseline", seed=0), {"accuracy": 0.5})
    CELL_FILE.write(cell, StartedCell(spec=record.spec, start=record.start))
    assert read_state(cell) == "stopped"
    with acquire(cell):
        assert read_state(cell) == "running"
    for status in ("done", "failed", "diverged", "audit-failed", "stopped"):
        RECORD_FILE.write(cell, replace(record, status=status))
        assert read_state(cell) == status
    RECORD_FILE.write(cell, replace(record, status="perfect"))
    with pytest.raises(CellError, match=r"(?s)record.json is damaged.*status"):
        read_state(cell)


def test_a_cell_that_prepares_its_data_is_running(tmp_path):
    with acquire(tmp_path):
        assert read_state(tmp_path) == read_status(tmp_path, study="a", cell="b").state == "running"


def test_cells_below_a_folder(tmp_path):
    for name in ("b/seed-0", "a/seed-1", "a/tune/x=1/seed-9"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / CELL).touch()
    assert find_cell_folders(tmp_path) == [tmp_path / name for name in ("a/seed-1", "a/tune/x=1/seed-9", "b/seed-0")]
    assert find_cell_folders(tmp_path / "a" / "seed-1") == [tmp_path / "a" / "seed-1"]


WRITES_FOR_EVER = """
import itertools, pathlib, sys
from oelm.runs.files import write_text
for number in itertools.count(1):
    text = '{"format": 3, "number": %d, "text": "%s", "again": %d}' % (number, "x" * 100_000, number)
    write_text(pathlib.Path(sys.argv[1]), text)
"""


@dataclass(frozen=True, kw_only=True)
class Numbers:
    number: int
    text: str = ""
    again: int = 0


NUMBERS = FileType("numbers.json", Numbers, format=3)


def test_a_reader_never_sees_a_part(tmp_path):
    NUMBERS.write(tmp_path, Numbers(number=0))
    writer = subprocess.Popen([sys.executable, "-c", WRITES_FOR_EVER, str(tmp_path / NUMBERS.name)])
    seen = set()
    try:
        while len(seen) < 30:
            assert writer.poll() is None
            data = NUMBERS.read(tmp_path)
            assert data.number == data.again
            seen.add(data.number)
    finally:
        writer.kill()
        writer.wait()
    assert NUMBERS.read(tmp_path).number >= max(seen)


def test_what_cannot_be_written_leaves_what_was_there(tmp_path):
    NUMBERS.write(tmp_path, Numbers(number=1))
    with pytest.raises(TypeError):
        NUMBERS.write(tmp_path, Numbers(number=object()))
    assert NUMBERS.read(tmp_path) == Numbers(number=1)
    with pytest.raises(UnicodeEncodeError):
        write_text(tmp_path / NUMBERS.name, "\ud800")
    assert NUMBERS.read(tmp_path) == Numbers(number=1)
    assert [path.name for path in tmp_path.iterdir()] == [NUMBERS.name], "nothing half-written is left"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "JSONDecodeError"),
        ("[]", "no format number"),
        ('{"format": true, "number": 1}', "no format number"),
        ('{"format": 2, "number": 1}', "has format 2; this oelm reads format 3"),
        ('{"format": 4, "number": 1}', "a newer oelm"),
        ('{"format": 3}', "number: Field required"),
        ('{"format": 3, "number": "1"}', "number: Input should be a valid integer"),
        ('{"format": 3, "number": 1, "more": 1}', "more: Unexpected"),
    ],
)
def test_what_is_not_this_file_is_refused_with_its_reason(tmp_path, text, why):
    (tmp_path / NUMBERS.name).write_text(text)
    with pytest.raises(CellError, match=f"(?s)numbers.json .*{why}"):
        NUMBERS.read(tmp_path)


def test_bytes_that_are_no_text_are_replaced_and_the_rest_is_read(tmp_path):
    """The name of a file in another encoding, as Python has it."""
    file = FileType("numbers.json", Numbers, format=3, has_checksum=True)
    file.write(tmp_path, Numbers(number=1, text="caf\udce9"))
    assert file.read(tmp_path) == Numbers(number=1, text="caf?")


def test_a_checksum_notices_a_single_digit(tmp_path):
    sealed = FileType("numbers.json", Numbers, format=3, has_checksum=True)
    sealed.write(tmp_path, Numbers(number=41))
    assert sealed.read(tmp_path) == Numbers(number=41)
    path = tmp_path / sealed.name
    path.write_text(path.read_text().replace("41", "42"))
    with pytest.raises(CellError, match=r"(?s)is damaged.*its checksum does not match"):
        sealed.read(tmp_path)


@pytest.mark.parametrize("kind", PLACED)
def test_what_is_no_file_is_one_message_and_nobody_waits(tmp_path, kind):
    place_in(tmp_path / NUMBERS.name, kind)
    with pytest.raises(CellError, match=rf"{NUMBERS.name} (is not a file|cannot be read)"):
        NUMBERS.read(tmp_path)
    with pytest.raises(DiskError, match=rf"{NUMBERS.name} is in the way: not a file"):
        open_to_append(tmp_path / NUMBERS.name)
    with contextlib.suppress(DiskError):  # a folder is in the way, and all else is replaced
        NUMBERS.write(tmp_path, Numbers(number=1))
        assert NUMBERS.read(tmp_path) == Numbers(number=1)
    assert kind == "folder" or NUMBERS.read(tmp_path) == Numbers(number=1)


def test_nothing_is_added_to_a_file_elsewhere(tmp_path):
    """A run folder of somebody else may have a link to the start file of a shell in the place of a log."""
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "log.txt").symlink_to("mine")
    with pytest.raises(DiskError, match=r"log\.txt is in the way: not a file"):
        open_to_append(tmp_path / "log.txt")
    assert (tmp_path / "mine").read_text() == "mine"


def test_a_part_of_a_file(tmp_path):
    (tmp_path / "a").write_bytes(b"0123456789")
    assert [read_regular(tmp_path / "a", start=start) for start in (0, 7, 12, -3, -20)] == [
        b"0123456789",
        b"789",
        b"",
        b"789",
        b"0123456789",
    ]
    assert read_regular(tmp_path / "b") is None
    with pytest.raises(CellError, match="more than 9 bytes"):
        read_regular(tmp_path / "a", largest=9)


def test_a_file_that_is_not_what_it_was(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"0123456789")
    digest = digest_file(path)
    assert read_unchanged(path, digest) == b"0123456789"
    for content in (b"0123456780", b"012345678", b"01234567890", b""):
        path.write_bytes(content)
        with pytest.raises(CellError, match="is damaged"):
            read_unchanged(path, digest)
    path.unlink()
    with pytest.raises(CellError, match="is missing"):
        read_unchanged(path, digest)


@pytest.mark.parametrize("kind", PLACED)
@pytest.mark.parametrize("name", ["jobs.jsonl", "made/baseline/seed-0/log.txt"])
def test_a_log_that_is_no_file_is_one_message(tmp_path, name, kind, monkeypatch, capsys):
    folder = make_runs(tmp_path, study_of(seeds=[0]), examples=10, steps=5)
    place_in(folder / name.removeprefix("made/"), kind)
    monkeypatch.setattr(sys, "argv", ["oelm", "logs", "baseline/seed-0", "--runs", str(tmp_path)])
    with pytest.raises(SystemExit) as end:
        main()
    said = capsys.readouterr().err
    assert end.value.code == 2
    assert "Traceback" not in said
    assert Path(name).name in said


def test_a_file_has_the_usual_permissions(tmp_path):
    write_text(tmp_path / "a.json", "")
    (tmp_path / "usual").touch()
    assert stat.S_IMODE((tmp_path / "a.json").stat().st_mode) == stat.S_IMODE((tmp_path / "usual").stat().st_mode)


def test_a_file_in_the_way(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DiskError, match="is in the way: a file, not a folder"):
        hold(tmp_path / "file" / "cell")
    with pytest.raises(DiskError, match="is in the way: a file, not a folder"):
        hold(tmp_path / "file")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_no_permission(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(DiskError, match=r"(?s)no permission to write to.*--out FOLDER"):
        hold(tmp_path / "cell")


def test_a_full_disk():
    if not os.access("/dev/full", os.W_OK):
        pytest.skip("there is no /dev/full")
    with pytest.raises(DiskError, match=r"(?s)the disk is full at some.*rerun the same command"), writing(Path("some")):
        Path("/dev/full").write_text("x")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["status", "pid"]) | st.text(), inner, max_size=3)
    ),
    max_leaves=5,
)


@pytest.mark.slow
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=40) | JSON.map(lambda data: json.dumps(data).encode()))
@example(b"[" * 100_000)
def test_any_bytes_as_any_file(tmp_path, content):
    holder = tmp_path / "lease" / "token" / "holder.json"
    for name in (RECORD, CELL, STEPS, holder):
        (tmp_path / name).unlink(missing_ok=True)
    holder.parent.mkdir(parents=True, exist_ok=True)
    for file in (CELL, STEPS, RECORD, holder):
        (tmp_path / file).write_bytes(content)
        for look in (read_cell, read_state, holder_of):
            with contextlib.suppress(OelmError):
                look(tmp_path)
        assert read_status(tmp_path, study="a", cell="b").cell == "b"


@pytest.mark.parametrize("content", [b"\n", b"\n \n\n", b" "])
def test_a_log_of_steps_with_blank_lines_is_damaged(tmp_path, content):
    (tmp_path / STEPS).write_bytes(content)
    with pytest.raises(CellError, match="is damaged"):
        read_steps(tmp_path, digest_file(tmp_path / STEPS))
