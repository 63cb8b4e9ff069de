"""Device: what a cell is trained on, and whether that is what this machine has."""

import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

from oelm.errors import LaunchError, is_installed

_PATIENCE = 20  # seconds for nvidia-smi


def describe_device() -> str:
    """The device of cells that run in this process: `cuda (NVIDIA A100)`, `cpu (2 threads)`."""
    import torch

    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is None:
        threads = torch.get_num_threads()
        return f"cpu ({threads} thread{'s' if threads > 1 else ''})"
    name = torch.cuda.get_device_name() if accelerator.type == "cuda" else None
    return str(accelerator) if name is None else f"{accelerator} ({name})"


def planned_device(root: Path = Path("/")) -> str:
    """The same before anything runs. A machine without a GPU is planned for without torch, which may not be there."""
    is_hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    has_gpu = sys.platform != "linux" or (not is_hidden and find_gpu(root) is not None)
    if has_gpu and not is_installed("torch"):
        return "not known without torch"
    if has_gpu or "torch" in sys.modules:
        check_gpu_usable(root)
        return describe_device()
    return "cpu"


def check_gpu_usable(root: Path = Path("/")) -> None:
    """Refuse to train on the CPU of a machine with a GPU that torch cannot use, unless the GPU was hidden."""
    import torch

    if torch.accelerator.is_available() or os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return
    found = find_gpu(root)
    if found is None:
        return
    raise LaunchError(
        "this machine has a GPU that torch cannot use; nothing was started",
        where=found,
        why=_why_unusable(),
        hint="a torch that fits the driver: https://pytorch.org/get-started/locally\n"
        'or train on the CPU: CUDA_VISIBLE_DEVICES="" oelm run ...',
    )


_BF16 = "import torch; a = torch.ones(64, 64, dtype=torch.bfloat16); torch.nn.functional.linear(a, a)"


def check_bf16_usable() -> None:
    """Refuse bf16 on a CPU that shows instructions for it and does not have them, as some virtual machines do: a
    process that uses them ends without a word, so another one tries."""
    import torch

    if torch.accelerator.is_available() or not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return
    if subprocess.run([sys.executable, "-c", _BF16], stderr=subprocess.DEVNULL, check=False).returncode >= 0:
        return
    raise LaunchError(
        "this CPU shows instructions for bf16 that it does not have",
        why="a process that uses them is ended at once (illegal instruction)",
        hint="ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 oelm run ..., or --set recipe.precision=fp32",
    )


def find_gpu(root: Path = Path("/")) -> str | None:
    """Where a GPU shows on this machine, whether torch can use it or not; None if there is none."""
    nodes = sorted((root / "dev").glob("nvidia[0-9]*")) + sorted((root / "proc/driver/nvidia/gpus").glob("*"))
    if nodes:
        return str(nodes[0])
    if shutil.which("nvidia-smi") is None:
        return None
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=_PATIENCE)
    except (OSError, subprocess.SubprocessError):
        return None
    return next((line for line in done.stdout.splitlines() if line.startswith("GPU ")), None)


def _why_unusable() -> str:
    import torch

    if torch.version.cuda is None and torch.version.hip is None:
        return f"torch {torch.__version__} is a build for the CPU alone"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torch.cuda.init()  # type: ignore[no-untyped-call]
        except Exception as error:  # whatever it says, it says why
            return " ".join(str(error).split())[:300]
    return "torch finds no device"
