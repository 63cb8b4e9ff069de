"""Addresses: each is a user, a host, a port and a folder, or it is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oelm.errors import LaunchError
from oelm.launch.backends.ssh.address import SshAddress, parse_address


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("ssh://gpu1", SshAddress(user=None, host="gpu1", port=None, folder="oelm")),
        ("ssh://gpu1/", SshAddress(user=None, host="gpu1", port=None, folder="oelm")),
        ("ssh://me@gpu1.lab:2222/data/x", SshAddress(user="me", host="gpu1.lab", port=2222, folder="/data/x")),
        ("ssh://gpu_1/data//x/", SshAddress(user=None, host="gpu_1", port=None, folder="/data/x")),
        ("ssh://me@[::1]:22/x", SshAddress(user="me", host="::1", port=22, folder="/x")),
        ("ssh://[fe80::1%eth0]", SshAddress(user=None, host="fe80::1%eth0", port=None, folder="oelm")),
        (
            "ssh://a.b+c@10.0.0.1/it's my folder",
            SshAddress(user="a.b+c", host="10.0.0.1", port=None, folder="/it's my folder"),
        ),
        ("ssh://host:22/a@b:c", SshAddress(user=None, host="host", port=22, folder="/a@b:c")),
    ],
)
def test_what_an_address_names(address, place):
    assert parse_address(address) == place
    assert parse_address(str(place)) == place


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("ssh://", "names no host"),
        ("ssh:///folder", "names no host"),
        ("ssh://me@/folder", "names no host"),
        ("host/folder", "does not begin with ssh://"),
        ("SSH://host", "does not begin with ssh://"),
        ("ssh://-oProxyCommand=touch/x", "'-oProxyCommand=touch' is not a host name"),
        ("ssh://-l@host", "'-l' is not a user name"),
        ("ssh://@host", "'' is not a user name"),
        ("ssh://me@you@host", "'you@host' is not a host name"),
        ("ssh://host;reboot/x", "'host;reboot' is not a host name"),
        ("ssh://ho st", "'ho st' is not a host name"),
        ("ssh://[::1", "it is not a user"),
        ("ssh://[::zz]", "'::zz' is not an IPv6 address"),
        ("ssh://[]", "'' is not an IPv6 address"),
        ("ssh://[::1%;reboot]", "is not an IPv6 address"),
        ("ssh://[::1]x", "it is not a user"),
        ("ssh://::1/x", "':1' is not a port"),
        ("ssh://host:/x", "'' is not a port"),
        ("ssh://host:0", "'0' is not a port"),
        ("ssh://host:65536", "'65536' is not a port"),
        ("ssh://host:²²", "'²²' is not a port"),
        ("ssh://host/x?y=1", "'?'"),
        ("ssh://host/x#y", "'#'"),
        ("ssh://host/../etc", "'..' in a folder"),
        ("ssh://host/a/./b", "'.' in a folder"),
        ("ssh://host/~/x", "'~' in a folder"),
        ("ssh://host/a\nb", "has a control character"),
        ("ssh://host\n", "has a control character"),
        ("ssh://host/a\0b", "has a control character"),
        ("ssh://host/\x1b[31m", "has a control character"),
        ("ssh://host/\udc80", "has a control character"),
    ],
)
def test_what_is_odd_is_refused(address, why):
    with pytest.raises(LaunchError, match="is not an address") as raised:
        parse_address(address)
    assert why in str(raised.value)
    assert "\x1b" not in str(raised.value)
    assert "  try    " in str(raised.value)


def test_a_password_is_refused_and_not_shown():
    with pytest.raises(LaunchError, match="holds no password") as raised:
        parse_address("ssh://me:secret@host/x")
    assert "secret" not in str(raised.value)


PARTS = st.sampled_from(
    ["", "-", "me", "@", ":", "host", "[", "]", "::1", "22", "/", "..", "~", " ", "'", "\n", "?", "%"]
)


@given(st.text(max_size=40) | st.lists(PARTS, max_size=12).map("".join))
def test_an_address_is_parsed_or_one_message(rest):
    """Nothing that is taken can be an option of ssh, another command, or a way out of its folder."""
    try:
        place = parse_address(f"ssh://{rest}")
    except LaunchError:
        return
    assert parse_address(str(place)) == place
    assert place.host[0] not in "-["
    assert place.user is None or place.user[0] != "-"
    for text in (place.host, place.user or ""):
        assert not set(text) & set(" '\"\\$`;&|<>()*?!#\n/@")
    assert place.folder == "oelm" or place.folder.startswith("/")
    assert not {"", ".", ".."} & set(place.folder.split("/")[1:])
    assert place.folder.isprintable()
