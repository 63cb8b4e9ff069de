"""Git in a folder from somebody else: nothing runs that its configuration names, and what has changed is still seen."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from oelm.launch.backends.ssh.upload import _ignored
from oelm.runs.git import git_status
from oelm.runs.provenance import _git

LATER = 2_000_000_000  # a time that the index does not know: git has to look into the file


def git(folder: Path, *words: object) -> None:
    own = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    who = ["-c", "user.name=ada", "-c", "user.email=ada@example.org", "-c", "protocol.file.allow=always"]
    subprocess.run(["git", *who, *map(str, words)], cwd=folder, env={**os.environ, **own}, check=True)


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "file.txt").write_text("one\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    return folder


@pytest.fixture
def canary(tmp_path):
    """A program that leaves a file; whatever calls it."""
    program = tmp_path / "program"
    program.write_text(f'#!/bin/sh\necho "$0 $*" >>{tmp_path}/ran\nexit 1\n')
    program.chmod(0o755)
    return program


def look(folder: Path) -> bool | None:
    """As a record and a copy over ssh do."""
    _ignored(folder)
    state = _git(folder)
    return None if state is None else state.dirty


def test_clean_and_dirty_are_told_apart(repository, tmp_path):
    assert look(repository) is False
    os.utime(repository / "file.txt", (LATER, LATER))
    assert look(repository) is False, "touched, and the same"
    (repository / "file.txt").write_text("two\n")
    assert look(repository) is True
    assert look(tmp_path) is None


def test_code_is_what_it_was_while_records_beside_it_change(repository):
    """Else every cell that is run after a commit of records, or beside records that changed, was run by other code."""
    for folder in ("src", "evidence"):
        (repository / folder).mkdir()
        (repository / folder / "file.txt").write_text("one\n")
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "second")
    code = _git(repository / "src", ".")
    (repository / "evidence/file.txt").write_text("two\n")
    assert _git(repository / "src", ".") == code
    assert not code.dirty
    git(repository, "commit", "-qam", "third")
    assert _git(repository / "src", ".") == code != _git(repository)
    (repository / "src/file.txt").write_text("two\n")
    assert _git(repository / "src", ".").dirty
    (repository / ".git/info/exclude").write_text("/.venv\n")
    (repository / ".venv").mkdir()
    assert _git(repository / ".venv", ".") is None, "installed into somebody's repository, it is not theirs"


def test_hooks_and_monitors_do_not_run(repository, canary, tmp_path):
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    for name in ("post-index-change", "fsmonitor-watchman", "reference-transaction"):
        (hooks / name).symlink_to(canary)
        (repository / ".git/hooks" / name).symlink_to(canary)
    (tmp_path / "more").write_text(f"[core]\n\tfsmonitor = {canary}\n\thooksPath = {hooks}\n")
    git(repository, "config", "include.path", tmp_path / "more")
    os.utime(repository / "file.txt", (LATER, LATER))
    assert look(repository) is False
    assert not (tmp_path / "ran").exists()
    subprocess.run(["git", "status"], cwd=repository, capture_output=True)
    assert (tmp_path / "ran").exists(), "git by itself runs it"


@pytest.mark.parametrize("kind", ["clean", "process"])
def test_filters_of_a_repository_do_not_run(repository, canary, tmp_path, kind):
    (repository / ".git/info").mkdir(exist_ok=True)
    (repository / ".git/info/attributes").write_text("* filter=Own.name\n")
    git(repository, "config", f"filter.Own.name.{kind}", canary)
    git(repository, "config", "filter.Own.name.required", "true")
    os.utime(repository / "file.txt", (LATER, LATER))
    assert look(repository) is False
    (repository / "file.txt").write_text("two\n")
    assert look(repository) is True
    assert not (tmp_path / "ran").exists()
    subprocess.run(["git", "status"], cwd=repository, capture_output=True)
    assert (tmp_path / "ran").exists(), "git by itself runs it"


def test_a_filter_of_the_user_stays_and_a_repository_cannot_replace_it(repository, canary, tmp_path, monkeypatch):
    """Large files are kept by such a filter; without it, all of them would look changed."""
    (tmp_path / "user").write_text('[filter "upper"]\n\tclean = tr a-z A-Z\n')
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "user"))
    (repository / "file.txt").write_text("ONE\n")
    git(repository, "commit", "-qam", "second")
    (repository / ".gitattributes").write_text("*.txt filter=upper\n")
    (repository / "file.txt").write_text("one\n")
    assert look(repository) is False, "its contents are the same to the filter"
    git(repository, "config", "filter.upper.clean", canary)
    assert look(repository) is False
    assert not (tmp_path / "ran").exists()


def test_submodules_are_not_entered_and_a_moved_one_is_seen(repository, canary, tmp_path):
    outer = tmp_path / "outer"
    outer.mkdir()
    git(outer, "init", "-q")
    git(outer, "submodule", "--quiet", "add", repository, "inner")
    git(outer, "commit", "-qm", "first")
    git(outer / "inner", "config", "core.fsmonitor", canary)
    git(outer, "config", "status.submoduleSummary", "true")
    (outer / "inner/file.txt").write_text("two\n")
    assert look(outer) is False
    assert not (tmp_path / "ran").exists()
    git(outer / "inner", "-c", "core.fsmonitor=false", "commit", "-qam", "second")
    assert look(outer) is True
    assert not (tmp_path / "ran").exists()


def test_missing_objects_are_not_fetched(repository, canary, tmp_path):
    """A partial clone asks its remote for them: over a program, if its address says so."""
    (repository / "file.txt").write_text("two\n")
    blob = subprocess.run(["git", "rev-parse", "HEAD^{tree}"], cwd=repository, capture_output=True, text=True).stdout
    (repository / ".git/objects" / blob[:2] / blob.strip()[2:]).unlink()
    for name, value in {
        "core.repositoryFormatVersion": "1",
        "extensions.partialClone": "origin",
        "remote.origin.promisor": "true",
        "remote.origin.url": f"ext::{canary} %S",
        "protocol.ext.allow": "always",
        "core.sshCommand": str(canary),
    }.items():
        git(repository, "config", name, value)
    assert look(repository) is None, "it cannot be told"
    assert not (tmp_path / "ran").exists()
    subprocess.run(["git", "status"], cwd=repository, capture_output=True)
    assert (tmp_path / "ran").exists(), "git by itself runs it"


def test_settings_of_the_users_environment_still_count(repository, monkeypatch):
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "status.showUntrackedFiles")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "no")
    (repository / "new.txt").write_text("")
    assert git_status(repository) == b""


@pytest.fixture
def old_git(tmp_path, monkeypatch):
    """What a git before 2.26 does: it takes no settings from the environment, and does not say whose they are."""
    program = tmp_path / "old" / "git"
    program.parent.mkdir()
    refuse = 'for word; do test "$word" = --show-scope && exit 129; done'
    program.write_text(f'#!/bin/sh\n{refuse}\nunset GIT_CONFIG_COUNT\nexec {shutil.which("git")} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.usefixtures("old_git")
def test_an_old_git_runs_nothing_either(repository, canary, tmp_path):
    (repository / ".git/info").mkdir(exist_ok=True)
    (repository / ".git/info/attributes").write_text("* filter=own\n")
    for name in ("core.fsmonitor", "filter.own.clean"):
        git(repository, "config", name, canary)
    os.utime(repository / "file.txt", (LATER, LATER))
    assert look(repository) is False
    assert not (tmp_path / "ran").exists()


def test_a_filter_with_an_odd_name_does_not_run(repository, canary, tmp_path):
    (repository / ".git/info").mkdir(exist_ok=True)
    (repository / ".git/info/attributes").write_text("* filter=a=b\n")
    git(repository, "config", "filter.a=b.clean", canary)
    os.utime(repository / "file.txt", (LATER, LATER))
    assert look(repository) is None, "it cannot be told"
    assert not (tmp_path / "ran").exists()
