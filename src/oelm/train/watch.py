"""Watch: what hears of the progress of cells. This one is silent; the command line shows it."""

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

    def ends(self, cell: Cell, *, status: str) -> None:
        pass
