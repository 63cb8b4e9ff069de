"""Limit: how much of the training split is trained on."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Interval

from oelm.data.tasks import Task

LIMIT_FIELDS = ("examples", "documents", "tokens")
_Number = Annotated[int, Interval(ge=1, le=10**15)]
_SPARE = 1000  # documents more than are asked for: some are blank, or dropped
_CHARACTERS = 8  # of text for a token that is asked for: twice what a token of English has


@dataclass(frozen=True, kw_only=True)
class Limit:
    """Exactly one of the three."""

    examples: _Number | None = None
    """Of all tasks but language modeling."""
    documents: _Number | None = None
    """Of language modeling, from the front; where there are fewer than 20, pieces of about 2,000 characters."""
    tokens: _Number | None = None
    """Of language modeling, from the front; the last document is cut."""

    def __post_init__(self) -> None:
        given = [name for name in LIMIT_FIELDS if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"say exactly one of examples, documents and tokens, not {' and '.join(given) or 'none'}")

    @property
    def unit(self) -> str:
        return next(name for name in LIMIT_FIELDS if getattr(self, name) is not None)

    @property
    def number(self) -> int:
        return int(getattr(self, self.unit))

    def problem_for(self, task: Task) -> str | None:
        """Why a task cannot be limited so, with what will do."""
        is_text = task.kind == "language-modeling"
        if is_text == (self.unit != "examples"):
            return None
        right = "{documents: N} or {tokens: N}" if is_text else "{examples: N}"
        return f"task '{task.name}' is {'text' if is_text else 'made of examples'}: {right}, not {self.unit}"

    def is_enough(self, documents: int, characters: int, *, front: int) -> bool:
        """Whether so much text from the front has what is asked for, and `front` documents to hold some out of."""
        if self.documents is not None:
            return documents >= front + self.documents * 9 // 8 + _SPARE
        return documents >= front + _SPARE and characters >= _CHARACTERS * self.number


LESS = "a smaller number, or leave it out"  # what to try where there is less than a limit asks for


def front_documents(task: Task, validation: int | None) -> int:
    """Of how many documents from the front some are held out where there is a limit: the same for every limit."""
    return 10 * task.held_out + 4 * (validation or 0)
