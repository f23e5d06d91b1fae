"""Whose the files of a mount are: a store keeps neither owners nor modes, so they are options of the mount."""

from __future__ import annotations

import grp
import pwd
import re

# 2^32 - 1 is what chown(2) takes for "leave it as it is", and nobody's number.
_MAX_ID = 2**32 - 2


def parse_user(text: str) -> int:
    """The number of a user, given as such or by name. Raises ValueError."""
    return _number(text) if text.isascii() and text.isdecimal() else _named(text, "user")


def parse_group(text: str) -> int:
    """The number of a group, given as such or by name. Raises ValueError."""
    return _number(text) if text.isascii() and text.isdecimal() else _named(text, "group")


def parse_umask(text: str) -> int:
    """Permission bits that no file has, in octal: ``022``, ``0022``, ``0o22``. Raises ValueError."""
    if not re.fullmatch(r"(0o)?[0-7]{1,4}", text) or int(text, 8) > 0o777:
        raise ValueError("expected up to three octal digits, such as 022")
    return int(text, 8)


def _number(text: str) -> int:
    # Beyond ten digits it need not be computed to be too large.
    if len(text) > 10 or int(text) > _MAX_ID:
        raise ValueError(f"expected a number up to {_MAX_ID}")
    return int(text)


def _named(text: str, kind: str) -> int:
    try:
        return pwd.getpwnam(text).pw_uid if kind == "user" else grp.getgrnam(text).gr_gid
    except (KeyError, ValueError) as error:  # ValueError: a name with NUL in it
        raise ValueError(f"expected the name or number of a {kind} of this machine") from error
