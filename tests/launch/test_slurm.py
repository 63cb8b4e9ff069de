"""Cells on a real Slurm with two nodes: whatever happens to a task, its cell comes to the same bits."""

import json
from pathlib import Path

import pytest

import oelm
import tiny_study
from cluster.real_slurm import real_slurm, wait_for, why_not
from oelm.errors import LaunchError
from oelm.launch.backends.cluster import Cluster
from oelm.launch.backends.dispatch import list_status
from oelm.launch.backends.slurm.options import SlurmOptions
from oelm.launch.backends.slurm.queue import SlurmTask, cancel, states, submit
from oelm.launch.backends.slurm.script import Submission
from oelm.launch.launched import note_launch
from oelm.runs.jobs import Job, append_job
from oelm.runs.layout import STUDY
from oelm.runs.status import read_state
from oelm.study.load import load_study
from running import run_cell

pytestmark = [pytest.mark.slow, pytest.mark.skipif(why_not() is not None, reason=str(why_not()))]
CELLS = ["baseline/seed-0", "oelm-freeze/seed-0", "oelm-freeze/seed-1", "baseline/seed-1"]
LONG = {"budget": {"steps": 300}, "evaluate": {"every": 100}, "checkpoint": {"every": 40}}


@pytest.fixture(scope="module")
def slurm():
    with real_slurm() as running, pytest.MonkeyPatch.context() as patch:
        for name, value in {**running.env, "OMP_NUM_THREADS": "1"}.items():
            patch.setenv(name, value)
        yield running


@pytest.fixture
def place(slurm, tmp_path, monkeypatch):
    """A folder with a name that scripts must quote. Of a test that fails nothing is left in the queue for the next."""
    monkeypatch.setenv("OELM_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "100% 'my' own"
    folder.mkdir()
    yield folder
    slurm.clear()


def launch(study: Path, *stages: list[str], cluster: Cluster | None = None, **options):
    folder = study.parent / "runs" / "tiny"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / STUDY).write_text(json.dumps(load_study(study).to_dict()))
    given = Submission(
        name="tiny",
        study=Path("runs/tiny/study.json"),
        out=Path("runs"),
        folder=Path("runs/tiny"),
        options=SlurmOptions.resolve(options),
        cluster=cluster or Cluster(),
        workdir=study.parent,
    )
    tasks = submit(given, stages)
    return Job(on="slurm", cells=tuple(tasks), given=options, facts=tasks)


def finished(study: Path, *cells: str) -> bool:
    return all(read_state(study.parent / "runs" / "tiny" / cell) == "done" for cell in cells)


def output(study: Path) -> str:
    files = sorted((study.parent / "runs" / "tiny" / "slurm").glob("*.out"))
    return "\n".join(f"== {file.name}\n{file.read_text()}" for file in files)


def steps(study: Path, cell: str) -> int:
    file = study.parent / "runs" / "tiny" / cell / "steps.jsonl"
    return len(file.read_text().splitlines()) if file.exists() else 0


def bits(folder: Path):
    """What a cell came to: its report, the loss of every step, and its weights, byte by byte."""
    losses = [json.loads(line)["loss"] for line in (folder / "steps.jsonl").read_text().splitlines()]
    record = oelm.read_record(folder)
    (weights,) = (folder / "model").glob("*.safetensors")
    return record.test, record.evaluations, losses, weights.read_bytes()


def run_here(study: Path, *cells: str) -> None:
    for cell in cells:
        arm, seed = cell.split("/seed-")
        run_cell(load_study(study), arm=arm, seed=int(seed), out=study.parent / "here")


def same_bits(study: Path, cell: str) -> bool:
    return bits(study.parent / "runs" / "tiny" / cell) == bits(study.parent / "here" / "tiny" / cell)


def test_an_array_of_cells_comes_to_the_same_bits_as_cells_run_here(slurm, place):
    study, cells = tiny_study.make(place), CELLS[:3]
    job = launch(study, cells, sbatch={"comment": "two words # not one"})
    number = job.facts[cells[0]].partition("_")[0]
    assert job.facts == {cell: f"{number}_{index}" for index, cell in enumerate(cells)}
    assert slurm.ask("squeue", "-h", "-j", number, "-o", "%k").splitlines()[0] == "two words # not one"
    run_here(study, *cells)
    assert wait_for(lambda: finished(study, *cells), seconds=180), output(study)
    assert all(same_bits(study, cell) for cell in cells)
    assert wait_for(lambda: states(job) == {cell: SlurmTask(node=states(job)[cell].node) for cell in cells})
    assert {task.node for task in states(job).values()} <= {"n1", "n2"}
    assert sorted(file.name for file in (place / "runs/tiny/slurm").iterdir()) == sorted(
        [f"{number}.sbatch", *(f"{number}_{index}.out" for index in range(3))]
    )


def test_states_and_cancelling(slurm, place):
    study = tiny_study.make(place, **{**LONG, "budget": {"steps": 100_000}})
    job = launch(study, CELLS[:2], CELLS[2:3], array_limit=1)
    first, second, third = CELLS[:3]
    assert wait_for(lambda: states(job)[first].state == "running")
    assert states(job)[first].node in ("n1", "n2")
    assert wait_for(lambda: states(job)[second] == SlurmTask(state="queued", reason="JobArrayTaskLimit")), states(job)
    assert wait_for(lambda: states(job)[third] == SlurmTask(state="queued", reason="Dependency")), states(job)
    append_job(place / "runs" / "tiny", job)
    note_launch(place / "runs" / "tiny", job, Cluster())
    shown = {row.cell: (row.state, row.where) for row in list_status(place / "runs")}
    assert shown[second] == ("queued", "slurm (JobArrayTaskLimit)")
    assert shown[first][0] == "running"
    cancel(job, [second, third])
    assert wait_for(lambda: states(job)[second].state is states(job)[third].state is None), states(job)
    assert wait_for(lambda: steps(study, first) > 10, seconds=180), output(study)
    cancel(job, [first])
    assert wait_for(lambda: states(job)[first] == SlurmTask(node=states(job)[first].node, reason="CANCELLED"))
    folder = place / "runs" / "tiny" / first
    assert read_state(folder) == "stopped"
    assert list((folder / "checkpoints").glob("step-*")), output(study)
    cancel(job, job.cells)  # of what has ended, nothing is said


def test_a_cell_that_is_warned_preempted_or_loses_its_node_goes_on_to_the_same_bits(slurm, place):
    """One task is sent what Slurm sends before a limit, then makes way for a more urgent one.

    The node of the other goes dark, and it moves to another.
    """
    assert wait_for(slurm.up)
    study = tiny_study.make(place, **LONG)
    disturbed, moved = CELLS[:2]
    first = launch(study, [disturbed], sbatch={"nodelist": "n2"})
    second = launch(study, [moved])
    assert wait_for(lambda: steps(study, disturbed) > 50, seconds=180), output(study)
    slurm.ask("scancel", "--signal=USR1", "--batch", first.facts[disturbed])
    assert wait_for(lambda: steps(study, moved) > 50, seconds=180), output(study)
    assert wait_for(lambda: states(second)[moved] == SlurmTask(state="running", node="n1")), "it is the lighter one"
    slurm.cut_off("n1")
    assert wait_for(lambda: steps(study, disturbed) > 80, seconds=180), output(study)
    slurm.ask("sbatch", "--partition=urgent", "--nodelist=n2", "--exclusive", "--output=/dev/null", "--wrap=true")
    run_here(study, disturbed, moved)
    assert wait_for(lambda: finished(study, disturbed, moved), seconds=180), output(study) + slurm.log()
    starts = {cell: oelm.read_record(place / "runs" / "tiny" / cell).launches for cell in CELLS[:2]}
    assert len(starts[disturbed]) == 3, starts
    assert len(starts[moved]) in (2, 3), "it was on n2 again, or on its way there, when that was wanted"
    assert all(same_bits(study, cell) for cell in (disturbed, moved))
    assert wait_for(lambda: {**states(first), **states(second)} == dict.fromkeys(CELLS[:2], SlurmTask(node="n2")))
    slurm.start_node("n1")
    assert wait_for(slurm.up)


def test_a_task_is_warned_of_its_time_limit_and_requeues_itself(slurm, place):
    """With a stand-in for oelm that ends as it does: with 138 when it is warned, and at the second start with 0."""
    binaries = place / "venv" / "bin"
    binaries.mkdir(parents=True)
    (binaries / "activate").write_text('PATH="$PWD/venv/bin:$PATH"\n')
    (binaries / "oelm").write_text(
        """#!/bin/bash
        echo "$(date +%s) start $*" >>starts
        if [ "$SLURM_RESTART_COUNT" = 1 ]; then exit 0; fi
        trap 'echo "$(date +%s) warned" >>starts; exit 138' USR1
        while true; do sleep 0.2; done
        """
    )
    (binaries / "oelm").chmod(0o755)
    study = tiny_study.make(place)
    job = launch(study, CELLS[:1], cluster=Cluster(venv="venv"), time="1", grace=50)
    assert wait_for(lambda: states(job)[CELLS[0]] == SlurmTask(state="queued", reason="BeginTime"), seconds=90)
    assert wait_for(lambda: states(job)[CELLS[0]] in (SlurmTask(node="n1"), SlurmTask(node="n2")))
    times, told = zip(*(line.split(" ", 1) for line in (place / "starts").read_text().splitlines()), strict=True)
    called = f"start run runs/tiny/study.json --cell {CELLS[0]} --out runs"
    assert told == (called, "warned", called)
    assert int(times[1]) - int(times[0]) < 60


def test_a_partition_that_does_not_exist(slurm, place):
    study = tiny_study.make(place)
    with pytest.raises(LaunchError, match="Slurm took none of the cells") as caught:
        launch(study, CELLS, partition="gpus")
    assert "invalid partition specified: gpus" in str(caught.value)
    assert "--partition with one of debug, urgent" in str(caught.value)
    assert not list((place / "runs" / "tiny" / "slurm").iterdir())
    assert not slurm.ask("squeue", "-h", "-n", "tiny", "-t", "pending,running")


def test_nothing_listens_beyond_the_loopback_interface(slurm):
    """`ss` would say it in a line, but is not everywhere."""
    rows = [row.split() for name in ("tcp", "tcp6") for row in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    listening = {row[9]: row[1] for row in rows if row[3] == "0A"}  # address by inode
    found = []
    for process in slurm.processes.values():
        for file in Path(f"/proc/{process.pid}/fd").iterdir():
            target = str(file.readlink()) if file.is_symlink() else ""
            if target.startswith("socket:["):
                found += [listening[target[8:-1]]] if target[8:-1] in listening else []
    assert len(found) >= 3
    assert all(address.startswith("0100007F:") for address in found), found
