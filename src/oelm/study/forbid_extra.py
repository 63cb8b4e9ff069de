"""Files that come in: a field that is not known is refused, and so is a number that is not finite."""

from collections.abc import Iterable
from typing import Any


def name_in_file(field: str) -> str:
    """What a field is called there: `from_`, which Python does not let us call `from`, is `from`."""
    return field.removesuffix("_")


def as_in_file(items: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """For `dataclasses.asdict`: fields by the names that they have in a file."""
    return {name_in_file(name): value for name, value in items}


class ForbidExtra:
    """Base of the dataclasses that pydantic makes of a file. They are made without it as well, and cheaply: it is not
    imported here."""

    # pydantic reads it by this name
    __pydantic_config__ = {"extra": "forbid", "allow_inf_nan": False, "alias_generator": name_in_file}  # noqa: RUF012
