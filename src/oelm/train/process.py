"""Process: how a process that trains uses the memory and the cores of its machine. Imports no torch."""

import ctypes
import os
import sys

_WAIT_POLICY = "OMP_WAIT_POLICY"
_SPIN_COUNT = "GOMP_SPINCOUNT"
# glibc's names for what is set, from malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_NEVER, _GIGABYTE = -1, 2**30


def avoid_spinning() -> bool:
    """Have threads sleep while they wait for each other; False where the user has decided, or torch is there already.

    As it comes, OpenMP's threads spin at the end of an operation. Where other processes want the same cores, the thread
    that is waited for does not get one, and a step takes several times as long. OpenMP reads its variables when torch
    loads it, and processes that are started later inherit them.
    """
    if "torch" in sys.modules or _WAIT_POLICY in os.environ or _SPIN_COUNT in os.environ:
        return False
    os.environ[_WAIT_POLICY] = "passive"  # for libgomp, which torch comes with on Linux, the same as GOMP_SPINCOUNT=0
    return True


def keep_memory() -> bool:
    """Have glibc keep large blocks that are freed for the next step; False where it cannot be asked.

    As it comes, it returns them to the system, and takes them back page by page in the next step: up to 100 MB of them,
    more or less by chance, for a model of 13 million weights. That is a few percent of the time of a step, as much as
    freezing saves, and now one arm has to pay it and now another.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False  # another library than glibc
    return bool(mallopt(_MMAP_THRESHOLD, _GIGABYTE)) and bool(mallopt(_TRIM_THRESHOLD, _NEVER))
