"""Provenance: on which code, versions and machine a cell was made. Imports no torch by itself."""

import contextlib
import os
import platform
import resource
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Self

from oelm.facts import Count
from oelm.masking import mask_secrets
from oelm.runs.git import git_output, git_status
from oelm.version import __version__

_PACKAGES = ("torch", "transformers", "tokenizers", "accelerate", "safetensors", "numpy", "pyarrow")

ENVIRONMENT = (
    "CUDA_VISIBLE_DEVICES",
    "CUBLAS_WORKSPACE_CONFIG",
    "GLOO_SOCKET_IFNAME",
    "GOMP_SPINCOUNT",
    "HF_HUB_OFFLINE",
    "LOCAL_RANK",
    "MKL_NUM_THREADS",
    "NCCL_SOCKET_IFNAME",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS",
    "OMP_WAIT_POLICY",
    "PYTHONHASHSEED",
    "RANK",
    "SLURM_ARRAY_JOB_ID",
    "SLURM_ARRAY_TASK_ID",
    "SLURM_CPUS_PER_TASK",
    "SLURM_JOB_ID",
    "SLURM_JOB_NODELIST",
    "SLURM_JOB_PARTITION",
    "SLURM_RESTART_COUNT",
    "WORLD_SIZE",
)
"""What is kept of the environment. Keys and passwords live there too, so only what is named here is."""


@dataclass(frozen=True, kw_only=True)
class GitState:
    """Of a working copy."""

    commit: str
    """Hash of the commit."""
    dirty: bool
    """Whether files differ from the commit."""

    def __str__(self) -> str:
        return f"{self.commit}{'-dirty' if self.dirty else ''}"


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Of one process."""

    oelm: str
    """Its version."""
    code: GitState | None
    """Of oelm's own source, where it is a working copy: the commit that changed it last."""
    folder: GitState | None
    """Of the working copy that the process was started in."""
    python: str
    """Its version."""
    versions: dict[str, str | None]
    """By package."""
    platform: str
    """Operating system."""
    host: str
    """Name of the machine."""
    cpu: str
    """Model of the processor."""
    cores: int | None
    """Of the machine."""
    command: str
    """As it was given; what looks like a secret is `***`."""
    environment: dict[str, str]
    """What is named in `ENVIRONMENT`, and nothing else."""
    time: str
    """Of this look."""
    device: str | None = None
    """`cuda` or `cpu`; None where torch was not loaded."""
    gpu: str | None = None
    """Its name, if there is one."""
    threads: int | None = None
    """Of torch."""


@dataclass(frozen=True, kw_only=True)
class PeakMemory:
    """In bytes."""

    process: Count
    """Resident memory of the process."""
    gpu: Count | None
    """What tensors took on the GPU."""

    def at_least(self, other: Self | None) -> Self:
        """The larger of each."""
        if other is None:
            return self
        gpu = max((each for each in (self.gpu, other.gpu) if each is not None), default=None)
        return replace(self, process=max(self.process, other.process), gpu=gpu)


def collect_provenance() -> Provenance:
    """What can be said of this process, now."""
    device, gpu, threads = _torch()
    return Provenance(
        oelm=__version__,
        code=_git(Path(__file__).parents[1], "."),  # records and pages beside it are committed while cells run
        folder=_git(Path.cwd()),
        python=platform.python_version(),
        versions={name: _version(name) for name in _PACKAGES},
        platform=platform.platform(),
        host=socket.gethostname(),
        cpu=_cpu(),
        cores=os.cpu_count(),
        command=mask_secrets(" ".join([Path(sys.argv[0]).name, *sys.argv[1:]])),
        environment={name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
        time=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        device=device,
        gpu=gpu,
        threads=threads,
    )


@cache
def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git(folder: Path, *paths: str) -> GitState | None:
    """Of the working copy that a folder is in, or of these paths in it: the commit that changed them last."""
    try:
        commit = git_output(folder, "rev-list", "-1", "HEAD", "--", *paths).decode().strip()
        changed = git_status(folder, "--untracked-files=no", "--", *paths)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return GitState(commit=commit, dirty=bool(changed.strip())) if commit else None


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _torch() -> tuple[str | None, str | None, int | None]:
    """Device, name of the GPU and threads."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None, None, None
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    gpu = torch.cuda.get_device_name() if accelerator is not None and accelerator.type == "cuda" else None
    return str(accelerator or "cpu"), gpu, torch.get_num_threads()


def reset_peak_memory() -> None:
    """Begin to measure the peak anew, where the system lets us."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def peak_memory() -> PeakMemory:
    torch = sys.modules.get("torch")
    gpu = torch.cuda.max_memory_allocated() if torch is not None and torch.cuda.is_available() else None
    return PeakMemory(process=_peak_resident(), gpu=gpu)


def _peak_resident() -> int:
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
