"""What goes wrong, in the user's words: what happened, where, why, and what to try."""

import difflib
from collections.abc import Iterable


class OelmError(ValueError):
    """Base of every error a user can cause. The CLI shows it as one message and exits with code 2."""

    def __init__(self, what: str, *, where: str | None = None, why: str | None = None, hint: str | None = None):
        details = [("where", where), ("why", why), ("try", hint)]
        lines = [f"  {label:<6} {_indented(text)}" for label, text in details if text]
        super().__init__("\n".join([what, *lines]))


class TreatmentError(OelmError):
    """The treatment itself makes no sense, or makes none for this model."""


class UnknownLayout(OelmError):
    """Where the query and key rows of a model lie is not known, or they have none of their own."""


class ModelError(OelmError):
    """The model cannot be treated as it is: quantised, sharded, on meta, not finite, treated already."""


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


class Stopped(OelmError):
    """A signal asked a cell to stop; it has written its checkpoint."""

    def __init__(self, what: str, *, signal: int, hint: str | None = "the same command goes on from here"):
        super().__init__(what, hint=hint)
        self.signal = signal


def did_you_mean(value: object, choices: Iterable[str]) -> str:
    """The end of a sentence about something unknown: the choice that looks most like it, if one does."""
    close = difflib.get_close_matches(str(value), list(choices), n=1)
    return f"; did you mean '{close[0]}'?" if close else ""


def _indented(text: str) -> str:
    return text.replace("\n", "\n" + " " * 9)
