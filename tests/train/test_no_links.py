"""A file system without hard links, without permissions, with coarse times: sticks, cards, some network shares."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

import tiny_study
from oelm.errors import Stopped
from oelm.runs.layout import CHECKPOINTS
from oelm.runs.status import read_state
from oelm.study.load import load_study
from oelm.train.progress import Progress
from running import bits_of, run_cell

CELL = "tiny/baseline/seed-0"
_MIB = 2**20


def call(*words):
    """The output of a command of the system."""
    return subprocess.run([str(word) for word in words], check=True, capture_output=True, text=True).stdout.strip()


def mount(image, place):
    """vfat by the kernel, or where it has none, exFAT by FUSE; returns what is to be called at the end."""
    with image.open("wb") as file:
        file.truncate(128 * _MIB)
    if shutil.which("mkfs.vfat") and "vfat" in Path("/proc/filesystems").read_text():
        call("mkfs.vfat", image)
        call("mount", "-o", "loop", image, place)
        return ["umount", place], []
    if shutil.which("mkfs.exfat") and shutil.which("mount.exfat-fuse"):
        call("mkfs.exfat", image)
        device = call("losetup", "--find", "--show", image)
        try:
            call("mount.exfat-fuse", device, place)
        except subprocess.CalledProcessError:
            call("losetup", "--detach", device)
            raise
        return ["umount", place], ["losetup", "--detach", device]
    raise FileNotFoundError("neither vfat in the kernel and mkfs.vfat, nor mkfs.exfat and mount.exfat-fuse")


@pytest.fixture
def without_links(tmp_path):
    place = tmp_path / "mounted"
    place.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root may mount")
    try:
        ends = mount(tmp_path / "image", place)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"nothing without links can be mounted here: {getattr(error, 'stderr', '') or error}")
    try:
        yield place
    finally:
        for end in filter(None, ends):
            call(*end)


class StopAt(Progress):
    """Asks for a stop after an evaluation, as a time limit does."""

    def __init__(self, step):
        self.step = step

    def on_evaluation_end(self, step, metrics):
        if step == self.step:
            os.kill(os.getpid(), signal.SIGTERM)


def stop_and_resume(study, out):
    """Stopped after two checkpoints and more, and brought to its end."""
    with pytest.raises(Stopped):
        run_cell(study, arm="baseline", seed=0, out=out, progress=StopAt(8))
    assert read_state(out / CELL) == "stopped"
    assert len(list((out / CELL / CHECKPOINTS).glob("step-*"))) == 2
    assert run_cell(study, arm="baseline", seed=0, out=out).status == "done"


def test_a_cell_is_stopped_and_resumed_on_a_file_system_without_links(tmp_path, without_links):
    (without_links / "one").touch()
    with pytest.raises(OSError, match=r"not (permitted|supported|implemented)"):
        os.link(without_links / "one", without_links / "two")
    study = load_study(tiny_study.make(tmp_path))
    stop_and_resume(study, without_links / "runs")
    stop_and_resume(study, tmp_path / "usual")
    assert bits_of(without_links / "runs" / CELL) == bits_of(tmp_path / "usual" / CELL)


def test_a_cell_is_stopped_and_resumed_where_links_and_permissions_are_refused(tmp_path, monkeypatch):
    def refuse(*given, **more):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(os, "chmod", refuse)
    stop_and_resume(load_study(tiny_study.make(tmp_path)), tmp_path / "runs")
