"""Address: a folder on another machine, as `--on ssh://user@host:port/folder` names it."""

import re
from dataclasses import dataclass
from ipaddress import IPv6Address
from typing import NoReturn

from oelm.errors import LaunchError

_HOME_FOLDER = "oelm"  # below the home there, for an address that names no folder
_PASSWORD = re.compile(r"[a-z]*:?//[^/@]*:[^/@]*@")
_ADDRESS = re.compile(
    r"ssh://(?:(?P<user>[^@/]*)@)?(?P<host>\[[^\]/]*\]|[^:/\[\]]*)(?::(?P<port>[^/]*))?(?P<folder>/.*)?", re.DOTALL
)
# Neither may begin with a dash: ssh would take it for an option.
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}")
_IPV6 = re.compile(r"[0-9A-Fa-f:.]+(?:%[A-Za-z0-9_.-]+)?")
_PORT = re.compile(r"[0-9]{1,5}")


@dataclass(frozen=True, kw_only=True)
class SshAddress:
    user: str | None
    """Left out, the one that ssh takes."""
    host: str
    """A name, an alias of the ssh configuration, or a number of an IP network, without brackets."""
    port: int | None
    folder: str
    """Absolute, or below the home there."""

    def __str__(self) -> str:
        user = "" if self.user is None else f"{self.user}@"
        port = "" if self.port is None else f":{self.port}"
        folder = "" if self.folder == _HOME_FOLDER else self.folder
        return f"ssh://{user}{self.bracketed}{port}{folder}"

    @property
    def bracketed(self) -> str:
        """The host, where something follows after a colon."""
        return f"[{self.host}]" if ":" in self.host else self.host


def parse_address(text: str) -> SshAddress:
    """The folder that an address names. Whatever is odd about it is refused, before ssh or a shell sees it."""
    if _PASSWORD.match(text):
        raise LaunchError(  # which is not printed
            "an address holds no password", hint="a key that ssh finds by itself, and ssh://user@host/folder"
        )
    if not text.isprintable():
        _refuse(text, "it has a control character")
    if not text.startswith("ssh://"):
        _refuse(text, "it does not begin with ssh://")
    for mark in "?#":
        if mark in text:
            _refuse(text, f"it has a '{mark}', and an address is only a user, a host, a port and a folder")
    found = _ADDRESS.fullmatch(text)
    if found is None:
        _refuse(text, "it is not a user, a host, a port and a folder")
    user, port = found["user"], found["port"]
    if user is not None and not _USER.fullmatch(user):
        _refuse(text, f"'{user}' is not a user name")
    if port is not None and not (_PORT.fullmatch(port) and 0 < int(port) < 2**16):
        _refuse(text, f"'{port}' is not a port")
    return SshAddress(
        user=user,
        host=_host(text, found["host"]),
        port=None if port is None else int(port),
        folder=_folder(text, found["folder"] or ""),
    )


def _host(text: str, host: str) -> str:
    if not host:
        _refuse(text, "it names no host")
    if host.startswith("["):
        inner = host[1:-1]
        if not (_IPV6.fullmatch(inner) and _is_ipv6(inner)):
            _refuse(text, f"'{inner}' is not an IPv6 address")
        return inner
    if not _HOST.fullmatch(host):
        _refuse(text, f"'{host}' is not a host name")
    return host


def _is_ipv6(text: str) -> bool:
    try:
        IPv6Address(text)
    except ValueError:
        return False
    return True


def _folder(text: str, folder: str) -> str:
    parts = [part for part in folder.split("/") if part]
    if not parts:
        return _HOME_FOLDER
    for part in parts:
        if part in (".", "..") or part.startswith("~"):
            _refuse(text, f"'{part}' in a folder", "the absolute path there, or none for one in your home")
    return "/" + "/".join(parts)


def _refuse(text: str, why: str, hint: str = "ssh://user@host, or ssh://user@host:port/folder") -> NoReturn:
    raise LaunchError(f"{text!r} is not an address", why=why, hint=hint)
