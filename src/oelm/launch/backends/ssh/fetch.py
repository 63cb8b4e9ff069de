"""Fetch: what cells left behind on another machine, brought here.

Records are looked at first and moved in last: whoever finds one here finds all that it refers to, even if
the connection was lost half-way. What is finished here stays as it is.
"""

import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from oelm.errors import CellError
from oelm.launch.backends.cluster import Cluster
from oelm.launch.backends.ssh.address import parse_address
from oelm.launch.backends.ssh.host import download, escape_pattern, ssh_host
from oelm.launch.backends.ssh.remote import RemoteRun
from oelm.runs.files import write_text, writing
from oelm.runs.jobs import Job
from oelm.runs.layout import CHECKPOINTS, FINISHED, LOCK, MODEL, RECORD, SIMPLE_BASELINE, STUDY, find_cell_folders
from oelm.runs.lease import STOP
from oelm.runs.record import Record, read_record
from oelm.runs.status import read_state

_CELL = "seed-*"  # the folder of a cell; an arm may have the name of anything in it
# What belongs to the machine that runs a cell: checkpoints, the lease, and files that are being written.
_STAYS = (
    f"{_CELL}/{CHECKPOINTS}/",
    f"{_CELL}/lease/",
    f"{_CELL}/{STOP}",
    f"/{STUDY}",
    "/study-*.json",
    "/jobs.jsonl",
    "/*.lock",
    ".*",
)
_OPTIONS = ("-rt", "--prune-empty-dirs", *(f"--exclude={name}" for name in _STAYS))
_RECORDS = ("--include=*/", f"--include={_CELL}/{RECORD}", "--exclude=*")
_REST = (f"--exclude={_CELL}/{RECORD}", f"--exclude={_CELL}/{MODEL}/")
# The files of a model make sense only together: they take their places when all have arrived.
_MODELS = ("--delay-updates", "--include=*/", f"--include={_CELL}/{MODEL}/**", "--exclude=*")


def fetch_records(job: Job, *, here: Path, models: bool, cluster: Cluster, log: Callable[[str], None]) -> int:
    """Bring the records of a job into the folder of its study, and what belongs to them; returns how many cells have
    one then."""
    machine = ssh_host(parse_address(job.on), cluster)
    there = RemoteRun.of(job).runs
    with tempfile.TemporaryDirectory() as folder:
        arrived, kept = Path(folder) / "records", Path(folder) / "kept"
        arrived.mkdir()
        download(machine, there, arrived, [*_OPTIONS, *_RECORDS], what="the records")
        records = _records_in(arrived, log)
        ours = _ours(here, arrived, records)
        for cell in sorted(ours.keys() & records.keys()):
            log(f"{cell} {ours[cell]}, and stays as it is; there it is {records[cell].status}")
        stays = [*ours, *(name for name in (SIMPLE_BASELINE, LOCK) if os.path.lexists(here / name))]
        kept.write_text("\0".join(escape_pattern(f"/{path}") for path in stays), encoding="utf-8")
        with writing(here):
            here.mkdir(parents=True, exist_ok=True)
        options = [*_OPTIONS, "--from0", f"--exclude-from={kept}"]
        download(machine, there, here, [*options, *_REST], what="what belongs to the records")
        if models:
            download(machine, there, here, [*options, *_MODELS], what="the models")
        for cell in sorted(records.keys() - ours.keys()):
            with writing(here / cell):
                (here / cell).mkdir(parents=True, exist_ok=True)
            write_text(here / cell / RECORD, (arrived / cell / RECORD).read_text(encoding="utf-8"))
    return sum((cell / RECORD).is_file() for cell in find_cell_folders(here))


def _records_in(folder: Path, log: Callable[[str], None]) -> dict[str, Record]:
    """By cell. One that is damaged there is not brought here."""
    found = {}
    for path in sorted(folder.rglob(RECORD)):
        cell = path.parent.relative_to(folder).as_posix()
        try:
            record = read_record(path.parent)
        except CellError as error:
            log(f"{cell} is not fetched: {' '.join(str(error).split())}")
            continue
        assert record is not None
        found[cell] = record
    return found


def _ours(here: Path, arrived: Path, records: Mapping[str, Record]) -> dict[str, str]:
    """The cells here that nothing from there may touch, and why."""
    found = {}
    for folder in find_cell_folders(here):
        cell = folder.relative_to(here).as_posix()
        try:
            status = read_state(folder)
        except CellError:  # a damaged one can only become better
            continue
        finished_there = cell in records and records[cell].status in FINISHED
        if status == "running":
            found[cell] = "is running here"
        elif status in FINISHED:
            mine, theirs = folder / RECORD, arrived / cell / RECORD
            if not finished_there or mine.read_bytes() != theirs.read_bytes():
                found[cell] = "is finished here already"
        elif (folder / CHECKPOINTS).exists() and not finished_there:
            found[cell] = "has a checkpoint here"
    return found
