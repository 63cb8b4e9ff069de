"""Echo: the one place where commands write to a terminal. What is shown of a file cannot steer the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from oelm.format import escape_controls

if TYPE_CHECKING:  # which takes its time
    from rich.text import Text


def echo(text: object, *, nl: bool = True, err: bool = False) -> None:
    """Write a text to the standard output, or with `err` to the standard error."""
    typer.echo(escape_controls(str(text)), nl=nl, err=err)


def warn(text: object) -> None:
    """Write a line to the standard error, so that results can be piped."""
    echo(text, err=True)


def plain_text(text: object) -> Text:
    """A text for rich, in which brackets are brackets."""
    from rich.text import Text

    return Text(escape_controls(str(text)))
