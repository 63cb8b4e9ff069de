"""The studies that come with oelm."""

from pathlib import Path

import oelm


def shipped_studies() -> dict[str, Path]:
    """File by name. They lie inside an installed package, and at the root of a working copy."""
    inside = Path(oelm.__file__).parent / "studies"
    folder = inside if inside.is_dir() else Path(oelm.__file__).parents[2] / "studies"
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def question_of(path: Path) -> str:
    """What a study asks: the first of its opening comments."""
    first = path.read_text(encoding="utf-8").splitlines()[0]
    return first.removeprefix("#").strip().removeprefix("What").strip()
