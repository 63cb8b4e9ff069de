"""Commands of Slurm: called as lists of words, for a limited time, and with one clear message where they cannot be."""

import os
import subprocess
from collections.abc import Collection

from oelm.errors import LaunchError

_PATIENCE = 120  # seconds; a busy controller takes its time
_HABITS = ("SACCT_", "SCANCEL_", "SINFO_", "SQUEUE_")  # variables by which users change what is printed


def run_slurm(*words: str, without: Collection[str] = ()) -> subprocess.CompletedProcess[str]:
    """Ask a command. `without` names variables of the environment that it is not to see."""
    env = {name: text for name, text in os.environ.items() if name not in without and not name.startswith(_HABITS)}
    try:
        return subprocess.run(
            words,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE,
        )
    except FileNotFoundError:
        raise slurm_missing(words[0]) from None
    except subprocess.TimeoutExpired:
        raise LaunchError(
            f"Slurm did not answer in {_PATIENCE} seconds",
            where=" ".join(words[:2]),
            hint="squeue --me shows what is in the queue; give the same command again later",
        ) from None
    except OSError as error:
        raise LaunchError(f"{words[0]} cannot be called", why=error.strerror or str(error)) from error


def output_of(done: subprocess.CompletedProcess[str]) -> str:
    """The words of a command, without its name in front of every line."""
    name = str(done.args[0])
    lines = (done.stderr or done.stdout).strip().splitlines()[-5:]
    text = [line.removeprefix(f"{name}: ").removeprefix("error: ") for line in lines]
    return "\n".join(text) or f"{name} ended with {done.returncode} and printed nothing"


def slurm_missing(command: str) -> LaunchError:
    return LaunchError(
        "there is no Slurm here",
        why=f"the command '{command}' is not found",
        hint="on a login node of the cluster; or --on local; --dry-run shows the script anywhere",
    )
