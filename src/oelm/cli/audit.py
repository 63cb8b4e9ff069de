"""`oelm audit`: is a saved model frozen as it says?"""

import json
from pathlib import Path
from typing import Annotated

import typer


def audit(
    folder: Annotated[Path, typer.Argument(help="A saved model: a folder with config.json and model.safetensors.")],
    against: Annotated[
        str | None,
        typer.Option(help="The model it was made from, a folder or hub name: compare with that, bit by bit."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Audit a saved model, ours or anyone's: frozen bits equal to the recorded hashes or to the base model.

    Exit code 0 if all holds, 1 if there are findings, 2 if it cannot be audited.
    """
    from oelm.cli.quiet import quiet_loading
    from oelm.heads.folder import audit_folder

    with quiet_loading():
        result = audit_folder(folder, against=against)
    typer.echo(json.dumps(result.to_dict(), indent=2) if as_json else str(result))
    raise typer.Exit(0 if result.ok else 1)
