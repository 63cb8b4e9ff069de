"""Allocation: memory that a step gives back is kept for the next one."""

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # glibc's names for what is set, from malloc.h
_NEVER, _GIGABYTE = -1, 2**30


def keep_memory() -> bool:
    """Have glibc keep large blocks that are freed; elsewhere nothing is changed, and False is said.

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
