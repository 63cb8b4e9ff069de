"""Fetch: what cells left behind on another machine, brought here.

Records are looked at first and put in their place last: whoever finds one here finds all that it speaks of, even if
the connection was lost half-way. What is finished here stays as it is.
"""

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from oelm.analysis.floors import FLOOR
from oelm.errors import CellError
from oelm.launch.cluster import Cluster
from oelm.launch.jobs import Job
from oelm.launch.place import place_from
from oelm.launch.ssh import copy_back, literal, machine_at
from oelm.records.lease import STOP
from oelm.records.record import Record, read_record
from oelm.records.standing import status_of
from oelm.records.store import CHECKPOINTS, FINISHED, MODEL, RECORD, STUDY, cell_folders, write_text, writing

_CELL = "seed-*"  # the folder of a cell; an arm may have the name of anything in it
# What belongs to the machine that runs a cell: to go on from, to hold it by, and files that are being written.
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


def fetch(job: Job, *, out: Path, models: bool, cluster: Cluster, told: Callable[[str], None]) -> int:
    """Bring the records of a job's study here, and what belongs to them; returns how many cells have one here then."""
    machine = machine_at(place_from(job.on), cluster)
    there, here = job.facts["runs"], out / job.facts["study"]
    with tempfile.TemporaryDirectory() as folder:
        arrived, kept = Path(folder) / "records", Path(folder) / "kept"
        arrived.mkdir()
        copy_back(machine, there, arrived, [*_OPTIONS, *_RECORDS], what="the records")
        records = _records_in(arrived, told)
        ours = _ours(here, arrived, records)
        for cell in sorted(ours.keys() & records.keys()):
            told(f"{cell} {ours[cell]}, and stays as it is; there it is {records[cell].status}")
        stays = [*ours, *([FLOOR] if (here / FLOOR).exists() else [])]
        kept.write_text("\0".join(literal(f"/{path}") for path in stays), encoding="utf-8")
        with writing(here):
            here.mkdir(parents=True, exist_ok=True)
        options = [*_OPTIONS, "--from0", f"--exclude-from={kept}"]
        copy_back(machine, there, here, [*options, *_REST], what="what belongs to the records")
        if models:
            copy_back(machine, there, here, [*options, *_MODELS], what="the models")
        for cell in sorted(records.keys() - ours.keys()):
            with writing(here / cell):
                (here / cell).mkdir(parents=True, exist_ok=True)
            write_text(here / cell / RECORD, (arrived / cell / RECORD).read_text(encoding="utf-8"))
    return sum((cell / RECORD).is_file() for cell in cell_folders(here))


def _records_in(folder: Path, told: Callable[[str], None]) -> dict[str, Record]:
    """By cell. One that is damaged there is not brought here."""
    found = {}
    for path in sorted(folder.rglob(RECORD)):
        cell = path.parent.relative_to(folder).as_posix()
        try:
            record = read_record(path.parent)
        except CellError as error:
            told(f"{cell} is not fetched: {str(error).splitlines()[-1].strip()}")
            continue
        assert record is not None
        found[cell] = record
    return found


def _ours(here: Path, arrived: Path, records: Mapping[str, Record]) -> dict[str, str]:
    """The cells here that nothing from there may touch, and why."""
    found = {}
    for folder in cell_folders(here):
        cell = folder.relative_to(here).as_posix()
        try:
            status = status_of(folder)
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
