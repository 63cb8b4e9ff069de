"""One protocol for every backend: options from one field, jobs that make their backend again, a check before all."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

import tiny_study
from made_runs import make_runs, study_of
from oelm.cli.main import main
from oelm.errors import LaunchError, StudyError
from oelm.launch.backends.base import Backend, LocalBackend, RemoteBackend
from oelm.launch.backends.cluster import Cluster, activation_script, load_cluster
from oelm.launch.backends.dispatch import list_status, request_stop, select_cells
from oelm.launch.backends.options import cli_fields, option
from oelm.launch.backends.registry import BACKENDS, backend_of, backend_options, parse_backend
from oelm.launch.backends.slurm.options import SlurmOptions
from oelm.launch.backends.workers import InlineBackend
from oelm.launch.launched import note_launch
from oelm.launch.run import submit_study
from oelm.launch.study_run import open_run
from oelm.runs.jobs import append_job, read_jobs
from oelm.study.load import load_study, study_from_dict

NEW = {"qos": "high", "mem": "16G", "constraint": "a100"}


@pytest.fixture
def oelm(monkeypatch, capsys, tmp_path):
    """`oelm WORDS` in this process, in an empty folder: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OELM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))

    def call(*words):
        monkeypatch.setattr("sys.argv", ["oelm", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, *capsys.readouterr()

    return call


def test_every_backend_implements_the_protocol():
    assert set(BACKENDS) == set(backend_options()) == set(Cluster().options), "options, cluster.yaml and --on agree"
    for name, backend in {**BACKENDS, "inline": InlineBackend}.items():
        assert issubclass(backend, LocalBackend) != issubclass(backend, RemoteBackend), name
        assert not backend.__abstractmethods__, name
        assert issubclass(backend, Backend)


@pytest.mark.parametrize("name", NEW)
def test_an_option_of_sbatch_is_one_field(name, oelm, tmp_path):
    """Command line, help, script, cluster.yaml, check and jobs.jsonl all follow from it."""
    study = tiny_study.make(tmp_path)
    assert f"--{name}" in oelm("run", "--help")[1]
    code, script, _ = oelm("run", study, "--on", "slurm", f"--{name}", NEW[name], "--dry-run")
    assert (code, f"#SBATCH --{name}={NEW[name]}\n" in script) == (0, True)
    (tmp_path / "cluster.yaml").write_text(f"slurm: {{{name}: other}}\n")
    assert f"#SBATCH --{name}=other\n" in oelm("run", study, "--on", "slurm", "--dry-run")[1]
    given = oelm("run", study, "--on", "slurm", f"--{name}", NEW[name], "--dry-run")[1]
    assert f"#SBATCH --{name}={NEW[name]}\n" in given, "what is given counts more"
    code, _, told = oelm("run", study, "--on", "slurm", f"--{name}", "a\n#SBATCH --uid=0", "--dry-run")
    assert (code, f"--{name}: must have no quotation marks" in told) == (2, True)
    code, _, told = oelm("run", study, f"--{name}", NEW[name])
    assert (code, f"--{name} {NEW[name]} does not apply to --on local" in told) == (2, True)
    with pytest.raises(LaunchError, match=f"--sbatch {name}: has an option of its own: --{name}"):
        parse_backend("slurm", {"sbatch": {name: "x"}})
    job = open_run(load_study(study), out=tmp_path / "runs").job(parse_backend("slurm", {name: NEW[name]}))
    append_job(tmp_path / "runs/tiny", job)
    (read,) = read_jobs(tmp_path / "runs/tiny")
    assert read == job
    note_launch(tmp_path / "runs/tiny", job, Cluster())
    assert getattr(backend_of(read).options, name) == NEW[name]


@dataclass(frozen=True, kw_only=True)
class Extended(SlurmOptions):
    reservation: str | None = option("Reservation.", is_directive=True)


def test_the_next_option_is_one_field_as_well():
    assert Extended.resolve({"reservation": "a"}, defaults=Extended(mem="1G")).directives() == {
        "mem": "1G",
        "reservation": "a",
    }
    assert "reservation" in {one.name for one in cli_fields(Extended)}
    with pytest.raises(LaunchError, match="--reservation: must have no quotation marks"):
        Extended.resolve({"reservation": "a'"})
    with pytest.raises(LaunchError, match="--sbatch reserv: has an option of its own: --reservation"):
        Extended.resolve({"sbatch": {"reserv": "a"}})


def test_options_are_grouped_by_backend(oelm):
    _, shown, _ = oelm("run", "--help")
    groups = [line for line in shown.splitlines() if line and not line.startswith((" ", "Usage"))]
    assert groups == [
        "Arguments:",
        "Options:",
        "Options of --on local and ssh:",
        "Options of --on torchrun:",
        "Options of --on slurm:",
    ]
    assert "--config" not in shown, "what only cluster.yaml can say"


def test_a_cell_that_is_run_by_name_does_not_depend_on_cluster_yaml(tmp_path, monkeypatch):
    """A task of Slurm may start days after somebody has begun to edit the file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cluster.yaml").write_text("slurm: [")
    study_run = open_run(load_study(tiny_study.make(tmp_path)), out=tmp_path / "runs", cells=["baseline/seed-0"])
    assert parse_backend("local", {}).is_inline(study_run)
    with pytest.raises(LaunchError, match="is not YAML"):
        parse_backend("slurm", {})


def test_a_number_in_cluster_yaml_is_good_for_memory(tmp_path):
    (tmp_path / "cluster.yaml").write_text("slurm: {mem: 16000}\n")
    assert load_cluster(tmp_path, tmp_path / "none").slurm.mem == "16000"


def test_one_script_enters_an_environment():
    assert activation_script([], None) == ""
    assert activation_script(["a b"], "/my venv", no_modules=80, no_venv=81).splitlines() == [
        "command -v module >/dev/null || . /etc/profile",
        "module load 'a b' || exit 80",
        ". '/my venv/bin/activate' || exit 81",
    ]


# -- preflight before every backend -------------------------------------------------------------------------------


class Elsewhere(RemoteBackend):
    name = "slurm"
    submitted = 0

    @property
    def options(self):
        return SlurmOptions()

    def submit(self, study_run, *, log):
        type(self).submitted += 1
        return {cell: "1_0" for stage in study_run.stages for cell in map(str, stage)}


@pytest.fixture
def elsewhere(monkeypatch, tmp_path):
    monkeypatch.setenv("OELM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(Elsewhere, "submitted", 0)
    return Elsewhere(on="slurm")


def test_a_treatment_that_does_not_fit_is_refused_before_anything_is_submitted(elsewhere, tmp_path):
    content = tiny_study.study(tiny_study.write_data(tmp_path / "data"))
    content["arms"]["deep"] = {"init": "orthogonal", "freeze": "qk", "layers": "0-5"}
    study_run = open_run(study_from_dict(content), out=tmp_path / "runs")
    with pytest.raises(StudyError, match="arm 'deep' does not fit the model"):
        submit_study(study_run, elsewhere, log=pytest.fail)
    assert elsewhere.submitted == 0
    assert not (tmp_path / "runs").exists(), "nothing was written"


def test_data_that_are_only_there_are_one_line_and_no_obstacle(elsewhere, tmp_path):
    study = study_from_dict(tiny_study.study(tmp_path / "only-there"))
    messages = []
    job = submit_study(open_run(study, out=tmp_path / "runs"), elsewhere, log=messages.append)
    assert elsewhere.submitted == 1
    assert len(job.cells) == 4
    assert len(messages) == 1
    assert messages[0].startswith("baseline, oelm-freeze: not checked")
    assert "only-there" in messages[0]


def test_what_fits_is_submitted_without_a_word(elsewhere, tmp_path):
    study_run = open_run(load_study(tiny_study.make(tmp_path)), out=tmp_path / "runs", arms=["baseline"], seeds=[0])
    job = submit_study(study_run, elsewhere, log=pytest.fail)
    assert job.cells == ("baseline/seed-0",)
    assert json.loads((tmp_path / "runs/tiny/jobs.jsonl").read_text())["given"] == {}


def test_stopping_and_status_do_not_need_a_backend_that_is_gone(elsewhere, tmp_path, monkeypatch):
    """Slurm is not installed here: cells are asked to stop by their files, and what is in the folder is shown."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    submit_study(open_run(load_study(tiny_study.make(tmp_path)), out=Path("runs")), elsewhere, log=pytest.fail)
    messages = []
    assert {row.state for row in list_status(Path("runs"), log=messages.append)} == {"pending"}
    assert messages == []
    assert len(request_stop(select_cells(Path("runs"), ["all"]))) == 4
    assert Path("runs/tiny/baseline/seed-0/stop").exists()


def test_only_cells_at_or_below_a_folder_are_meant(tmp_path):
    runs = make_runs(tmp_path / "runs", study_of(seeds=[0, 1]), examples=20, steps=5)
    assert len(select_cells(tmp_path / "runs", ["all"])) == 6
    assert [one.cell for one in select_cells(runs / "baseline", ["all"])] == ["baseline/seed-0", "baseline/seed-1"]
    (one,) = list_status(runs / "baseline" / "seed-1")
    assert (one.study, one.cell, one.state) == ("made", "baseline/seed-1", "done")
