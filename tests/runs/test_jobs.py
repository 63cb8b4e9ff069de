"""Jobs: a line a launch; one that was not written to its end is passed over, one of another kind is refused."""

import pytest

from oelm.errors import CellError
from oelm.runs.jobs import JOB_LINE, Job, append_job, read_jobs

JOB = Job(on="slurm", cells=("a/seed-0",), seeds=(0,), given={"time": "4:00:00", "sbatch": {"mem": "8G"}}, facts={})


def test_read_as_written(tmp_path):
    assert read_jobs(tmp_path) == []
    append_job(tmp_path, JOB)
    append_job(tmp_path, JOB)
    assert read_jobs(tmp_path) == [JOB, JOB]


@pytest.mark.parametrize("length", range(0, len(JOB_LINE.dumps(JOB, indent=None)) - 2, 7))
def test_a_line_that_was_cut_anywhere_is_passed_over(tmp_path, length):
    append_job(tmp_path, JOB)
    with (tmp_path / "jobs.jsonl").open("a") as file:
        file.write("\n" + JOB_LINE.dumps(JOB, indent=None)[:length])
    append_job(tmp_path, JOB)
    assert read_jobs(tmp_path) == [JOB, JOB]


@pytest.mark.parametrize(
    "line",
    [
        b"{}",
        b"7",
        b'{"format": 2}',
        b'{"format": 1, "on": 3, "cells": []}',
        b"[" * 50_000,
        b'{"format": 1, "on": "\xff", "cells": []}',
        b'{"format": 1' + b"0" * 5000 + b"}",
    ],
)
def test_a_line_of_another_kind_is_refused(tmp_path, line):
    (tmp_path / "jobs.jsonl").write_bytes(line + b"\n")
    with pytest.raises(CellError, match=r"jobs\.jsonl .*"):
        read_jobs(tmp_path)
