"""Over ssh, with a real sshd and rsync on the loopback interface: what runs there goes on by itself, and comes back."""

import fcntl
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as parquet
import pytest

import oelm
import tiny_study
from cluster.real_sshd import real_sshd, why_no_small_disk, why_not
from made_runs import make_runs, study_of
from oelm.errors import LaunchError
from oelm.launch.backends.cluster import Cluster
from oelm.launch.backends.options import SshOptions
from oelm.launch.backends.ssh import remote, upload, venv
from oelm.launch.backends.ssh.address import parse_address
from oelm.launch.backends.ssh.backend import SshBackend
from oelm.launch.backends.ssh.fetch import fetch_records
from oelm.launch.backends.ssh.host import run_remote, says_disk_full, ssh_host
from oelm.launch.backends.ssh.remote import RemoteRun, fetch_status, stop_remote, stream_log
from oelm.launch.backends.ssh.upload import Package, find_project, sync_project
from oelm.launch.backends.ssh.venv import ensure_venv
from oelm.launch.study_run import open_run, write_study
from oelm.runs.jobs import Job
from oelm.runs.status import read_state
from oelm.study.load import load_study, study_from_dict

pytestmark = [pytest.mark.slow, pytest.mark.skipif(why_not() is not None, reason=str(why_not()))]

# Whoever builds a line for a shell from this has a file `injected` somewhere, or none of what was asked for.
ODD = 'it\'s "odd" $(touch injected) `touch injected`; touch injected & *'


@pytest.fixture(scope="module")
def sshd(tmp_path_factory):
    cache = tmp_path_factory.mktemp("cache")
    with real_sshd({"OELM_CACHE": str(cache), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}) as server:
        yield server


@pytest.fixture
def cluster(sshd):
    return Cluster(venv=sys.prefix, ssh=SshOptions(config=str(sshd.config)))


@pytest.fixture
def there(tmp_path):
    """The folder on the other machine, which is this one."""
    return tmp_path / "there" / ODD


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Where we are."""
    folder = tmp_path / "my project"
    folder.mkdir()
    (folder / "pyproject.toml").write_text("")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("OELM_CACHE", str(tmp_path / "cache"))
    return folder


class Launches:
    """Submits a study as `oelm run --on` does, without a preflight, and remembers the messages."""

    def __init__(self, address, cluster, out):
        self.backend, self.out = SshBackend(on=address, cluster=cluster), out
        self.messages = []

    def __call__(self, study, **picked):
        study_run = open_run(study, out=self.out, **picked)
        write_study(study_run)
        facts = self.backend.submit(study_run, log=self.messages.append)
        return replace(study_run.job(self.backend), facts=facts)


def eventually(what, *, seconds=300):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = what()
        if found:
            return found
        time.sleep(0.3)
    raise AssertionError(f"it did not come about in {seconds} s")


def is_alive(pid):
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def losses(folder):
    return [json.loads(line)["loss"] for line in (folder / "steps.jsonl").read_text().splitlines()]


def test_a_study_goes_on_alone_is_stopped_goes_on_and_comes_back_with_the_same_bits(
    sshd, cluster, there, project, tmp_path
):
    recipe = {"budget": {"steps": 400}, "evaluate": {"every": 200}, "checkpoint": {"every": 50, "keep": "none"}}
    data = tiny_study.write_data(tmp_path / "outside" / "sst2")
    study = load_study(tiny_study.write_study(project, tiny_study.study(data, **recipe)))
    name, out, part = "oelm-freeze/seed-0", project / "runs", {"arms": ["oelm-freeze"], "seeds": [0]}
    start = Launches(sshd.address(there), cluster, out)
    job = start(study, **part)
    assert job.on == sshd.address(there)

    def row(job):
        return next(row for row in fetch_status(job, cluster) if row.cell == name)

    sshd.stop()
    with pytest.raises(LaunchError, match=r"127\.0\.0\.1 cannot be reached"):
        fetch_status(job, cluster)
    assert is_alive(job.facts["pid"]), "it goes on without us"
    sshd.start()
    with pytest.raises(LaunchError, match="tiny is running there already; nothing was started"):
        start(study, **part)

    steps = there / "runs/tiny" / name / "steps.jsonl"
    eventually(lambda: steps.exists() and steps.stat().st_size)
    running = row(job)
    assert (running.state, running.where, running.steps) == ("running", job.on, 400)
    shown = []
    assert stream_log(job, name, follow=False, cluster=cluster, write=shown.append, log=pytest.fail) == 0
    assert "400" in "".join(shown)
    stop_remote(job, ["all"], cluster)
    eventually(lambda: not is_alive(job.facts["pid"]))
    assert row(job).state == "stopped"
    assert fetch_records(job, here=out / "tiny", models=False, cluster=cluster, log=pytest.fail) == 0
    assert 0 < len(losses(out / "tiny" / name)) < 400

    again = start(study, **part)
    eventually(lambda: not is_alive(again.facts["pid"]))
    assert row(again).state == "done", (there / "runs/tiny/run.log").read_text()
    for _ in range(2):  # twice is once
        assert fetch_records(again, here=out / "tiny", models=False, cluster=cluster, log=pytest.fail) == 1
    carried = json.loads((there / "runs/tiny/study.json").read_text())
    assert Path(carried["recipe"]["data"]["path"]).parent == there / "data"

    oelm.run(study, out=tmp_path / "local", **part)
    here, local = out / "tiny" / name, tmp_path / "local/tiny" / name
    one, other = oelm.read_record(here), oelm.read_record(local)
    assert one.status == other.status == "done"
    assert (one.test, one.evaluations, one.start) == (other.test, other.evaluations, other.start)
    assert len(one.launches) == 2
    assert losses(here) == losses(local)
    assert parquet.read_table(here / "predictions.parquet") == parquet.read_table(local / "predictions.parquet")
    assert not {"checkpoints", "lease", "stop"} & {path.name for path in here.iterdir()}
    assert oelm.load(out).records
    assert not [*tmp_path.rglob("injected"), *Path.home().glob("injected")]


def write(folder, **files):
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def files_in(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def carried(machine, there, out, study=None, *, with_oelm=False, running=()):
    there.mkdir(parents=True, exist_ok=True)
    messages = []
    study = study or {"recipe": {"model": {"name": "oelm-gpt"}, "data": {}}, "arms": {}}
    return sync_project(
        machine, study, to=str(there), out=out, with_oelm=with_oelm, running=running, log=messages.append
    ), messages


@pytest.mark.parametrize("in_git", [False, True])
def test_the_project_is_copied_without_what_is_ignored(sshd, cluster, there, project, monkeypatch, in_git):
    write(project, a_py="1", a_log="x", build__b_o="x", runs__tiny__x="x", outputs__x="x", _venv__lib="x")
    write(project, sub__secret="x", sub__c_py="2", gone_py="x")
    (project / ".gitignore").write_text("*.log\n/build/\n*.csv\n!kept.csv\n")
    (project / "sub/.gitignore").write_text("secret\n")
    (project / "odd[x]*.py").write_text("x")
    write(project, kept_csv="x", lost_csv="x")
    if in_git:
        subprocess.run(["git", "init", "-q", str(project)], check=True)
        (project / ".git/info/exclude").write_text("odd\\[x\\]\\*.py\n")
    machine = ssh_host(parse_address(sshd.address(there)), cluster)
    monkeypatch.chdir(project / "sub")
    there_now, _ = carried(machine, there, Path("../outputs"))
    copy = Path(there_now.folder).parent
    assert copy.parent == there / "project"
    assert there_now.folder == f"{copy}/sub"
    wanted = {"a.py", "gone.py", "pyproject.toml", ".gitignore", "sub/c.py", "sub/.gitignore"}
    wanted |= {"kept.csv"} if in_git else {"odd[x]*.py"}  # rsync by itself knows no exceptions
    assert files_in(copy) == wanted

    (project / "gone.py").unlink()
    write(copy, made_log="what is ignored is not removed", sub__more_py="what is not here is")
    carried(machine, there, Path("../outputs"))
    assert files_in(copy) == wanted - {"gone.py"} | {"made.log"}


def test_a_home_folder_is_no_project(tmp_path, monkeypatch):
    home = tmp_path / "home"
    write(home, work__pyproject_toml="", work__sub__x="", cluster_yaml="")
    (home / "other").mkdir()
    monkeypatch.setenv("HOME", str(home))
    assert find_project(home / "work" / "sub") == home / "work"
    assert find_project(home / "other") is None
    assert find_project(home) is None
    assert find_project(Path("/")) is None


def test_data_that_a_study_names_go_with_it(sshd, cluster, there, project, tmp_path):
    outside = tmp_path / "outside"
    write(project, _gitignore="data/\nruns/\n", data__train_csv="inside")
    write(project / "runs/first/baseline/seed-0", model__config_json="{}", checkpoints__step_pt="-")
    write(outside, model__config_json="{}", validation_csv="outside", words__tokenizer_json="{}")
    (outside / "model" / "weights.safetensors").symlink_to(outside / "validation.csv")
    study = {
        "recipe": {
            "model": {"name": str(outside / "model")},
            "data": {
                "path": {"train": "data/train.csv", "validation": str(outside / "validation.csv")},
                "tokenizer": {"name": "someone/on-the-hub", "train": None},
            },
        },
        "arms": {
            "one": {"init": "keep", "overrides": {"optimizer.lr": 0.1, "data.path": str(project / "data")}},
            "two": {"init": "keep", "overrides": {"data.tokenizer.name": "../outside/words"}},
            "three": {"init": "keep", "overrides": {"model.name": None, "model.from": "runs/first"}},
        },
        "seeds": [0],
    }
    machine = ssh_host(parse_address(sshd.address(there)), cluster)
    there_now, messages = carried(machine, there, project / "runs", study)
    recipe = there_now.study["recipe"]
    assert recipe["data"]["path"]["train"] == "data/train.csv", "a relative path means there what it means here"
    assert (Path(there_now.folder) / "data/train.csv").read_text() == "inside", "although git ignores it"
    validation = Path(recipe["data"]["path"]["validation"])
    assert validation.parent.parent == there / "data"
    assert validation.name == "validation.csv"
    assert validation.read_text() == "outside"
    model = Path(recipe["model"]["name"])
    assert model.parent == there / "data"
    assert (model / "weights.safetensors").read_text() == "outside", "links are followed"
    assert recipe["data"]["tokenizer"]["name"] == "someone/on-the-hub"
    arms = there_now.study["arms"]
    assert arms["one"]["overrides"] == {"optimizer.lr": 0.1, "data.path": f"{there_now.folder}/data"}
    assert (Path(arms["two"]["overrides"]["data.tokenizer.name"]) / "tokenizer.json").exists()
    first = Path(arms["three"]["overrides"]["model.from"])
    assert first.parent == there / "data", "what is in runs there is not written over"
    assert [path.name for path in (first / "baseline/seed-0").iterdir()] == ["model"]
    assert any("recipe.model.name is" in text and "do not mix" in text for text in messages)
    assert study["recipe"]["data"]["path"]["validation"] == str(outside / "validation.csv"), "only the copy is changed"
    assert carried(machine, there, project / "runs", study)[0] == there_now, "the same each time"


def test_the_models_that_a_study_starts_from_go_with_it(sshd, cluster, there, project):
    first = tiny_study.language_study(project, max_length=16, budget={"steps": 2})
    first["study"] = "first"
    oelm.run(study_from_dict(first), out="runs", cells=["baseline/seed-0"])
    second = tiny_study.study(tiny_study.write_data(project / "data"), model={"from": "runs/first"})
    del second["recipe"]["data"]["tokenizer"]
    study = study_from_dict({**second, "arms": {"baseline": {}, "probe": {"trains": "head"}}})
    job = Launches(sshd.address(there), cluster, project / "runs")(study, cells=["baseline/seed-0"])
    eventually(lambda: [row for row in fetch_status(job, cluster) if row.state == "done"])
    fetch_records(job, here=project / "runs/tiny", models=False, cluster=cluster, log=print)
    origin = oelm.read_record(project / "runs/tiny/baseline/seed-0").start.origin
    weights = project / "runs/first/baseline/seed-0/model/model.safetensors"
    assert origin.weights == hashlib.sha256(b"model.safetensors" + weights.read_bytes()).hexdigest()


def test_oelm_is_not_changed_below_a_study_that_is_running(sshd, cluster, there, project, tmp_path, monkeypatch):
    tree = tmp_path / "tree"
    write(tree, pyproject_toml="", src__oelm__a_py="1", docs__x_md="")
    monkeypatch.setattr(upload, "oelm_source_tree", lambda: tree)
    machine = ssh_host(parse_address(sshd.address(there)), cluster)
    assert carried(machine, there, project / "runs", with_oelm=True)[0].package.folder == f"{there}/oelm"
    (tree / "docs/x.md").write_text("of no consequence")
    carried(machine, there, project / "runs", with_oelm=True, running=["other"])
    (tree / "src/oelm/a.py").write_text("2")
    with pytest.raises(
        LaunchError, match="is not the one that other is running with there; nothing was started"
    ) as raised:
        carried(machine, there, project / "runs", with_oelm=True, running=["other"])
    assert "different there: oelm/a.py" in str(raised.value)
    assert (there / "oelm/src/oelm/a.py").read_text() == "1"
    carried(machine, there, project / "runs", with_oelm=True)
    assert (there / "oelm/src/oelm/a.py").read_text() == "2"


@pytest.mark.parametrize(
    ("change", "what", "hint"),
    [
        ({"known_hosts": "nobody"}, "the host key of 127.0.0.1 is not known", "connect once by hand"),
        ({"known_hosts": "changed"}, "the host key of 127.0.0.1 is not the one that is known", "ssh-keygen -R"),
        ({"key": "other_key"}, "authentication failed on 127.0.0.1", "without a password"),
        ({"port": True}, "127.0.0.1 cannot be reached", "ssh -F"),
        ({"more": "  NoSuchOption yes\n"}, "the connection to 127.0.0.1 was lost", "rerun the same command to resume"),
    ],
)
def test_who_cannot_be_reached_is_one_clear_message(sshd, there, project, change, what, hint):
    address = sshd.address(there)
    if change.pop("port", False):
        with socket.create_server(("127.0.0.1", 0)) as one:
            free = one.getsockname()[1]
        address = address.replace(f":{sshd.port}", f":{free}")
    other = (sshd.folder / "other_key.pub").read_text()
    (sshd.folder / "changed").write_text(f"[127.0.0.1]:{sshd.port} {other}")
    cluster = Cluster(venv=sys.prefix, ssh=SshOptions(config=str(sshd.client(**change))))
    with pytest.raises(LaunchError) as raised:
        Launches(address, cluster, project / "runs")(study_of())
    assert str(raised.value).startswith(f"{what}\n")
    for part in ("  where  ssh://", "  why    ", "  try    ", hint):
        assert part in str(raised.value)
    assert not there.exists()
    assert (sshd.folder / "nobody").read_text() == "", "no key is accepted by us"


def test_a_folder_that_holds_something_else_is_left_alone(sshd, cluster, there, project):
    write(there, project__mine_txt="mine")
    with pytest.raises(LaunchError, match="holds something else; nothing was copied"):
        Launches(sshd.address(there), cluster, project / "runs")(study_of())
    assert files_in(there) == {"project/mine.txt"}


def test_what_may_not_be_written_is_one_message(sshd, cluster, tmp_path, project):
    (tmp_path / "file").write_text("")
    with pytest.raises(LaunchError, match="the folder there cannot be used; nothing was started") as raised:
        Launches(sshd.address(tmp_path / "file" / "below"), cluster, project / "runs")(study_of())
    assert "Not a directory" in str(raised.value)


def test_an_environment_that_cannot_be_used(sshd, cluster, there, monkeypatch):
    machine = ssh_host(parse_address(sshd.address(there)), cluster)

    def refused(**change):
        with pytest.raises(LaunchError, match="; nothing was started") as raised:
            ensure_venv(machine, replace(cluster, **change), folder=str(there), package=None, log=pytest.fail)
        return str(raised.value)

    assert refused(venv="/nowhere/venv").startswith("there is no virtual environment /nowhere/venv there;")
    assert refused(venv="~/no'where").startswith("there is no virtual environment ~/no'where there;")
    assert refused(modules=("no/such module",)).startswith("the modules no/such module cannot be loaded there;")
    monkeypatch.setattr(venv, "__version__", "9.9.9")
    assert f"there it is oelm {oelm.__version__}, here it is oelm 9.9.9" in refused()


def test_a_study_is_started_once_and_what_ends_at_once_is_said(sshd, cluster, there):
    machine = ssh_host(parse_address(sshd.address(there)), cluster)

    def start(*words):
        return run_remote(machine, remote._START, str(there), "tiny", str(there), '{"study": "tiny"}', *words)

    broken = start("sh", "-c", "echo it is broken; exit 2")
    assert (broken.code, broken.last_error) == (remote._ENDED, "it is broken")
    assert start("true").code == 0, "nothing may be missing"
    running = start("sleep", "600")
    assert running.code == 0
    try:
        assert is_alive(running.stdout.strip())
        assert os.getsid(int(running.stdout)) == int(running.stdout), "in a session of its own"
        assert start("true").code == remote._RUNNING
        (there / ".oelm").touch()
        assert remote._inspect_host(machine, lambda text: None) == (str(there), ["tiny"])
    finally:
        os.kill(int(running.stdout), signal.SIGTERM)
    eventually(lambda: not is_alive(running.stdout.strip()))
    assert start("true").code == 0
    assert (there / "runs/tiny/study.json").read_text() == '{"study": "tiny"}\n'


def test_a_clock_that_differs_is_said(sshd, cluster, there, project, monkeypatch):
    now = time.time
    monkeypatch.setattr(remote.time, "time", lambda: now() + 7200)
    messages = []
    folder, running = remote._inspect_host(ssh_host(parse_address(sshd.address(there)), cluster), messages.append)
    assert (folder, running) == (str(there), [])
    assert "the clock of 127.0.0.1 is 2.0 h behind this one; its records have its times" in messages


def test_a_full_disk_there_is_one_message_and_nothing_is_started(project, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    if (why := why_no_small_disk(small)) is not None:
        pytest.skip(why)
    (project / "large.bin").write_bytes(os.urandom(4_000_000))
    with real_sshd({}, small=small) as sshd:
        cluster = Cluster(venv=sys.prefix, ssh=SshOptions(config=str(sshd.config)))
        start = Launches(sshd.address(small / "there"), cluster, project / "runs")
        with pytest.raises(LaunchError) as raised:
            start(study_of())
        left = run_remote(
            ssh_host(parse_address(start.backend.on), cluster), 'ls "$1"', str(small / "there")
        ).stdout.split()
    assert str(raised.value).startswith(f"there is no room for {project}; nothing was started\n")
    assert f"  where  {small}/there/project/my project-" in str(raised.value)
    assert any(why in str(raised.value) for why in ("No space left on device", "as on a full disk"))
    assert "  try    make room" in str(raised.value)
    assert "only 2 MB are free" in " ".join(start.messages)
    assert left == ["project"], "nothing was started"
    assert says_disk_full('rsync: [receiver] write failed on "x": Disk quota exceeded (122)')


# -- an environment that is made there -----------------------------------------------------------------------------

# Stands for a Python, and notes how it is called: installing torch takes minutes.
PYTHON = """#!/bin/bash
echo "$PIP_CONSTRAINT $*" >>"{folder}/called"
case "$1 $2 $3" in
  "-m venv --clear") rm -rf "$4"; mkdir -p "$4/bin" && cp -- "$0" "$4/bin/python" ;;
  "-P -m oelm") echo "oelm {version}" ;;
  "-m pip "*) [ ! -e "{folder}/no-network" ] || {{ echo "no network" >&2; exit 1; }} ;;
esac
"""


def test_an_environment_is_made_once(sshd, there, tmp_path, monkeypatch):
    python = tmp_path / "python"
    python.write_text(PYTHON.format(folder=tmp_path, version=oelm.__version__))
    python.chmod(0o755)
    write(there, oelm__constraints_txt="", runs__other__run_lock="")
    cluster = Cluster(ssh=SshOptions(config=str(sshd.config), python=str(python)))
    machine = ssh_host(parse_address(sshd.address(there)), cluster)

    package = Package(folder=f"{there}/oelm", file=".", fingerprint="1")

    def ready():
        (tmp_path / "called").unlink(missing_ok=True)
        made = ensure_venv(machine, cluster, folder=str(there), package=package, log=lambda text: None)
        assert made == f"{there}/.venv"
        return [line for line in (tmp_path / "called").read_text().splitlines() if " pip " in line]

    (tmp_path / "no-network").touch()
    with pytest.raises(LaunchError, match="could not be made; nothing was started") as raised:
        ready()
    assert "no network" in str(raised.value)
    (tmp_path / "no-network").unlink()
    first, second, *_ = ready()
    pip = "constraints.txt -m pip --disable-pip-version-check install -q"
    assert first == f"{pip} torch", "before anything asks for another build of it"
    assert second == f"{pip} -e .{venv._extra()}"
    assert ready() == [], "made already"

    monkeypatch.setattr(venv, "_made_from", lambda package: "something else")
    with (there / "runs/other/run.lock").open() as running:
        fcntl.flock(running, fcntl.LOCK_EX)
        with pytest.raises(LaunchError, match="another study is running in it; nothing was started"):
            ready()
    assert ready()
    package = Package(folder=str(there), file="./oelm-1-py3-none-any.whl", fingerprint="2")
    monkeypatch.undo()
    assert ready()[1].endswith(f" install -q ./oelm-1-py3-none-any.whl{venv._extra()}"), "not a version from an index"
    python.unlink()
    shutil.rmtree(there / ".venv")
    with pytest.raises(LaunchError, match=r"is not Python 3\.11 or later there; nothing was started"):
        ready()


# -- fetching ------------------------------------------------------------------------------------------------------


def job_in(folder: Path, *, on: str) -> Job:
    """The job of a study that has run in a folder there."""
    here = str(folder.parent)
    run = RemoteRun(study="made", folder=here, runs=str(folder), cwd=here, venv=f"{here}/.venv", pid="1")
    return Job(on=on, cells=(), facts=run.to_facts())


@pytest.fixture
def made(sshd, tmp_path):
    """A study that has run there, as a job."""
    folder = make_runs(tmp_path / "there", study_of(seeds=[0, 1]), examples=50, steps=10)
    return job_in(folder, on=sshd.address(tmp_path / "there"))


def test_fetching_brings_everything_but_what_belongs_there(made, cluster, tmp_path):
    there, out = Path(made.facts["runs"]), tmp_path / "runs"
    cell = "baseline/seed-0"
    write(there / cell, log_txt="log", stop="", checkpoints__x="x", lease__t__holder_json="x", model__config_json="{}")
    write(there / cell, tensorboard__events="x", _record_json_xyz="torn")
    write(there, jobs_jsonl="", run_lock="", run_log="log")
    assert fetch_records(made, here=out / "made", models=False, cluster=cluster, log=pytest.fail) == 6
    kept = {"record.json", "cell.json", "steps.jsonl", "predictions.parquet", "log.txt", "tensorboard/events"}
    assert files_in(out / "made" / cell) == kept
    brought = {path.name for path in (out / "made").iterdir() if path.is_file()}
    assert brought == {"lock.json", "run.log", "simple_baseline.json"}
    for name in kept:
        assert (out / "made" / cell / name).read_bytes() == (there / cell / name).read_bytes()
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.parquet")}
    assert fetch_records(made, here=out / "made", models=True, cluster=cluster, log=pytest.fail) == 6
    assert files_in(out / "made" / cell) == kept | {"model/config.json"}
    assert before == {path: path.stat().st_mtime_ns for path in out.rglob("*.parquet")}


def test_arms_may_have_the_names_of_files(sshd, cluster, tmp_path):
    names = {
        "model": {"init": "keep"},
        "checkpoints": {"init": "keep", "freeze": "qk"},
        "lease": {"init": "keep", "freeze": "q"},
    }
    study = study_of(arms=names, seeds=[0], compare={"baseline": "model", "metric": "accuracy"})
    folder = make_runs(tmp_path / "there", study, examples=20, steps=10)
    job = job_in(folder, on=sshd.address(tmp_path / "there"))
    for models in (False, True):
        assert (
            fetch_records(job, here=tmp_path / f"runs-{models}/made", models=models, cluster=cluster, log=pytest.fail)
            == 3
        )


def test_what_is_finished_here_is_not_overwritten(made, cluster, tmp_path):
    there, here = Path(made.facts["runs"]), make_runs(tmp_path / "runs", study_of(seeds=[0]), examples=20, steps=5)
    done, other = "baseline/seed-0", "oelm-freeze/seed-0"
    (there / other / "record.json").unlink()  # there it is not finished
    shutil.rmtree(here / "freeze-only")
    write(here / "freeze-only/seed-1", cell_json="{}", checkpoints__x="x", steps_jsonl="mine")
    (there / "freeze-only/seed-1/record.json").unlink()
    before = {name: (here / done / name).read_bytes() for name in files_in(here / done)}
    unfinished = {name: (here / other / name).read_bytes() for name in files_in(here / other)}
    floor = (here / "simple_baseline.json").read_bytes()
    messages = []
    assert fetch_records(made, here=tmp_path / "runs/made", models=False, cluster=cluster, log=messages.append) == 5
    assert before == {name: (here / done / name).read_bytes() for name in files_in(here / done)}
    assert unfinished == {name: (here / other / name).read_bytes() for name in files_in(here / other)}
    assert floor == (here / "simple_baseline.json").read_bytes()
    assert (here / "freeze-only/seed-1/steps.jsonl").read_text() == "mine", "it has a checkpoint to go on from"
    assert read_state(here / "freeze-only/seed-0") == "done"
    assert messages == [f"{done} is finished here already, and stays as it is; there it is done"]


def test_a_damaged_record_there_is_not_brought_here(made, cluster, tmp_path):
    (Path(made.facts["runs"]) / "baseline/seed-0/record.json").write_text('{"format": 1}')
    messages = []
    assert fetch_records(made, here=tmp_path / "runs/made", models=False, cluster=cluster, log=messages.append) == 5
    assert [text.split(":")[0] for text in messages] == ["baseline/seed-0 is not fetched"]


RELAY = """
import os, select, socket, sys
server = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
left = int(sys.argv[2])
while left > 0:
    for ready in select.select([0, server], [], [])[0]:
        data = os.read(0, 65536) if ready == 0 else server.recv(min(65536, max(left, 1)))
        if not data:
            sys.exit()
        if ready == 0:
            server.sendall(data)
        else:
            left -= len(data)
            os.write(1, data)
"""


def test_a_connection_that_is_lost_leaves_nothing_torn(made, sshd, cluster, tmp_path):
    """It is cut after more and more bytes."""
    there, out = Path(made.facts["runs"]), tmp_path / "runs"
    for cell in there.glob("*/seed-*"):
        (cell / "log.txt").write_bytes(os.urandom(100_000))
    (tmp_path / "relay.py").write_text(RELAY)
    seen = set()
    for limit in (2_000, 60_000, 250_000, 500_000, 10_000_000):
        more = f"  ProxyCommand {sys.executable} {tmp_path}/relay.py {sshd.port} {limit}\n"
        cut = Cluster(ssh=SshOptions(config=str(sshd.client(more=more))))
        try:
            fetch_records(made, here=out / "made", models=False, cluster=cut, log=pytest.fail)
            seen.add("whole")
        except LaunchError:
            seen.add("cut")
        for record in out.rglob("record.json"):
            for name in ("cell.json", "steps.jsonl", "predictions.parquet", "log.txt"):
                theirs = there / record.parent.relative_to(out / "made") / name
                assert (record.parent / name).read_bytes() == theirs.read_bytes()
    assert seen == {"cut", "whole"}
    assert len(list(out.rglob("record.json"))) == 6
    assert not list(out.rglob(".*")), "nothing is left of the attempts"


def test_showing_ends_with_whom_it_is_shown_to(sshd, tmp_path):
    """Ctrl-C here ends what is shown there, and nothing else."""
    file = tmp_path / "a log"
    file.write_text("first line\n")
    code = (
        "import sys; from pathlib import Path; from oelm.launch.backends.ssh.host import SshHost, stream_remote;"
        "from oelm.launch.backends.ssh.address import parse_address; from oelm.launch.backends.ssh.remote import _SHOW;"
        "machine = SshHost(address=parse_address(sys.argv[1]), config=Path(sys.argv[2]));"
        "show = lambda text: print(text, end='', flush=True);"
        "sys.exit(stream_remote(machine, _SHOW, '/', 'tail', '-f', sys.argv[3], write=show, log=show))"
    )
    words = [sys.executable, "-c", code, sshd.address(), str(sshd.config), str(file)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        while process.stdout.readline() != "first line\n":  # a profile may say something before
            assert process.poll() is None
        assert showing(file)
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(timeout=20) == 130
        finally:
            process.kill()
    eventually(lambda: not showing(file), seconds=20)


def showing(file):
    """Processes there that show a file."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[:2] == [b"tail", b"-f"] and str(file).encode() in words:
            found.append(int(folder.name))
    return found
