"""Python programs without the seconds that Python needs to import everything: forked from a process that has done so.

Only where the interpreter is not what is tested. All else is that of a process of its own: its number, session,
environment, signals and outputs.
"""

import contextlib
import functools
import itertools
import os
import runpy
import signal
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_start = subprocess.Popen.__init__


def popen(self: subprocess.Popen, args: object, *others: object, **options: object) -> None:
    """In the place of `subprocess.Popen.__init__`: `python -m MODULE` and `python FILE` are forked from here."""
    words = [os.fspath(word) for word in args] if isinstance(args, Sequence) and not isinstance(args, str) else []
    if words[:1] == [sys.executable]:
        flags = list(itertools.takewhile(lambda word: word in ("-P", "-u", "-m"), words[1:]))
        name, *rest = words[1 + len(flags) :]
        if not name.startswith("-"):
            run = runpy.run_module if "-m" in flags else runpy.run_path
            options["preexec_fn"] = functools.partial(_become, run, name, rest, options.get("env"))
    _start(self, args, *others, **options)


def _become(run: Callable[..., object], name: str, words: list[str], env: Mapping[str, str] | None) -> None:
    """Be what would be executed now, and end as it does. Outputs, folder and session are those of the child already."""
    _let_go_of_files()
    if env is not None:
        os.environ.clear()
        os.environ.update(env)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout, sys.stderr = (
        open(number, "w", encoding="utf-8", buffering=1, closefd=False)  # noqa: SIM115
        for number in (1, 2)
    )
    warnings.resetwarnings()
    warnings.simplefilter("ignore")
    sys.argv = [name, *words]
    os._exit(_exit_code(functools.partial(run, name, run_name="__main__")))


def _let_go_of_files() -> None:
    """Of all that the parent has open; by that it learns that the program has begun.

    Their numbers stay taken: objects of the parent that are tidied up later would close what has their number then.
    """
    null = os.open(os.devnull, os.O_RDWR)
    for number in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        if number > 2 and number != null:
            with contextlib.suppress(OSError):  # that of the list itself
                os.fstat(number)
                os.dup2(null, number)


def _exit_code(program: Callable[[], object]) -> int:
    try:
        program()
    except SystemExit as error:
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0
