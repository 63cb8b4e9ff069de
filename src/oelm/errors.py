"""What goes wrong, in the user's words: what happened, where, why, and what to try."""

import difflib
from collections.abc import Iterable
from importlib.util import find_spec
from typing import Literal

from oelm.installation import install_command

Extra = Literal["method", "lab", "report", "adapters"]
# The modules that each extra brings and oelm without extras does not, the smallest extra first.
_MODULES: dict[Extra, tuple[str, ...]] = {
    "method": ("torch", "transformers", "safetensors"),
    "lab": ("torch", "transformers", "safetensors", "accelerate", "huggingface_hub", "sklearn"),
    "report": ("typst", "matplotlib"),
    "adapters": ("peft",),
}


class OelmError(Exception):
    """Base of every error a user can cause. The CLI shows it as one message and exits with code 2.

    Not a ValueError: whoever catches those, for a value that torch or a parser does not take, must not catch a stop
    request or a full disk with them.
    """

    def __init__(self, what: str, *, where: str | None = None, why: str | None = None, hint: str | None = None):
        details = [("where", where), ("why", why), ("try", hint)]
        lines = [f"  {label:<6} {_indented(text)}" for label, text in details if text]
        super().__init__("\n".join([what, *lines]))


class TreatmentError(OelmError):
    """The treatment itself makes no sense, or makes none for this model."""


class UnknownLayout(OelmError):
    """The layout of a model's query and key rows is unknown, or its heads have no separate ones."""


class ModelError(OelmError):
    """The model cannot be treated as it is: quantized, sharded, on meta, not finite, already treated."""


class FolderError(OelmError):
    """A saved model cannot be read, or is not what its `oelm.json` says."""


class AuditFailed(OelmError):
    """Something an applied treatment promises does not hold."""


class StudyError(OelmError):
    """A study makes no sense, or is not the one that its cells were made with."""


class DataError(OelmError):
    """Data are not there, or are not what their task says."""


class CellError(OelmError):
    """A cell cannot be run, or what it left behind cannot be read."""


class DiskError(OelmError):
    """There is no room, or no permission, to write what must be kept."""


class LaunchError(OelmError):
    """Cells cannot be started, asked about or stopped where they were to run."""


class ReportError(OelmError):
    """A report cannot be made as it was asked for."""


class MissingPart(OelmError, ImportError):
    """A part of oelm that is needed is not installed."""

    def __init__(self, module: str, *, extra: Extra, needed_by: str):
        super().__init__(f"{needed_by} needs {module}, which is not installed; try: {install_command(extra)}")


class Stopped(OelmError):
    """A signal asked a cell to stop; it has written its checkpoint."""

    def __init__(
        self,
        what: str,
        *,
        signal: int,
        step: int | None = None,
        total: int | None = None,
        hint: str | None = "rerun the same command to resume",
    ):
        super().__init__(what, hint=hint)
        self.signal = signal
        self.step, self.total = step, total


def is_installed(module: str) -> bool:
    return find_spec(module) is not None


def require(extra: Extra, *, needed_by: str) -> None:
    """Refuse before anything is done what would fail in the middle for lack of a module."""
    for module in _MODULES[extra]:
        if not is_installed(module):
            raise MissingPart(module, extra=extra, needed_by=needed_by)


def explain_import(error: ModuleNotFoundError, *, needed_by: str, extra: Extra | None = None) -> MissingPart | None:
    """What to say of a failed import: the extra that brings the module, by default the smallest. None if none does."""
    module = (error.name or "").partition(".")[0]
    bringing = [name for name, modules in _MODULES.items() if module in modules and not is_installed(module)]
    if not bringing:
        return None
    return MissingPart(module, extra=extra if extra in bringing else bringing[0], needed_by=needed_by)


def did_you_mean(value: object, choices: Iterable[str]) -> str:
    """The end of a sentence about something unknown: the choice that looks most like it, if one does."""
    close = difflib.get_close_matches(str(value), list(choices), n=1)
    return f"; did you mean '{close[0]}'?" if close else ""


def _indented(text: str) -> str:
    return text.replace("\n", "\n" + " " * 9)
