"""Python programs without the seconds that Python needs to import everything: forked from a process that has done so.

Only where the interpreter is not what is tested. All else is that of a process of its own: its number, session,
environment, signals and outputs.
"""

import functools
import os
import runpy
import signal
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence

_start = subprocess.Popen.__init__


def popen(self: subprocess.Popen, args: object, *others: object, **options: object) -> None:
    """In the place of `subprocess.Popen.__init__`: `python -m MODULE` is forked from this process."""
    words = [os.fspath(word) for word in args] if isinstance(args, Sequence) and not isinstance(args, str) else []
    flags = words[1 : words.index("-m")] if "-m" in words else []
    if words and words[0] == sys.executable and "-m" in words and set(flags) <= {"-P", "-u"}:
        module, *rest = words[words.index("-m") + 1 :]
        options["preexec_fn"] = functools.partial(_become, module, rest, options.get("env"))
    _start(self, args, *others, **options)


def _become(module: str, words: list[str], env: Mapping[str, str] | None) -> None:
    """Be what would be executed now, and end as it does. Outputs, folder and session are those of the child already."""
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # also what tells the parent that the program has begun
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
    sys.argv = [module, *words]
    os._exit(_exit_code(functools.partial(runpy.run_module, module, run_name="__main__", alter_sys=True)))


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
