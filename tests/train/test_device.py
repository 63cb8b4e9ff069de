"""The device of a cell is named, and a GPU that torch cannot use is not passed over in silence."""

import json

import pytest
import torch

import oelm
import tiny_study
from oelm.errors import LaunchError
from oelm.launch.backends.dispatch import list_status
from oelm.study.load import load_study
from oelm.train import device
from oelm.train.device import check_gpu_usable, describe_device, find_gpu
from oelm.train.progress import Progress

CPU = "cpu (1 thread)" if torch.get_num_threads() == 1 else f"cpu ({torch.get_num_threads()} threads)"


@pytest.fixture(autouse=True)
def no_gpu_of_our_own(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))


@pytest.fixture(params=["dev/nvidia0", "proc/driver/nvidia/gpus/0000:01:00.0", "nvidia-smi"])
def broken(request, tmp_path):
    """A machine whose GPU shows, in one of three ways, and is of no use."""
    root = tmp_path / "machine"
    if request.param == "nvidia-smi":
        root.mkdir()
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin/nvidia-smi").write_text("#!/bin/sh\necho 'GPU 0: NVIDIA A100 (UUID: GPU-1)'\n")
        (tmp_path / "bin/nvidia-smi").chmod(0o755)
    else:
        (root / request.param).mkdir(parents=True)
    return root


def test_a_gpu_that_torch_cannot_use_is_an_error_with_the_fix(broken, monkeypatch):
    with pytest.raises(
        LaunchError, match="this machine has a GPU that torch cannot use; nothing was started"
    ) as caught:
        check_gpu_usable(broken)
    assert f"torch {torch.__version__} is a build for the CPU alone" in str(caught.value) or torch.version.cuda
    assert 'CUDA_VISIBLE_DEVICES=""' in str(caught.value)
    assert "pytorch.org" in str(caught.value)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    check_gpu_usable(broken)  # hidden on purpose


def test_a_machine_without_a_gpu_is_no_error(tmp_path):
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()
    assert find_gpu(tmp_path) is None
    check_gpu_usable(tmp_path)
    assert describe_device() == CPU


def test_plan_and_run_refuse_a_gpu_that_cannot_be_used(broken, tmp_path, monkeypatch):
    monkeypatch.setenv("OELM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(device, "find_gpu", lambda root: find_gpu(broken))
    study = load_study(tiny_study.make(tmp_path))
    for start in (
        lambda: oelm.plan(study, out=tmp_path / "runs", measure=False),
        lambda: oelm.run(study, out=tmp_path / "runs"),
        lambda: oelm.run(study, out=tmp_path / "runs", cells=["baseline/seed-0"]),
    ):
        with pytest.raises(LaunchError, match="a GPU that torch cannot use"):
            start()
    assert not (tmp_path / "runs").exists(), "nothing was started"


class Messages(Progress):
    def __init__(self):
        self.texts = []

    def on_message(self, text):
        self.texts.append(text)


@pytest.mark.slow
def test_plan_run_and_status_name_the_device_of_every_cell(tmp_path, monkeypatch):
    monkeypatch.setenv("OELM_CACHE", str(tmp_path / "cache"))
    study, out, progress = load_study(tiny_study.make(tmp_path, budget={"steps": 2})), tmp_path / "runs", Messages()
    planned = oelm.plan(study, out=out, measure=False)
    assert set(planned.devices.values()) == {CPU}
    assert str(planned).count(CPU) == 4
    assert {row["device"] for row in json.loads(json.dumps(planned.to_dict()))["cells"]} == {CPU}
    oelm.run(study, out=out, cells=["baseline/seed-0"], progress=progress)
    assert f"device: {CPU}" in progress.texts
    assert {row.cell: row.device for row in list_status(out)}["baseline/seed-0"] == CPU


def test_instructions_that_a_cpu_only_shows_are_refused_with_what_helps(monkeypatch):
    """A process that dies of them is a real one, killed by the same signal."""
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: True, raising=False)
    monkeypatch.setattr(device, "_BF16", "import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    with pytest.raises(LaunchError, match="shows instructions for bf16") as caught:
        device.check_bf16_usable()
    assert "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16" in str(caught.value)
    monkeypatch.setattr(device, "_BF16", "")
    device.check_bf16_usable()
