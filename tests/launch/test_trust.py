"""A run folder is data: nothing that it names is asked or run, unless the user launched it or trusts it."""

import json
import os
import shutil
import stat
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from cluster.real_sshd import real_sshd, why_not
from made_runs import make_runs, study_of
from misplaced import PLACED, place_in
from oelm.cli.main import main
from oelm.errors import CellError, LaunchError
from oelm.launch.backends.cluster import Cluster, load_cluster
from oelm.launch.backends.options import SshOptions
from oelm.launch.backends.registry import backend_of, parse_backend
from oelm.launch.backends.slurm.queue import cancel, states
from oelm.launch.backends.ssh.address import parse_address
from oelm.launch.backends.ssh.host import ssh_host
from oelm.launch.backends.ssh.remote import RemoteRun
from oelm.launch.backends.workers import InlineBackend
from oelm.launch.launched import NotLaunchedHere, is_launched, launched_file, note_launch
from oelm.launch.run import _keep_job
from oelm.runs.jobs import JOB_LINE, Job, append_job, read_jobs

CELL = "baseline/seed-0"
COMMANDS = [["status", "RUNS"], ["logs", CELL, "--runs", "RUNS"], ["stop", "all", "--no-wait", "--runs", "RUNS"]]
COMMANDS += [["resume", "RUNS"], ["fetch", "RUNS"]]
needs_sshd = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A user with a home of their own, in an empty folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path


@pytest.fixture
def oelm(here, monkeypatch, capsys):
    """`oelm WORDS`: (exit code, all that was said)."""

    def call(*words):
        monkeypatch.setattr("sys.argv", ["oelm", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, "".join(capsys.readouterr())

    return call


@pytest.fixture
def study(here):
    """The folder of a study of which a cell is missing."""
    folder = make_runs(here / "runs", study_of(seeds=[0, 1]), examples=20, steps=5)
    (folder / CELL / "record.json").unlink()
    (folder / CELL / "log.txt").write_text("what it left here\n")
    return folder


def give(folder: Path, **parts) -> Job:
    """A job in a folder, by whomever."""
    job = Job(cells=(CELL,), time="2026-01-01T00:00:00+0000", **parts)
    append_job(folder, job)
    return job


def words_for(words, study):
    return [str(study.parent) if word == "RUNS" else word for word in words]


# -- ssh ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sshd():
    with real_sshd({}) as server:
        yield server


@pytest.fixture
def canary(here):
    """A virtual environment whose Python leaves a file, and says that nothing is there."""
    venv = here / "there" / ".venv"
    (venv / "bin").mkdir(parents=True)
    for name in ("python", "activate"):
        (venv / "bin" / name).write_text(f'#!/bin/sh\ntouch "{here}/ran"\necho "[]"\n')
        (venv / "bin" / name).chmod(0o755)
    return venv


def facts(here: Path, venv: Path) -> dict[str, str]:
    there = str(here / "there")
    return RemoteRun(
        study="made", folder=there, runs=f"{there}/runs/made", cwd=there, venv=str(venv), pid="1"
    ).to_facts()


def configure(folder: Path, config: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cluster.yaml").write_text(f"ssh: {{config: '{config}'}}\n")


@pytest.mark.slow
@needs_sshd
@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_a_foreign_folder_contacts_no_host(words, oelm, here, study, sshd, canary):
    configure(here / "config" / "oelm", sshd.config)  # the host would let the user in
    give(study, on=sshd.address(here / "there"), facts=facts(here, canary))
    before = sshd.log().count("Accepted publickey")
    code, said = oelm(*words_for(words, study))
    assert code == (0 if words[0] in ("status", "logs") else 2)
    assert "was not launched from here" in said
    assert "--trust" in said
    if words[0] in ("status", "logs"):
        assert ("what it left here" if words[0] == "logs" else "baseline/seed-0") in said, "what is here is shown"
    assert sshd.log().count("Accepted publickey") == before
    assert not (here / "ran").exists()


@pytest.mark.slow
@needs_sshd
def test_trusted_once_it_is_asked_wherever_the_folder_goes(oelm, here, study, sshd, canary):
    configure(here / "config" / "oelm", sshd.config)
    give(study, on=sshd.address(here / "there"), facts=facts(here, canary))
    code, said = oelm("status", study.parent, "--trust")
    assert code == 0
    shown = next(line for line in said.splitlines() if "trusted from now on" in line)
    assert shown.startswith(f"{study}: trusted from now on: {sshd.address(here / 'there')} study=made, folder=")
    assert f"venv={canary}" in shown, "what will be run is shown"
    assert (here / "ran").exists()
    (here / "ran").unlink()
    moved = here / "elsewhere"
    shutil.copytree(study.parent, moved)
    code, said = oelm("status", moved)
    assert (code, "--trust" in said) == (0, False)
    assert (here / "ran").exists()


@pytest.mark.slow
@needs_sshd
@pytest.mark.parametrize("words", [COMMANDS[0], COMMANDS[1], COMMANDS[3], COMMANDS[4]], ids=lambda words: words[0])
def test_a_cluster_file_that_comes_with_a_folder_runs_nothing(words, oelm, here, study, sshd, canary, monkeypatch):
    """Whoever was sent a folder knows a line that its owner has launched, and may send it back with more in it."""
    configure(here / "config" / "oelm", sshd.config)
    job = give(study, on=sshd.address(here / "there"), facts=facts(here, canary))
    note_launch(study, job, load_cluster())
    hostile = sshd.client(more=f"  ProxyCommand touch {here}/ran\n")
    configure(study.parent, hostile)
    monkeypatch.chdir(study.parent)
    code, said = oelm(*words_for(words, study))
    assert code == (0 if words[0] in ("status", "logs") else 2)
    assert "cluster.yaml names what nothing was launched with from here" in said
    assert not (here / "ran").exists()
    if words[0] == "status":
        said = oelm("status", study.parent, "--trust")[1]
        assert f"cluster.yaml: trusted from now on: ssh.config={hostile}" in said
        assert (here / "ran").exists()


def test_what_a_launch_took_from_cluster_yaml_is_believed_again(here, study):
    job = give(study, on="ssh://ada@host/x", facts=facts(here, here))
    cluster = Cluster(venv="env", modules=("cuda/12",), ssh=SshOptions(config="ssh_config", python="python3.12"))
    text = "venv: env\nmodules: [cuda/12]\nssh: {config: ssh_config, python: python3.12}\nslurm: {partition: other}\n"
    Path("cluster.yaml").write_text(text)
    note_launch(study, job, Cluster())
    with pytest.raises(NotLaunchedHere, match=r"(?s)cluster.yaml names what nothing.*ssh_config"):
        backend_of(job)
    note_launch(study, job, cluster)
    assert backend_of(job).settings.modules == ("cuda/12",)
    Path("cluster.yaml").write_text(text.replace("cuda/12", "cuda/12, ./mine"))
    with pytest.raises(NotLaunchedHere, match=r"modules: cuda/12 ./mine"):
        backend_of(job)
    Path("cluster.yaml").rename(here / "config.yaml")
    (here / "config" / "oelm").mkdir(parents=True)
    (here / "config.yaml").rename(here / "config" / "oelm" / "cluster.yaml")
    assert backend_of(job).settings.modules == ("cuda/12", "./mine"), "the user's own file is theirs"


HOSTILE_FACTS = [
    {"study": "../../mine"},
    {"study": "", "runs": "/there/runs/"},
    {"study": "..", "runs": "/there/runs/.."},
    {"runs": "/etc/made"},
    {"runs": "/there/../etc/made"},
    {"cwd": "/elsewhere"},
    {"cwd": "/therefore"},
    {"venv": "-oProxyCommand=touch ran"},
    {"venv": "~/x"},
    {"venv": "/there/\x1b[2J"},
    {"folder": "there", "runs": "there/made", "cwd": "there"},
    {"surprise": "x"},
]


@pytest.mark.parametrize("change", HOSTILE_FACTS, ids=str)
def test_names_lead_nowhere_else(change, here):
    good = {"study": "made", "folder": "/there", "runs": "/there/runs/made", "cwd": "/there/project", "venv": "/venv"}
    RemoteRun.of(Job(on="ssh://host", cells=(), facts={**good, "pid": "1"}))
    with pytest.raises(LaunchError):
        RemoteRun.of(Job(on="ssh://host", cells=(), facts={**good, "pid": "1", **change}))


@pytest.mark.parametrize("on", ["ssh://-oProxyCommand=x/y", "ssh://a b/c", "ssh://host/../x", "ssh://h\x1b/x"])
def test_hosts_are_no_options(on, here, study):
    job = give(study, on=on)
    note_launch(study, job, Cluster())
    with pytest.raises(LaunchError, match="is not an address"):
        backend_of(job)


@pytest.mark.parametrize("name", ["../x/seed-0", "/etc/seed-0", "-x/seed-0", "a/../../seed-0"])
def test_a_job_of_cells_elsewhere_is_refused(name, tmp_path):
    line = json.loads(JOB_LINE.dumps(Job(on="local", cells=("a/seed-0",)), indent=None))
    for part in ({"cells": [name]}, {"named": [name]}):
        (tmp_path / "jobs.jsonl").write_text(json.dumps({**line, **part}) + "\n")
        with pytest.raises(CellError, match=r"(?s)jobs.jsonl is damaged.*is not the name of a cell"):
            read_jobs(tmp_path)


# -- Slurm -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def slurm(here, monkeypatch):
    """Commands of Slurm that write down how they are called; the queue has the task 7_0."""
    calls = here / "calls"
    (here / "bin").mkdir()
    for name in ("squeue", "scancel", "sacct", "sbatch", "scontrol", "sinfo"):
        body = "echo '7_0|PENDING||Resources'" if name == "squeue" else "echo 8" if name == "sbatch" else "true"
        (here / "bin" / name).write_text(f'#!/bin/sh\necho {name} "$@" >>{calls}\n{body}\n')
        (here / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{here / 'bin'}:{os.environ['PATH']}")
    return calls


@pytest.mark.parametrize("words", COMMANDS[:4], ids=lambda words: words[0])
def test_a_foreign_folder_asks_and_cancels_no_job_of_a_queue(words, oelm, study, slurm):
    give(study, on="slurm", facts={CELL: "7_0"})
    code, said = oelm(*words_for(words, study))
    assert code == (0 if words[0] in ("status", "logs") else 2)
    assert "was not launched from here" in said
    assert not slurm.exists()


def test_a_job_of_ones_own_is_asked_and_cancelled(oelm, study, slurm):
    note_launch(study, give(study, on="slurm", facts={CELL: "7_0"}), Cluster())
    code, said = oelm("status", study.parent)
    assert code == 0
    assert "slurm (Resources)" in said
    assert "--trust" not in said
    code, _ = oelm("stop", CELL, "--no-wait", "--runs", study.parent)
    assert code == 0
    assert slurm.read_text().splitlines()[-1] == "scancel 7_0"


@pytest.mark.parametrize("task", ["--user=ada", "7", "7_0 8_0", "7_0\n", "../../x", "7_*", ""])
def test_a_task_is_no_option_and_no_path(task, oelm, study, slurm):
    job = give(study, on="slurm", facts={CELL: task})
    note_launch(study, job, Cluster())
    for ask in (lambda: cancel(job, [CELL]), lambda: backend_of(job).logs(job, study=study, cell=CELL)):
        with pytest.raises(LaunchError, match="is not a task of Slurm"):
            ask()
    assert all(found.state is None for found in states(job).values()), "the records are shown all the same"
    assert not slurm.exists()


# -- here --------------------------------------------------------------------------------------------------------------


def test_a_foreign_folder_of_local_jobs_is_read_and_not_run(oelm, study):
    give(study, on="local")
    code, said = oelm("status", study.parent)
    assert (code, "--trust" in said) == (0, False), "there is nobody to ask"
    code, said = oelm("logs", CELL, "--runs", study.parent)
    assert (code, said) == (0, "what it left here\n")
    code, said = oelm("resume", study.parent)
    assert code == 2
    assert "local was not asked: the job of 2026-01-01T00:00:00+0000 was not launched from here" in said
    assert oelm("stop", CELL, "--runs", study.parent)[0] == 0, "a file in the folder"


def test_a_launch_is_noted_for_the_user_alone(here, study):
    job, cluster = give(study, on="local"), Cluster()
    os.umask(before := os.umask(0))
    note_launch(study, job, cluster)
    os.umask(before)
    assert launched_file() == here / "state/oelm/launched.jsonl"
    assert stat.S_IMODE(launched_file().stat().st_mode) == 0o600
    assert stat.S_IMODE(launched_file().parent.stat().st_mode) == 0o700
    line = json.loads(launched_file().read_text())
    assert line["folder"] == str(study)
    assert is_launched(job)
    assert not is_launched(Job(on="local", cells=(CELL,), time=job.time, given={"workers": 2}))


def test_what_is_launched_is_known_again_when_it_is_read(here, study):
    given = {"array_limit": 2, "sbatch": {"nodes": "1", "comment": "two w\xf6rds"}, "time": "4:00:00"}
    backend = parse_backend("slurm", given)
    job = Job(on="slurm", cells=(CELL,), arms=("baseline",), seeds=(0,), given=given, facts={CELL: "7_0"})
    _keep_job(study, job, backend, log=pytest.fail)
    (read,) = read_jobs(study)
    assert backend_of(read).options.array_limit == 2
    changed = replace(read, given={**read.given, "time": "5:00:00"})
    with pytest.raises(NotLaunchedHere):
        backend_of(changed)


def test_lines_that_were_cut_or_written_at_once_lose_none(here, study):
    jobs = [Job(on="local", cells=(CELL,), time=str(number)) for number in range(40)]
    note_launch(study, jobs[0], Cluster())
    with launched_file().open("a") as file:
        file.write('\n{"format": 1, "job": "00')
    threads = [threading.Thread(target=note_launch, args=(study, job, Cluster())) for job in jobs[1:]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(map(is_launched, jobs))


def test_where_nothing_can_be_noted_it_runs_and_says_so(here, study, monkeypatch):
    (here / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(here / "file"))
    messages, job = [], Job(on="local", cells=(CELL,))
    _keep_job(study, job, InlineBackend(), log=messages.append)
    assert read_jobs(study) == [job]
    assert not is_launched(job)
    assert "--trust" in messages[0]
    monkeypatch.setattr("sys.argv", ["oelm", "status", str(study), "--trust"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2, "one message"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setenv("HOME", str(here / "home"))
    assert launched_file() == here / "home/.local/state/oelm/launched.jsonl"


@pytest.mark.parametrize("name", ["cluster.yaml", "launched.jsonl"])
@pytest.mark.parametrize("kind", PLACED)
def test_what_lies_in_the_place_of_ones_own_files_is_said(name, kind, oelm, here, study):
    note_launch(study, give(study, on="slurm"), Cluster())
    place_in(launched_file() if name == "launched.jsonl" else Path(name), kind)
    code, said = oelm("status", study.parent)
    assert code == 0
    assert "slurm: " in said
    assert name in said


def test_a_home_that_is_only_there_is_no_error_here(here, study):
    Path("cluster.yaml").write_text("venv: ~nobody-of-this-name/venv\n")
    note_launch(study, give(study, on="slurm"), load_cluster())
    assert [backend_of(job).name for job in read_jobs(study)] == ["slurm"]
    with pytest.raises(LaunchError, match="there is no file ~nobody-of-this-name/config"):
        ssh_host(parse_address("ssh://host/lab"), Cluster(ssh=SshOptions(config="~nobody-of-this-name/config")))


def test_a_stop_request_makes_no_file_elsewhere(oelm, study):
    (study / CELL / "stop").symlink_to("../../../elsewhere")
    code, said = oelm("stop", CELL, "--no-wait", "--runs", study.parent)
    assert code == 2
    assert "stop is in the way: not a file" in said
    assert not (study.parent / "elsewhere").exists()
