"""All --help pages as they are recorded in help.txt, so that a change of the interface is a visible change.

To record them anew: python tests/cli/test_help.py > tests/cli/help.txt
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from oelm.cli.main import COMMANDS, app

RECORDED = Path(__file__).with_name("help.txt")
WIDTH = "100"


def pages() -> str:
    return "\n".join(f"$ {' '.join(['oelm', *words])} --help\n{_page(words)}" for words, _ in _commands())


def _commands() -> Iterator[tuple[list[str], Any]]:
    root = typer.main.get_command(app)
    yield [], root
    for name in COMMANDS:
        command = root.get_command(None, name)
        yield [name], command
        for inner, each in getattr(command, "commands", {}).items():
            yield [name, inner], each


def _page(words: list[str]) -> str:
    done = CliRunner().invoke(
        app, [*words, "--help"], prog_name="oelm", env={"COLUMNS": WIDTH, "TERM": "dumb"}, terminal_width=int(WIDTH)
    )
    assert done.exit_code == 0, done.output
    return "\n".join(line.rstrip() for line in done.output.splitlines()) + "\n"


def test_the_help_pages_are_as_recorded():
    assert pages() == RECORDED.read_text(encoding="utf-8")


def test_help_texts_are_short_phrases():
    for _, command in _commands():
        texts = [command.help, *(getattr(param, "help", None) for param in command.params)]
        for text in filter(None, texts):
            assert not re.search(r"(?<!e\.g)\.(?:\s|$)", text), text
            assert text[0].isupper(), text
            assert all(len(line) <= 120 for line in text.splitlines()), text


@pytest.mark.parametrize("name", list(COMMANDS))
def test_the_list_says_what_the_page_says(name):
    command = typer.main.get_command(app).get_command(None, name)
    assert command.help.splitlines()[0] == COMMANDS[name][1]


if __name__ == "__main__":
    print(pages(), end="")
