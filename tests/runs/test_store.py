"""Store and standing: files appear whole or not at all, and the folder of a cell says where it stands."""

import contextlib
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oelm.errors import CellError, DiskError, OelmError
from oelm.runs.layout import (
    CELL_SPEC,
    RECORD,
    STEPS,
    find_cell_folders,
    read_json,
    write_json,
    write_text,
    writing,
)
from oelm.runs.lease import acquire, holder_of
from oelm.runs.status import read_state, read_status


def hold(cell):
    with acquire(cell):
        pass


def test_statuses(tmp_path):
    cell = tmp_path / "cell"
    assert read_state(cell) == "pending"
    cell.mkdir()
    assert read_state(cell) == "pending"
    write_json(cell / CELL_SPEC, {})
    assert read_state(cell) == "stopped"
    for status in ("done", "failed", "diverged", "audit-failed", "stopped"):
        write_json(cell / RECORD, {"status": status})
        assert read_state(cell) == status
    write_json(cell / RECORD, {"status": "perfect"})
    with pytest.raises(CellError, match=r"(?s)record.json is damaged.*'perfect'"):
        read_state(cell)


def test_cells_below_a_folder(tmp_path):
    for name in ("b/seed-0", "a/seed-1", "a/tune/x=1/seed-9"):
        (tmp_path / name).mkdir(parents=True)
        write_json(tmp_path / name / CELL_SPEC, {})
    assert find_cell_folders(tmp_path) == [tmp_path / name for name in ("a/seed-1", "a/tune/x=1/seed-9", "b/seed-0")]
    assert find_cell_folders(tmp_path / "a" / "seed-1") == [tmp_path / "a" / "seed-1"]


WRITES_FOR_EVER = """
import itertools, pathlib, sys
from oelm.runs.layout import write_json
for number in itertools.count(1):
    write_json(pathlib.Path(sys.argv[1]), {"number": number, "text": "x" * 100_000, "again": number})
"""


def test_a_reader_never_sees_a_part(tmp_path):
    path = tmp_path / "data.json"
    write_json(path, {"number": 0, "text": "", "again": 0})
    writer = subprocess.Popen([sys.executable, "-c", WRITES_FOR_EVER, str(path)])
    seen = set()
    try:
        while len(seen) < 30:
            assert writer.poll() is None
            data = read_json(path)
            assert data["number"] == data["again"]
            seen.add(data["number"])
    finally:
        writer.kill()
        writer.wait()
    assert read_json(path)["number"] >= max(seen)


def test_what_cannot_be_written_leaves_what_was_there(tmp_path):
    write_json(tmp_path / "a.json", {"old": 1})
    with pytest.raises(TypeError):
        write_json(tmp_path / "a.json", {"new": object()})
    assert read_json(tmp_path / "a.json") == {"old": 1}
    with pytest.raises(UnicodeEncodeError):
        write_text(tmp_path / "a.json", "\ud800")
    assert read_json(tmp_path / "a.json") == {"old": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"], "nothing half-written is left"


def test_a_file_has_the_usual_permissions(tmp_path):
    write_json(tmp_path / "a.json", {})
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
    with pytest.raises(DiskError, match=r"(?s)the disk is full at some.*give the same command"), writing(Path("some")):
        Path("/dev/full").write_text("x")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["status", "pid"]) | st.text(), inner, max_size=3)
    ),
    max_leaves=5,
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=40) | JSON.map(lambda data: json.dumps(data).encode()) | st.just(b"[" * 100_000))
def test_any_bytes_as_any_file(tmp_path, content):
    holder = tmp_path / "lease" / "token" / "holder.json"
    for name in (RECORD, CELL_SPEC, STEPS, holder):
        (tmp_path / name).unlink(missing_ok=True)
    holder.parent.mkdir(parents=True, exist_ok=True)
    for file in (CELL_SPEC, STEPS, RECORD, holder):
        (tmp_path / file).write_bytes(content)
        for look in (read_json, read_state, holder_of):
            with contextlib.suppress(OelmError):
                look(tmp_path / CELL_SPEC if look is read_json else tmp_path)
        assert read_status(tmp_path, study="a", cell="b").cell == "b"
