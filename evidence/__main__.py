"""The evidence: run what is missing of locked studies, keep the records, and make all tables and reports from them.

make evidence              # python evidence run: resumes, and may be stopped at any moment
make evidence MINUTES=90   # for that long; 0 only unpacks, packs and lists
make evidence-report       # python evidence report: the same bytes from the same records
"""

import argparse
import fcntl
import hashlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from oelm.analysis.results import Results, read_results
from oelm.analysis.text_table import results_as_dict
from oelm.errors import DataError, LaunchError, OelmError, StudyError
from oelm.format import finite_or_none, format_columns
from oelm.launch.study_run import StudyRun, open_run
from oelm.message import LANGS
from oelm.report.write import build_content, write_content
from oelm.runs.archive import pack, unpack, unpacked
from oelm.runs.files import write_text, writing
from oelm.runs.layout import ARCHIVE, EVIDENCE, LOCK, RUNS, STUDY
from oelm.study.cells import resolve_cell
from oelm.study.load import load_study
from oelm.train.signals import StopRequest, catch_signals

OUT = RUNS / EVIDENCE
QUEUE, STUDY_FILE, TABLES = "queue.txt", "study.yaml", "tables.json"
WORKERS, LOWEST = 2, 19
PACK_EVERY = 20 * 60.0  # seconds
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="evidence", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("command", choices=("run", "report"))
    parser.add_argument("--minutes", type=float, default=math.inf, help="run for this long at most")
    options = parser.parse_args(words)
    try:
        return run(options.minutes) if options.command == "run" else report()
    except OelmError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


# -- running -------------------------------------------------------------------------------------------------------


def run(minutes: float) -> int:
    """Run the queue. What is wrong with any study of it is said before the first cell of all."""
    end = time.monotonic() + 60 * minutes
    with _alone():
        queue = [_open(name) for name in _read_queue()]
        _check_data(queue)
        os.nice(LOWEST)  # of packing, too
        codes = []
        with catch_signals() as stop:
            stop.at_once = False
            for study_run in queue:
                for seed in study_run.study.seeds:  # its grid and then its best, so that a stop leaves whole seeds
                    cells = [cell for cell in study_run.cells if cell.seed == seed]
                    if study_run.missing(cells) and stop.signal is None and time.monotonic() < end:
                        codes.append(_run_cells(study_run, seed, stop, end))
                pack(study_run.folder, _place(study_run) / ARCHIVE)
    rows = [("study", "cells", "verdicts"), *(_summarize(study_run) for study_run in queue)]
    print("\n".join(format_columns(rows, left=("study", "verdicts"))))
    return 128 + stop.signal if stop.signal is not None else max((code for code in codes if code in (1, 2)), default=0)


@contextmanager
def _alone() -> Iterator[None]:
    """Two queues at once would have twice as many workers, and none of them a core of its own."""
    with writing(OUT):
        OUT.mkdir(parents=True, exist_ok=True)
    folder = os.open(OUT, os.O_RDONLY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise LaunchError(f"the queue runs already in {OUT}", hint=f"oelm status {OUT} --watch") from error
        yield
    finally:
        os.close(folder)


def _read_queue() -> list[str]:
    file = EVIDENCE / QUEUE
    if not file.is_file():
        raise StudyError(f"there is no {file}", hint="the folder that has it is that of the working copy: go there")
    lines = (line.partition("#")[0].strip() for line in file.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line]


def _open(name: str) -> StudyRun:
    """A study with all the records that there are of it, in the folder of runs."""
    place = EVIDENCE / name
    study = load_study(str(place / STUDY_FILE))
    if study.name != name:
        raise StudyError(f"{place / STUDY_FILE} is the study '{study.name}'", hint=f"study: {name}")
    if not (place / LOCK).is_file():
        lock = f"oelm plan {place / STUDY_FILE} --no-measure --lock --out {EVIDENCE}"
        raise StudyError(f"{name} is not locked", where=str(place), hint=f"{lock}; and commit it before it is run")
    unpack(place / ARCHIVE, OUT / name)
    return open_run(study, out=OUT)


def _place(study_run: StudyRun) -> Path:
    return EVIDENCE / study_run.study.name


def _check_data(queue: Sequence[StudyRun]) -> None:
    """All data and models that the studies name must be there, by names that are the same on every machine."""
    missing: dict[str, list[str]] = {}
    for study_run in queue:
        name = study_run.study.name
        for path in _named_files(study_run):
            if Path(path).is_absolute() or path.startswith("~"):
                what = f"{_place(study_run) / STUDY_FILE} names a folder of this machine: {path}"
                raise StudyError(
                    what, why="it would be in every record", hint="path: data/..., where data may be a link"
                )
            if study_run.stages and not Path(path).exists():
                missing.setdefault(path, []).append(name)
    if missing:
        raise DataError(
            "files that the studies need are not there; nothing was started",
            where="\n".join(f"{path} (of {', '.join(names)})" for path, names in missing.items()),
            why="data and models are not part of the repository",
            hint="put them there, or make `data` a link to the folder that has them: ln -s FOLDER data;"
            " what belongs into each: docs/studies.md, Data",
        )


def _named_files(study_run: StudyRun) -> list[str]:
    """Data of the study and its arms, and those of its models that are not names of the hub or of a package."""
    found: dict[str, None] = {}
    for arm in study_run.arms:
        cell = next(cell for cell in study_run.cells if cell.arm == arm)
        recipe = resolve_cell(study_run.study, cell).recipe
        path = recipe.data.path
        found |= dict.fromkeys([path] if isinstance(path, str) else (path or {}).values())
        models = (recipe.model.name, recipe.data.tokenizer.name if recipe.data.tokenizer is not None else None)
        found |= dict.fromkeys(name for name in models if name is not None and name.startswith(("data/", "/", "~")))
    return list(found)


def _run_cells(study_run: StudyRun, seed: int, stop: StopRequest, end: float) -> int:
    """`oelm run` of a seed with a worker a core; what is finished is packed from time to time."""
    place, packed, has_asked = _place(study_run), time.monotonic(), False
    words = [sys.executable, "-P", "-m", "oelm", "run", str(place / STUDY_FILE), "--out", str(OUT)]
    words += ["--seed", str(seed), "--workers", str(WORKERS)]
    # In a session of its own: a Ctrl-C is for us, and its priority is not that of the shell that we are started from.
    child = subprocess.Popen(words, env={**os.environ, **ENVIRONMENT}, start_new_session=True)
    with suppress(OSError):  # where the kernel shares cores between sessions, it counts for more than `nice`
        Path(f"/proc/{child.pid}/autogroup").write_text(str(LOWEST), encoding="ascii")
    try:
        while child.poll() is None:
            time.sleep(0.5)
            now = time.monotonic()
            if not has_asked and (stop.signal is not None or now > end):
                child.send_signal(signal.SIGTERM)  # its cells write checkpoints
                has_asked = True
            if now > packed + PACK_EVERY:
                pack(study_run.folder, place / ARCHIVE)
                packed = now
    except BaseException:  # the second Ctrl-C means now
        child.send_signal(signal.SIGINT)
        raise
    finally:
        child.wait()
    return child.returncode


def _summarize(study_run: StudyRun) -> tuple[str, str, str]:
    name, cells = study_run.study.name, study_run.cells
    done = f"{len(cells) - len(study_run.missing(cells))} / {len(cells)}"
    results = read_results(study_run.folder) if (study_run.folder / STUDY).exists() else None
    if results is None or results.sealed is not None:
        return name, done, "not yet"
    verdicts = [f"{arm} {one.verdict}" for arm, one in results.comparisons.items()]
    return name, done, ", ".join([*verdicts, *(f"{one.hypothesis.name} {one.status}" for one in results.hypotheses)])


# -- reading -------------------------------------------------------------------------------------------------------


def report() -> int:
    """Write the report of every archive in both languages, and all numbers into one file."""
    tables = {}
    with unpacked(EVIDENCE) as folder:
        for study in sorted(folder.iterdir()):
            place = EVIDENCE / study.name
            results = read_results(study)
            content = build_content(results)
            for lang in LANGS:
                print(*write_content(content, place / ARCHIVE, formats=["md"], lang=lang, out=place))
            tables[study.name] = {**results_as_dict(results), "provenance": _provenance(results, place / ARCHIVE)}
    write_text(EVIDENCE / TABLES, json.dumps(finite_or_none(tables), indent=1, ensure_ascii=False) + "\n")
    print(EVIDENCE / TABLES)
    return 0


def _provenance(results: Results, archive: Path) -> dict[str, object]:
    """What its numbers were made by, and which bytes they are read from."""
    records = [*results.records.values(), *results.tuning.values()]
    made = [record.provenance for record in records]
    return {
        "archive": hashlib.sha256(archive.read_bytes()).hexdigest(),
        "lock": results.lock.digest if results.lock is not None else None,
        "cells": len(records),
        "hours": sum(sum(record.seconds.values()) for record in records) / 3600,
        "commits": sorted({str(one.code) for one in made}),
        "torch": sorted({str(one.versions.get("torch")) for one in made}),
        "machines": sorted({f"{one.gpu or one.cpu}, {one.threads} threads" for one in made}),
        "times": [min(one.time for one in made), max(one.time for one in made)] if made else [],
    }


if __name__ == "__main__":
    sys.exit(main())
