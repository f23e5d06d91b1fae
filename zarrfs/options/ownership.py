"""Owner, group and mode of the files of a mount: a store keeps none of them, so they are options of the mount."""

from __future__ import annotations

import grp
import pwd
import re

# 2^32 - 1 means "unchanged" for chown(2), and is no user's number.
_MAX_ID = 2**32 - 2


def parse_user(text: str) -> int:
    """Return the number of a user, given by number or name. Raises ValueError."""
    return _number(text) if text.isascii() and text.isdecimal() else _named(text, "user")


def parse_group(text: str) -> int:
    """Return the number of a group, given by number or name. Raises ValueError."""
    return _number(text) if text.isascii() and text.isdecimal() else _named(text, "group")


def parse_umask(text: str) -> int:
    """Return the permission bits to clear, given in octal: ``022``, ``0022``, ``0o22``. Raises ValueError."""
    if not re.fullmatch(r"(0o)?[0-7]{1,4}", text) or int(text, 8) > 0o777:
        raise ValueError("expected up to three octal digits, such as 022")
    return int(text, 8)


def _number(text: str) -> int:
    # More than ten digits are too large without conversion.
    if len(text) > 10 or int(text) > _MAX_ID:
        raise ValueError(f"expected a number up to {_MAX_ID}")
    return int(text)


def _named(text: str, kind: str) -> int:
    try:
        return pwd.getpwnam(text).pw_uid if kind == "user" else grp.getgrnam(text).gr_gid
    except (KeyError, ValueError) as error:  # ValueError: a name with NUL in it
        raise ValueError(f"expected the name or number of a {kind} of this machine") from error
