from __future__ import annotations

import sys
import unicodedata

import pytest

from zarrfs.printable import printable, printable_lines

UNSEEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def test_nothing_that_is_not_seen_as_what_it_is_remains() -> None:
    for code in range(sys.maxunicode + 1):
        character = chr(code)
        if unicodedata.category(character) in UNSEEN or (unicodedata.category(character) == "Zs" and character != " "):
            shown = printable(character)
            assert shown.isascii() and shown.isprintable() and shown != character, f"U+{code:04X}"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("\x1b[2J\x07\x9b31m\x7f", r"\x1b[2J\x07\x9b31m\x7f"),
        ("a\r\nb\tc\0", r"a\r\nb\tc\x00"),
        ("\udc9b\udc1b", r"\udc9b\udc1b"),
        ("\u202egpj.exe\u2066\u2069\u200e\u200f\u061c", r"\u202egpj.exe\u2066\u2069\u200e\u200f\u061c"),
        ("pay\u200bpal\u2060\ufeff", r"pay\u200bpal\u2060\ufeff"),
        ("a\u2028b\u2029c\x85d", r"a\u2028b\u2029c\x85d"),
        ("\u115f\u1160\u3164\uffa0\u034f\u2800", r"\u115f\u1160\u3164\uffa0\u034f\u2800"),
        ("\U000e0041\U000e0100\U000f0000", r"\U000e0041\U000e0100\U000f0000"),
        ("a\u00a0b", r"a\xa0b"),
        ("👩\u200d💻 ❤\ufe0f", r"👩\u200d💻 ❤\ufe0f"),
    ],
)
def test_what_is_escaped(name: str, shown: str) -> None:
    assert printable(name) == shown
    assert printable(shown) == shown, "what was escaped before stays"


@pytest.mark.parametrize(
    "name", ["", "a b", "Überdruck", "温度", "درجة", "тест", "ไทย", "हिन्दी", "e\u0301", "🌡", "[bold]x[/]", r"C:\x", "€µ½"]
)
def test_what_people_read_stays(name: str) -> None:
    assert printable(name) == name


def test_lines_keep_their_breaks_and_pass_for_no_line_of_ours() -> None:
    assert (
        printable_lines("a\n2026-01-01 ERROR zarrfs: \x1b[1mforged\n\u2028")
        == "a\n  2026-01-01 ERROR zarrfs: \\x1b[1mforged\n  \\u2028"
    )
