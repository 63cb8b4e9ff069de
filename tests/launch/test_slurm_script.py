"""The job script is this text, and nothing that a user says makes another one of it; and what needs no real Slurm."""

import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oelm.errors import LaunchError
from oelm.launch.backends.cluster import Cluster, load_cluster
from oelm.launch.backends.options import LocalOptions, SshOptions, TorchrunOptions
from oelm.launch.backends.slurm.options import SlurmOptions, slurm_seconds
from oelm.launch.backends.slurm.queue import SlurmTask, cancel, render_scripts, states, submit
from oelm.launch.backends.slurm.script import Submission, render
from oelm.runs.jobs import Job

CELLS = ("baseline/tune/optimizer.lr=0.0001/seed-100", "baseline/seed-0", "oelm-freeze/seed-0")
PLACES = {"study": Path("runs/tiny/study.json"), "out": Path("runs"), "folder": Path("runs/tiny")}


def script(*, cells=CELLS, name="tiny", cluster=None, workdir=Path("/shared"), places=PLACES, **options):
    cluster = cluster or Cluster()
    made = SlurmOptions.resolve(options, defaults=cluster.slurm)
    given = Submission(name=name, options=made, cluster=cluster, workdir=workdir, **places)
    return render(given, cells)


def directives(text):
    """What sbatch takes from a script: options of the lines before the first command, by its own splitting in words."""
    found = []
    for line in text.splitlines():
        if line.startswith("#SBATCH"):
            found += shlex.split(line.removeprefix("#SBATCH"), comments=True)
        elif line.strip() and not line.startswith("#"):
            return found
    raise AssertionError("no command")


def test_the_script_is_this_text():
    cluster = Cluster(
        venv="/shared/envs/oelm",
        modules=("python/3.11", "cuda/12"),
        slurm=SlurmOptions(partition="cpu", account="lab", gres="gpu:1", mem="8G", sbatch={"exclusive": ""}),
    )
    made = script(
        cluster=cluster,
        workdir=Path("/shared/ada/100% my own"),
        partition="gpu",
        time="4:00:00",
        array_limit=2,
        grace=300,
        mem="16G",
        sbatch={"comment": "two words # not one"},
    )
    assert made == (Path(__file__).parent / "slurm_array.sh").read_text()
    assert directives(made)[2] == "--output=/shared/ada/100%% my own/runs/tiny/slurm/%A_%a.out"
    assert directives(made)[-1] == "--comment=two words # not one"
    assert subprocess.run(["bash", "-n"], input=made, text=True, capture_output=True).stderr == ""


def test_without_a_cluster_file_the_python_that_launches_is_called():
    made = script()
    assert f"\n{shlex.quote(sys.executable)} -P -m oelm run runs/tiny/study.json --cell" in made
    assert "module" not in made
    assert "activate" not in made
    assert "#SBATCH --signal=B:USR1@120\n" in made
    assert "#SBATCH --array=0-2\n" in made


# -- what the shell in the task does ----------------------------------------------------------------------------------


def play(tmp_path, worker, *, signal=None):
    """Run a script as a task, with `worker` in place of oelm. Returns the exit code and what was called."""
    (tmp_path / "bin").mkdir()
    calls = tmp_path / "calls"
    for name, body in {"oelm": worker, "scontrol": f'echo scontrol "$@" >>{calls}'}.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "bin" / "activate").write_text("")
    made = script(cluster=Cluster(venv=str(tmp_path)), workdir=tmp_path)
    env = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "CALLS": str(calls)}
    env |= {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "1"}
    (tmp_path / "script").write_text(made)
    said = tmp_path / "said"
    with said.open("w") as file:
        task = subprocess.Popen(["bash", str(tmp_path / "script")], stderr=file, env=env)
    if signal is not None:
        while not calls.exists():
            assert task.poll() is None
        os.kill(task.pid, signal)
    ended = task.wait(timeout=20)
    assert said.read_text() == ""
    return ended, calls.read_text().splitlines()


STARTED = 'echo oelm "$@" >>"$CALLS"'
LISTENS = f"trap 'echo told >>$CALLS; exit 138' USR1; trap 'echo told >>$CALLS; exit 143' TERM; {STARTED}"
CALLED = "oelm run runs/tiny/study.json --cell baseline/seed-0 --out runs"


@pytest.mark.parametrize("code", [0, 1, 2])
def test_a_task_ends_as_its_cell_does(tmp_path, code):
    assert play(tmp_path, f"{STARTED}; exit {code}") == (code, [CALLED])


def test_a_task_that_is_warned_of_its_limit_requeues_itself_once_the_cell_has_ended(tmp_path):
    waits = f"{LISTENS}; while true; do sleep 0.1; done"
    assert play(tmp_path, waits, signal=10) == (138, [CALLED, "told", "scontrol requeue 7_1"])


def test_a_cell_that_is_done_when_it_is_warned_is_not_requeued(tmp_path):
    assert play(tmp_path, f"trap '' USR1; {STARTED}; sleep 1; exit 0", signal=10) == (0, [CALLED])


def test_a_task_that_is_ended_is_not_requeued(tmp_path):
    waits = f"{LISTENS}; while true; do sleep 0.1; done"
    assert play(tmp_path, waits, signal=15) == (143, [CALLED, "told"])


# -- what users say ---------------------------------------------------------------------------------------------------

EVIL = [
    "a\n#SBATCH --uid=0",
    "a\r#SBATCH --uid=0",
    "a --uid=0",
    "$(touch x)",
    "`x`",
    "';x",
    '"',
    "\\",
    "#",
    "%",
    "\u2028x",
]
anything = st.one_of(st.sampled_from(EVIL), st.text(min_size=1, max_size=30))


@settings(max_examples=200, deadline=None)
@given(
    key=st.one_of(st.sampled_from(["mem", "comment", "arr", "m\n", "out"]), st.text(min_size=1, max_size=10)),
    values=st.fixed_dictionaries(dict.fromkeys(("partition", "account", "gres", "value", "name", "folder"), anything)),
)
def test_no_value_becomes_another_option(key, values):
    """The options that sbatch reads are ours and the one that was named, whatever the text; or it is refused."""
    places = {**PLACES, "folder": Path("runs") / values["folder"]}
    options = {name: values[name] for name in ("partition", "account", "gres")}
    try:
        made = script(name=values["name"], places=places, sbatch={key: values["value"]}, **options)
    except LaunchError:
        return
    named = {word.partition("=")[0]: word.partition("=")[2] for word in directives(made)}
    ours = ["job-name", "array", "output", "open-mode", "requeue", "signal", "partition", "account", "gres", key]
    assert list(named) == [f"--{name}" for name in ours]
    assert {name: named[f"--{name}"] for name in options} == options
    assert named[f"--{key}"] == values["value"]
    assert named["--job-name"] == values["name"]
    place = str(Path("/shared") / places["folder"]).replace("%", "%%")
    assert named["--output"] == f"{place}/slurm/%A_%a.out"


@settings(max_examples=40, deadline=None)
@given(cells=st.lists(st.one_of(st.sampled_from(EVIL), st.text(min_size=1)), min_size=1, max_size=5))
def test_a_name_is_one_word_of_the_shell(cells):
    try:
        made = script(cells=cells, workdir=Path("/shared/$(touch x) '"))
    except LaunchError:
        assert any(not cell.isprintable() or "\\" in cell for cell in cells)
        return
    lines = made.split("cell=")[0] + "printf '%s\\n' \"${cells[@]}\""
    done = subprocess.run(["bash"], input=lines, text=True, capture_output=True)
    assert done.stderr == ""
    assert done.stdout.splitlines() == cells


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"partition": ""}, "--partition: is empty"),
        ({"partition": "a\n#SBATCH --uid=0"}, "--partition: must have no"),
        ({"account": "my'lab"}, "--account: must have no quotation marks"),
        ({"time": "tomorrow"}, "--time: invalid duration, such as 90 (minutes), 4:00:00"),
        ({"time": "2:00"}, "--time: must be longer than the 120 s that a cell has for its checkpoint"),
        ({"grace": 0}, "--grace: must be from 1 to 65535, got 0"),
        ({"array_limit": 0}, "--array-limit: must be 1 or more, got 0"),
        ({"sbatch": {"mem ory": "1"}}, "--sbatch: 'mem ory' is not the name of an option"),
        ({"sbatch": {"Mem": "1"}}, "--sbatch: 'Mem' is not the name of an option"),
        ({"sbatch": {"time": "1"}}, "--sbatch time: has an option of its own: --time"),
        ({"sbatch": {"array": "0-9"}}, "--sbatch array: --array is set by oelm"),
        ({"sbatch": {"outp": "x"}}, "--sbatch outp: --output is set by oelm"),
        ({"sbatch": {"wrap": "rm"}}, "--sbatch wrap: --wrap cannot be used here"),
        ({"sbatch": {"comment": "a\tb"}}, "--sbatch comment: must have no quotation marks"),
    ],
)
def test_a_bad_option_is_refused(options, told):
    with pytest.raises(LaunchError, match="nothing was submitted") as caught:
        script(**options)
    assert told in str(caught.value)


def test_all_bad_options_are_told_at_once():
    with pytest.raises(LaunchError) as caught:
        script(time="soon", gres='"', sbatch={"wait": ""})
    assert all(name in str(caught.value) for name in ("--time", "--gres", "--sbatch wait"))


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("90", 5400),
        ("1:30", 90),
        ("4:00:00", 14400),
        ("2-12", 216000),
        ("1-0:30", 88200),
        ("1-0:0:5", 86405),
        ("0", float("inf")),
        ("UNLIMITED", float("inf")),
        ("", None),
        ("1:2:3:4", None),
        ("-5", None),
        ("1h", None),
        ("9" * 5000, None),
    ],
)
def test_times_are_read_as_slurm_reads_them(text, number):
    assert slurm_seconds(text) == number


# -- cluster.yaml -----------------------------------------------------------------------------------------------------

WHOLE = """\
venv: /shared/envs/oelm
modules: [python/3.11, cuda/12]
slurm:
  partition: gpu
  account: lab
  time: "4:00:00"
  gres: gpu:1
  array_limit: 8
  mem: 16G
  qos: high
  constraint: a100
  grace: 60
  sbatch: {nodes: 1}
local: {workers: 3}
torchrun: {nproc: 4, interface: eth0}
ssh:
  config: ~/.ssh/lab_config
  python: python3.11
  workers: 2
"""


@pytest.fixture
def folders(tmp_path):
    (tmp_path / "project").mkdir()
    (tmp_path / "user").mkdir()
    return tmp_path / "project", tmp_path / "user"


def test_every_field_of_a_cluster_file_is_read(folders):
    project, user = folders
    (project / "cluster.yaml").write_text(WHOLE)
    slurm = SlurmOptions(
        partition="gpu",
        account="lab",
        time="4:00:00",
        gres="gpu:1",
        array_limit=8,
        mem="16G",
        qos="high",
        constraint="a100",
        grace=60,
        sbatch={"nodes": "1"},
    )
    ssh = SshOptions(config="~/.ssh/lab_config", python="python3.11", workers=2)
    assert load_cluster(project, user) == Cluster(
        venv="/shared/envs/oelm",
        modules=("python/3.11", "cuda/12"),
        slurm=slurm,
        ssh=ssh,
        local=LocalOptions(workers=3),
        torchrun=TorchrunOptions(nproc=4, interface="eth0"),
    )


def test_a_field_of_the_project_wins_over_one_of_the_user(folders, monkeypatch):
    project, user = folders
    (project / "cluster.yaml").write_text(
        "modules: [a]\nslurm: {partition: mine, sbatch: {exclusive: '', nodes: 2}}\nssh:\n"
    )
    (user / "cluster.yaml").write_text(WHOLE)
    both = load_cluster(project, user)
    assert (both.venv, both.modules) == ("/shared/envs/oelm", ("a",))
    assert (both.slurm.partition, both.slurm.account) == ("mine", "lab")
    assert both.slurm.sbatch == {"exclusive": "", "nodes": "2"}
    assert both.ssh.workers == 2, "a heading with nothing below it says nothing"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(user.parent / "config"))
    (user.parent / "config").mkdir()
    user.rename(user.parent / "config" / "oelm")
    assert load_cluster(project) == both


@pytest.mark.parametrize("text", [None, "", "# nothing yet\n", "slurm:\n"])
def test_without_a_cluster_file_nothing_is_assumed(folders, text):
    project, user = folders
    if text is not None:
        (project / "cluster.yaml").write_text(text)
    assert load_cluster(project, user) == Cluster()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("slurm: {partitoin: gpu}", "slurm.partitoin  unknown field; did you mean 'partition'?"),
        ("moduls: [a]", "moduls  unknown field; did you mean 'modules'?"),
        ("ssh: {worker: 2}", "ssh.worker  unknown field; did you mean 'workers'?"),
        ("slurm: {time: 4:00:00}", "slurm.time  must be in quotation marks, such as '4:00:00', got 14400"),
        ("slurm: {time: soon}", "slurm.time  invalid duration"),
        ("slurm: {array_limit: many}", "slurm.array_limit  must be a valid integer, got 'many'"),
        ("slurm: {array_limit: 0}", "slurm.array_limit  must be 1 or more, got 0"),
        ("slurm: {sbatch: {exclusive: true}}", 'must be a text or an integer ("" for an option without a value)'),
        ("slurm: {sbatch: {output: x}}", "slurm.sbatch.output  --output is set by oelm"),
        ('slurm: {account: "a\\n#SBATCH --uid=0"}', "slurm.account  must have no quotation marks"),
        ("modules: python", "modules  must be"),
        ('venv: "a\\nb"', "venv  has a control character"),
        ("- venv", "is not a mapping"),
        ("slurm: [", "is not YAML"),
    ],
)
def test_a_typo_is_one_message_with_file_and_field(folders, text, told):
    project, user = folders
    (user / "cluster.yaml").write_text(text)
    with pytest.raises(LaunchError) as caught:
        load_cluster(project, user)
    assert str(user / "cluster.yaml") in str(caught.value)
    assert told in str(caught.value)


def test_all_problems_of_a_file_are_told_at_once(folders):
    project, user = folders
    (project / "cluster.yaml").write_text("slurm: {partitoin: gpu, time: 90}\nvenv: 3\n")
    with pytest.raises(LaunchError, match="has 3 problems"):
        load_cluster(project, user)


# -- without Slurm, and with commands that stand in for it -------------------------------------------------------------

STAGES = [CELLS[:1], CELLS[1:]]


def launch(stages=STAGES, *, workdir, call=submit, **options):
    made = SlurmOptions.resolve(options)
    given = Submission(name="tiny", options=made, cluster=Cluster(), workdir=workdir, **PLACES)
    return call(given, stages)


@pytest.fixture
def no_slurm(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))


def test_without_slurm_nothing_is_done(no_slurm, tmp_path):
    with pytest.raises(LaunchError, match="there is no Slurm here") as caught:
        launch(workdir=tmp_path)
    assert "--on local" in str(caught.value)
    assert not (tmp_path / "runs").exists()
    job = Job(on="slurm", cells=CELLS, facts={cell: f"7_{index}" for index, cell in enumerate(CELLS)})
    assert states(job) == {}, "nothing wrong is said"
    with pytest.raises(LaunchError, match="there is no Slurm here"):
        cancel(job, CELLS)


def test_scripts_can_be_looked_at_without_slurm(no_slurm, tmp_path):
    first, second = launch(workdir=tmp_path, call=render_scripts)
    assert first == script(cells=CELLS[:1], workdir=tmp_path)
    assert second == script(cells=CELLS[1:], workdir=tmp_path)
    assert not (tmp_path / "runs").exists()


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """Make commands that stand in for those of Slurm; returns the file of their calls."""
    folder, calls = tmp_path / "bin", tmp_path / "calls"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def make(**bodies):
        for name, body in bodies.items():
            (folder / name).write_text(f'#!/bin/bash\nPATH=/usr/bin:/bin\necho {name} "$@" >>{calls}\n{body}\n')
            (folder / name).chmod(0o755)
        return calls

    return make


NUMBERS = "n=$(grep -c ^sbatch {calls}); echo $((100 + n))"


def waiting(calls):
    """What each call of sbatch was told to wait for."""
    called = [line for line in calls.read_text().splitlines() if line.startswith("sbatch")]
    return [line.partition("--dependency=")[2].split(" ")[0] for line in called]


def test_stages_wait_for_each_other_and_large_ones_are_divided(commands, tmp_path):
    calls = tmp_path / "calls"
    commands(scontrol="echo 'MaxArraySize            = 2'", sbatch=NUMBERS.format(calls=calls))
    cells = [f"baseline/seed-{number}" for number in range(5)]
    tasks = launch([cells[:3], cells[3:]], workdir=tmp_path)
    assert tasks == dict(zip(cells, ["101_0", "101_1", "102_0", "103_0", "103_1"], strict=True))
    place = tmp_path / "runs" / "tiny" / "slurm"
    assert sorted(path.name for path in place.iterdir()) == ["101.sbatch", "102.sbatch", "103.sbatch"]
    assert (place / "102.sbatch").read_text() == script(cells=cells[2:3], workdir=tmp_path)
    waits = waiting(calls)
    assert waits == ["", "", "afterany:101:102"]
    calls.unlink()
    launch([cells[:3], cells[3:]], workdir=tmp_path, array_limit=1)
    waits = waiting(calls)
    assert waits == ["", "afterany:101", "afterany:101:102"], "a limit holds for all arrays together"


def test_what_the_user_says_counts_more_than_the_environment(commands, tmp_path, monkeypatch):
    seen = tmp_path / "seen"
    commands(sbatch=f"env | grep -E '^(SBATCH|SQUEUE)' | sort >{seen}; echo 1")
    for name in ("SBATCH_PARTITION", "SBATCH_ACCOUNT", "SBATCH_TIMELIMIT", "SBATCH_NO_REQUEUE", "SQUEUE_FORMAT"):
        monkeypatch.setenv(name, "other")
    launch(workdir=tmp_path, partition="gpu", time="90")
    assert seen.read_text() == "SBATCH_ACCOUNT=other\n", "nothing else was said of the account"


def test_nothing_stays_half_submitted(commands, tmp_path):
    calls = tmp_path / "calls"
    fails = 'if [ $n = 2 ]; then echo "sbatch: error: Batch job submission failed: Disk quota" >&2; exit 1; fi'
    commands(sbatch=NUMBERS.format(calls=calls).replace("; echo", f"; {fails}; echo"), scancel="")
    with pytest.raises(LaunchError, match="Slurm took none of the cells") as caught:
        launch(workdir=tmp_path)
    assert "Batch job submission failed: Disk quota" in str(caught.value)
    assert "--dry-run" in str(caught.value)
    assert calls.read_text().splitlines()[-1] == "scancel 101"
    assert not list((tmp_path / "runs/tiny/slurm").glob("new*"))
    commands(scancel="echo 'scancel: error: Unable to contact slurm controller' >&2; exit 1")
    calls.unlink()
    with pytest.raises(LaunchError, match="does not give it back") as caught:
        launch(workdir=tmp_path)
    assert "scancel 101" in str(caught.value)


def test_a_bad_option_submits_nothing(commands, tmp_path):
    calls = commands(sbatch="echo 1")
    with pytest.raises(LaunchError, match="nothing was submitted"):
        launch(workdir=tmp_path, time="soon")
    assert not calls.exists()
    assert not (tmp_path / "runs").exists()


JOB = Job(on="slurm", cells=("a", "b", "c", "d"), facts={"a": "7_0", "b": "7_1", "c": "8_0", "d": "8_1"})
QUEUE = r"printf '7_0|RUNNING|n1|None\n7_1|PENDING||Resources | more\n8_0|TIMEOUT|n2|TimeLimit\n'"


def test_what_slurm_knows_of_a_cell(commands):
    calls = commands(squeue=QUEUE, sacct=r"printf '8_1|CANCELLED by 0|None assigned\n8_[2-4]|PENDING|\n'")
    assert states(JOB) == {
        "a": SlurmTask(state="running", node="n1"),
        "b": SlurmTask(state="queued", reason="Resources | more"),
        "c": SlurmTask(node="n2", reason="TIMEOUT"),
        "d": SlurmTask(reason="CANCELLED"),
    }
    assert calls.read_text().splitlines() == [
        "squeue -h -r -t all -j 7,8 -o %i|%T|%N|%r",
        "sacct -n -P -X -j 8 -o JobID,State,NodeList",
    ]


def test_slurm_that_keeps_no_accounts_or_has_forgotten_is_enough(commands):
    commands(
        squeue="echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1",
        sacct="echo 'Slurm accounting storage is disabled' >&2; exit 1",
    )
    assert states(JOB) == {cell: SlurmTask() for cell in JOB.cells}
    cancel(JOB, JOB.cells)


def test_slurm_that_does_not_answer_is_said_to(commands):
    commands(squeue="echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1")
    assert states(JOB)["a"] == SlurmTask(reason="Slurm does not say where the cells stand")
    with pytest.raises(LaunchError, match="Unable to contact slurm controller"):
        cancel(JOB, ["a"])


def test_only_tasks_that_have_not_ended_are_cancelled(commands):
    calls = commands(squeue=QUEUE, scancel="")
    cancel(JOB, ["b", "c", "d", "e"])
    assert calls.read_text().splitlines()[-1] == "scancel 7_1"
    commands(scancel="echo 'scancel: error: Access denied' >&2; exit 1")
    with pytest.raises(LaunchError, match="did not cancel") as caught:
        cancel(replace(JOB, cells=("a",)), ["a"])
    assert "Access denied" in str(caught.value)
