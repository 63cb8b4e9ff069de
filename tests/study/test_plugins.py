"""Plugins: what a study names is imported where the user agrees, and nowhere else."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import oelm
import tiny_study
from oelm import metrics
from oelm.data.tasks import TASKS
from oelm.errors import StudyError
from oelm.launch.backends.dispatch import find_cells
from oelm.study import optimizers, plugins
from oelm.study.load import load_study, study_from_dict
from oelm.study.plugins import AGREED, plugin_arguments, trusted_plugins_file
from running import run

PLUGIN = """
import oelm

with open({proof!r}, "a") as file:
    file.write("imported\\n")


def build(groups, lr, momentum):
    import torch

    return torch.optim.SGD(groups, lr=lr, momentum=momentum)


def error_rate(labels, predicted, classes):
    return float((labels != predicted).mean())


oelm.register_task(
    oelm.Task(name="mine", kind="classification", labels=("bad", "good"), test=("validation",), path={data!r})
)
oelm.register_metric("error_rate", error_rate, direction="lower")
oelm.register_optimizer("own_sgd", build, options={{"momentum": 0.5}})
"""
NAME = "oelm_test_plugin"


@pytest.fixture(autouse=True)
def own_tables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """What a test registers or agrees to is forgotten after it."""
    tables = (TASKS, metrics._METRICS, optimizers.OPTIMIZERS)
    before, modules = [dict(table) for table in tables], set(sys.modules)
    monkeypatch.setenv(AGREED, "")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    yield
    for table, content in zip(tables, before, strict=True):
        table.clear()
        table.update(content)
    for name in set(sys.modules) - modules:
        if name.startswith(NAME):
            del sys.modules[name]


@pytest.fixture
def proof(tmp_path: Path) -> Path:
    """Written when the plugin is imported, a line each time."""
    return tmp_path / "proof.txt"


@pytest.fixture
def plugin(tmp_path: Path, proof: Path) -> Path:
    data = tiny_study.write_data(tmp_path / "data")
    folder = tmp_path / "code"
    folder.mkdir()
    file = folder / f"{NAME}.py"
    file.write_text(PLUGIN.format(proof=str(proof), data=str(data)))
    return file


def content(**parts: object) -> dict[str, object]:
    study = tiny_study.study(
        Path("unused"),
        optimizer={"name": "own_sgd", "lr": 0.05, "options": {"momentum": 0.9}},
        budget={"steps": 4},
        evaluate={"every": 4},
        checkpoint={"every": 4, "keep": "none"},
    )
    study["recipe"]["data"] |= {"task": "mine", "path": None}
    return {
        **study,
        "plugins": [NAME],
        "compare": {"baseline": "baseline", "metric": "error_rate"},
        **parts,
    }


@pytest.fixture
def study(tmp_path: Path) -> Path:
    file = tmp_path / "study.yaml"
    file.write_text(yaml.safe_dump(content()))
    return file


def test_without_consent_nothing_is_imported(study, plugin, proof, monkeypatch):
    monkeypatch.syspath_prepend(str(plugin.parent))
    with pytest.raises(StudyError) as error:
        load_study(study)
    assert not proof.exists()
    message = str(error.value)
    assert f"the study needs the plugin {NAME}; nothing was imported" in message
    assert f"--plugin {NAME}" in message
    assert f"in Python: import {NAME}" in message, "who calls oelm.load has no --plugin"
    assert str(trusted_plugins_file()) in message


def test_by_file(study, plugin, proof):
    loaded = load_study(study, plugins=[str(plugin)])
    assert (loaded.plugins, loaded.compare.direction) == ((NAME,), "lower")
    assert load_study(study) == loaded, "agreed once, imported once"
    assert study_from_dict(json.loads(json.dumps(loaded.to_dict()))) == loaded
    assert proof.read_text() == "imported\n"


def test_by_name(study, plugin, proof, monkeypatch):
    with pytest.raises(StudyError, match="was not found"):
        load_study(study, plugins=[NAME])
    monkeypatch.syspath_prepend(str(plugin.parent))
    load_study(study, plugins=[NAME])
    assert proof.exists()
    load_study(study)
    assert plugins.consent_options([NAME]) == f" --plugin {NAME}", "as it was given, however often it is read"


def test_by_the_trust_list(study, plugin, proof, monkeypatch):
    monkeypatch.syspath_prepend(str(plugin.parent))
    trusted_plugins_file().parent.mkdir(parents=True)
    trusted_plugins_file().write_text("- another\n")
    with pytest.raises(StudyError, match="nothing was imported"):
        load_study(study)
    trusted_plugins_file().write_text(f"- another\n- {NAME}\n")
    load_study(study)
    assert proof.exists()
    assert plugins.consent_options([NAME]) == "", "commands need no more of it"


@pytest.mark.parametrize("text", ["{a: b}", "- [a]", "- a b", "a: ["])
def test_a_trust_list_that_cannot_be_read(study, text):
    trusted_plugins_file().parent.mkdir(parents=True)
    trusted_plugins_file().write_text(text)
    with pytest.raises(StudyError, match=r"trusted_plugins\.yaml"):
        load_study(study)


def test_the_current_folder_is_not_searched(study, plugin, proof, monkeypatch):
    """`python -m oelm` has it on the path: a downloaded module of a trusted name must not be taken from there."""
    monkeypatch.chdir(plugin.parent)
    trusted_plugins_file().parent.mkdir(parents=True)
    trusted_plugins_file().write_text(f"- {NAME}\n")
    for entry in ("", str(plugin.parent)):
        monkeypatch.setattr(sys, "path", [entry, *sys.path])
        with pytest.raises(StudyError, match="the current one are not searched"):
            load_study(study)
    assert not proof.exists()
    assert str(plugin.parent) in sys.path, "the path is as it was"
    monkeypatch.setenv("PYTHONPATH", str(plugin.parent))
    load_study(study)
    assert proof.exists()


def test_what_a_program_has_imported_itself_needs_no_more_consent(study, plugin, monkeypatch):
    monkeypatch.syspath_prepend(str(plugin.parent))
    __import__(NAME)
    assert load_study(study).plugins == (NAME,)
    assert plugin_arguments([NAME]) == ["--plugin", str(plugin)]
    assert os.environ[AGREED] == str(plugin), "the processes that it starts may import it as well"


@pytest.mark.parametrize(
    ("text", "why", "line"),
    [
        ("import oelm\n\nraise RuntimeError('no luck')\n", "RuntimeError: no luck", 3),
        ("def f(:\n", "SyntaxError", 1),
        ("import oelm_test_nowhere\n", "No module named 'oelm_test_nowhere'", 1),
        ("\nimport sys\nsys.exit(3)\n", "SystemExit: 3", 3),
        ("import oelm\noelm.register_metric('f1', None, direction='higher')\n", "metric 'f1' exists already", 2),
    ],
)
def test_a_plugin_that_fails_is_one_message(study, plugin, text, why, line):
    plugin.write_text(text)
    with pytest.raises(StudyError) as error:
        load_study(study, plugins=[str(plugin)])
    assert f"plugin '{NAME}' cannot be imported" in str(error.value)
    assert why in str(error.value)
    assert f"{plugin}, line {line}" in str(error.value)
    assert NAME not in sys.modules


@pytest.mark.parametrize(
    "given", ["a b", "./nowhere.py", "code/plugin.txt", "", "../x", "my-module", "~nobody-of-this-name/x.py"]
)
def test_a_plugin_that_cannot_be_one(given):
    with pytest.raises(StudyError, match="plugin"):
        plugins.agree_to_plugins([given])


@pytest.mark.parametrize("named", ["my_module", [1], ["a b"], [["a"]], ["./my_module.py"], {"a": 1}, ["os; rm"]])
def test_plugins_that_are_not_a_list_of_modules(named):
    with pytest.raises(StudyError, match=r"plugins +must be a list of modules"):
        study_from_dict({**content(), "plugins": named})


def test_names_that_a_plugin_may_register():
    with pytest.raises(StudyError) as error:
        study_from_dict({**content(), "plugins": None})
    lines = {line.split()[0]: line for line in str(error.value).splitlines()[1:]}
    for path, what in (("recipe.data.task", "unknown task 'mine'"), ("recipe.optimizer.name", "unknown optimizer")):
        assert what in lines[path]
        assert "`plugins:`" in lines[path]


def test_the_cells_of_a_study_are_listed_without_its_plugins(study, tmp_path):
    folder = tmp_path / "runs" / "tiny"
    folder.mkdir(parents=True)
    (folder / "study.json").write_text(json.dumps(content()))
    assert len(find_cells(tmp_path / "runs")) == 4
    with pytest.raises(StudyError, match="arms"):
        load_study(study, ["arms={}"], skip_plugins=True)


@pytest.mark.slow
def test_all_of_it_by_the_command_line(study, plugin, proof, tmp_path):
    env = {**os.environ, "OELM_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    refused = run("plan", study, "--no-measure", env=env, cwd=tmp_path)
    assert refused.returncode == 2
    assert f"--plugin {NAME}" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not proof.exists()
    words = ("run", study, "--seed", "0", "--workers", "2", "--plugin", "code/" + plugin.name)
    done = run(*words, env=env, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert proof.read_text().count("imported") == 3, "by us, and by the two cells in processes of their own"
    record = oelm.read_record(tmp_path / "runs/tiny/oelm-freeze/seed-0")
    assert record.status == "done"
    assert record.spec.recipe.optimizer.name == "own_sgd"
    rate = record.value("error_rate")
    assert rate == pytest.approx(1 - record.value("accuracy"))
    assert run("status", "runs", env=env, cwd=tmp_path).returncode == 0
    assert run("report", "runs", "--format", "md", env=env, cwd=tmp_path).returncode == 2
    _, _, command = done.stdout.strip().rpartition("report: oelm ")
    assert command == f"report runs/tiny --plugin ./code/{plugin.name}"
    made = run(*command.split(), "--format", "md", env=env, cwd=tmp_path)
    assert made.returncode == 0, made.stderr


def test_the_module_is_not_taken_from_beside_the_study(study, plugin, proof, tmp_path):
    """As `python -m oelm` is started in the folder of somebody else's study."""
    (tmp_path / plugin.name).write_text(plugin.read_text())
    env = {**os.environ, "PYTHONPATH": str(Path(oelm.__file__).parents[1])}
    words = [sys.executable, "-m", "oelm", "check", "study.yaml", "--plugin", NAME]
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert "are not searched" in done.stderr
    assert not proof.exists()
    words[-1] = f"./{plugin.name}"
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert proof.exists()


def test_a_job_script_has_the_consent(study, plugin, tmp_path):
    env = {**os.environ, "OELM_CACHE": str(tmp_path / "cache")}
    words = ("run", study, "--on", "slurm", "--dry-run", "--plugin", plugin)
    shown = run(*words, env=env, cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    command = next(line for line in shown.stdout.splitlines() if "--cell" in line)
    assert f" --plugin {plugin} " in command


def test_over_ssh_a_file_is_copied_and_a_package_is_named(study, plugin, monkeypatch):
    from oelm.launch.backends.ssh import upload as remote

    class Host:
        def at(self, path: str) -> str:
            return path

    class Done:
        code = 0

    copied = []
    monkeypatch.setattr(remote, "run_remote", lambda *words: Done())
    monkeypatch.setattr(remote, "upload", lambda machine, file, to, options, *, what: copied.append((file, to)))
    load_study(study, plugins=[str(plugin)])
    words = remote.upload_plugins(Host(), [NAME, "a_package.of_theirs"], to="/home/me/oelm")
    assert words == ["--plugin", f"/home/me/oelm/plugins/{NAME}.py", "--plugin", "a_package.of_theirs"]
    assert copied == [(plugin, "/home/me/oelm/plugins")]
