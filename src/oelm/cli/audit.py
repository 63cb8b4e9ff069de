"""`oelm audit`: is a saved model frozen as it says?"""

import json
from pathlib import Path
from typing import Annotated

import typer

from oelm.cli.echo import echo


def audit(
    folder: Annotated[Path, typer.Argument(help="Folder of a saved model, with config.json and model.safetensors")],
    against: Annotated[
        str | None,
        typer.Option(help="Base model to compare with bit by bit: folder or hub name"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON")] = False,
) -> None:
    """Audit a saved model: counts, frozen bits, geometry

    Exit code: 0 no findings, 1 findings, 2 could not be audited
    """
    from oelm.cli.quiet import quiet_loading
    from oelm.heads.audit import audit_folder
    from oelm.models.folder import resolve_name

    against = None if against is None else resolve_name(against)
    with quiet_loading():
        result = audit_folder(folder, against=against)
    echo(json.dumps(result.to_dict(), indent=2) if as_json else str(result))
    raise typer.Exit(0 if result.ok else 1)
