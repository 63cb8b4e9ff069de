"""Provenance: on which code, versions and machine a cell was made. Imports no torch by itself."""

import contextlib
import os
import platform
import resource
import socket
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

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


def collect_provenance() -> dict[str, Any]:
    """What can be said of this process, now."""
    return {
        "oelm": __version__,
        "code": _git(Path(__file__).parent),
        "folder": _git(Path.cwd()),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in _PACKAGES},
        "platform": platform.platform(),
        "host": socket.gethostname(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "command": " ".join(Path(sys.argv[0]).name if i == 0 else arg for i, arg in enumerate(sys.argv)),
        "environment": {name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        **_torch(),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git(folder: Path) -> dict[str, Any] | None:
    """Commit of the working copy that a folder is in, and whether files differ from it."""
    try:
        commit = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=folder, capture_output=True, text=True, timeout=10, check=True
        ).stdout.strip()
        changed = subprocess.run(
            ["git", "status", "--porcelain", "--untracked-files=no"],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return {"commit": commit, "dirty": bool(changed.strip())}


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _torch() -> dict[str, Any]:
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    gpu = torch.cuda.get_device_name() if accelerator is not None and accelerator.type == "cuda" else None
    return {"device": str(accelerator or "cpu"), "gpu": gpu, "threads": torch.get_num_threads()}


def reset_peak_memory() -> None:
    """Begin to measure the peak anew, where the system lets us."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def peak_memory() -> dict[str, int | None]:
    """In bytes: resident memory of the process, and what tensors took on the GPU."""
    torch = sys.modules.get("torch")
    gpu = torch.cuda.max_memory_allocated() if torch is not None and torch.cuda.is_available() else None
    return {"process": _peak_resident(), "gpu": gpu}


def _peak_resident() -> int:
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
