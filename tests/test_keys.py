"""Keys and paths."""

from __future__ import annotations

import pytest

from zarrfs.errors import NameInvalid
from zarrfs.keys import NodePath


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("", "/"),
        ("/", "/"),
        ("\\\\", "/"),
        ("a", "/a"),
        ("/a/b/", "/a/b"),
        ("a\\b", "/a/b"),
        ("\\a//b\\", "/a/b"),
        ("///a/\\/b///", "/a/b"),
        ("...", "/..."),
    ],
)
def test_a_path_that_a_person_writes_is_normalized(text: str, path: str) -> None:
    """v2, "Logical storage paths"."""
    assert NodePath.normalized(text) == path


@pytest.mark.parametrize("text", [".", "..", "a/../b", "a\\.\\b", "/./"])
def test_a_path_through_dots_is_an_error(text: str) -> None:
    with pytest.raises(NameInvalid):
        NodePath.normalized(text)
