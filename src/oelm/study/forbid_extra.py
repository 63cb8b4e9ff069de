"""Files that come in: a field that is not known is refused, and so is a number that is not finite."""


class ForbidExtra:
    """Base of the dataclasses that pydantic makes of a file. They are made without it as well, and cheaply: it is not
    imported here."""

    __pydantic_config__ = {"extra": "forbid", "allow_inf_nan": False}  # noqa: RUF012  pydantic reads it by this name
