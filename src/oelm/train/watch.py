"""Watch: what hears of the progress of cells. This one is silent; the command line shows it."""

from collections.abc import Sequence

from oelm.records.standing import Standing
from oelm.study.plan import Cell


class Watch:
    def says(self, text: str) -> None:
        """Something worth a line."""

    def prepares(self, what: str, done: int, total: int) -> None:
        """Tokenising, for example; a `total` of 0 is not known."""

    def begins(self, cell: Cell, *, step: int, total: int) -> None:
        """A cell starts or goes on, with `step` of `total` steps done."""

    def stepped(self, step: int, *, loss: float) -> None:
        pass

    def evaluates(self, what: str, done: int, total: int) -> None:
        pass

    def evaluated(self, step: int, metrics: dict[str, float]) -> None:
        pass

    def ends(self, cell: Cell, *, status: str, seconds: float | None = None) -> None:
        """After so many seconds, of a cell that has not begun here."""

    def shows(self, running: Sequence[Standing], *, done: int, of: int) -> None:
        """Where the cells stand that run in other processes; `done` cells `of` so many are finished."""
