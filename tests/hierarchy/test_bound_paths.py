"""Folders of nodes stay the same object wherever they are moved, and a new node at a path is a new object."""

from __future__ import annotations

import gc

import pytest

from tests.support.arrays import Example
from zarrfs.errors import StaleEntry
from zarrfs.hierarchy.bound_paths import BoundPaths
from zarrfs.keys import ROOT, NodePath

A = Example((4,), (2,))


def test_what_is_moved_takes_along_what_lies_below_it_and_no_more() -> None:
    bound_paths = BoundPaths()
    group, inner, beside = (bound_paths.at(NodePath(path)) for path in ("/g", "/g/a/b", "/ga"))
    replaced = bound_paths.at(NodePath("/h/a"))
    bound_paths.moved(NodePath("/g"), NodePath("/h"))
    assert [each.path for each in (group, inner, beside)] == ["/h", "/h/a/b", "/ga"]
    assert bound_paths.at(NodePath("/h/a/b")) is inner and bound_paths.at(NodePath("/g")) is not group
    inner.check()
    with pytest.raises(StaleEntry):
        replaced.check()


def test_what_comes_after_one_that_ended_is_another() -> None:
    bound_paths = BoundPaths()
    gone, root = bound_paths.at(NodePath("/g/a")), bound_paths.at(ROOT)
    bound_paths.ended(NodePath("/g"), "was erased")
    bound_paths.ended(ROOT, "was erased")
    new = bound_paths.at(NodePath("/g/a"))
    new.check()
    root.check()
    with pytest.raises(StaleEntry, match="/g/a was erased"):
        gone.check()
    bound_paths.moved(NodePath("/g"), NodePath("/h"))
    assert (gone.path, new.path) == ("/g/a", "/h/a")


def test_nobody_who_holds_none_is_remembered() -> None:
    bound_paths = BoundPaths()
    bound_paths.at(NodePath("/g/a"))
    gc.collect()
    assert not len(bound_paths._at) and not len(bound_paths._at._paths)
