from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Callable

import pytest

from zarrfs.options import ownership


@pytest.mark.parametrize("parse", [ownership.parse_user, ownership.parse_group])
def test_numbers_need_nobody_who_has_them(parse: Callable[[str], int]) -> None:
    for number in (0, 1000, 3999999999, 2**32 - 2):
        assert parse(str(number)) == number


def test_names() -> None:
    user, group = pwd.getpwuid(os.getuid()), grp.getgrgid(os.getgid())
    assert ownership.parse_user(user.pw_name) == user.pw_uid
    assert ownership.parse_group(group.gr_name) == group.gr_gid


# 2^32 - 1 would be the kernel's "unchanged", and superscripts are digits to str.isdigit().
@pytest.mark.parametrize("text", [str(2**32 - 1), "9" * 5000, "-1", "1.5", "", " 0", "²", "no such one", "a\0b"])
def test_nonsense_for_an_owner(text: str) -> None:
    for parse, kind in ((ownership.parse_user, "user"), (ownership.parse_group, "group")):
        with pytest.raises(ValueError, match=rf"expected .*({kind}|4294967294)"):
            parse(text)


def test_umask_is_octal() -> None:
    told = {"022": 0o22, "22": 0o22, "0022": 0o22, "0o22": 0o22, "0": 0, "000": 0, "777": 0o777, "0777": 0o777}
    assert {text: ownership.parse_umask(text) for text in told} == told


@pytest.mark.parametrize("text", ["8", "18", "1000", "7777", "77777", "-1", "", "u=rwx", "0x12", " 22", "２２"])
def test_nonsense_for_a_umask(text: str) -> None:
    with pytest.raises(ValueError, match="octal"):
        ownership.parse_umask(text)
