"""Statements common to both drafts of Zarr v3 (2019, 2022), with their checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tests.support.conforming import Check, Values, all_of, holds, new_array, raises, reads, refuses
from tests.support.example_array import WHOLE, with_members
from tests.support.statements import Text
from zarrfs.errors import NotADirectory

NoEntry = Callable[..., Check]


def entry_refused(store: Values, match: str, *, is_bad: bool = False, **members: Any) -> Check:
    """Return a check that ``store`` with these members of the entry point is refused with a reason that names the key."""
    return refuses({**store, "zarr.json": with_members(store["zarr.json"], members)}, rf"^zarr\.json: .*{match}", bad=is_bad)


def hierarchy_is_a_tree(text: Text, tree: Values, store: Values) -> None:
    """Add the statements of "Concepts and terminology".

    ``tree`` has ``/foo/bar``, a group, and ``/foo/baz/qux``, an array; ``store`` has ``/a``.
    """
    text.row(
        "a hierarchy is a tree of groups and arrays",
        all_of(
            holds(tree, {"foo": "group"}),
            holds(tree, {"bar": "group", "baz": "group"}, "/foo"),
            holds(tree, {"qux": "array"}, "/foo/baz"),
        ),
    )
    text.row(
        "array nodes may not have children",
        raises(NotADirectory, "/a: not a group", lambda: new_array("/a/b", new="v3", into=store)),
        "as stated: none is made below one",
    )


def unknown_extensions(text: Text, store: Mapping[str, Any], no_entry: NoEntry) -> None:
    """Add the statements on extensions of the entry point.

    ``no_entry`` is `entry_refused` of ``store``, which has the array ``/a``.
    """
    foo = {"extension": "http://example.org/zarr/extension/foo", "must_understand": False, "configuration": {"foo": "bar"}}
    text.row(
        "an extension that is not known, must_understand false: it may be ignored",
        reads({**store, "zarr.json": {**store["zarr.json"], "extensions": [foo]}}, WHOLE, "/a"),
        "as stated; the example",
    )
    text.row(
        "an extension that is not known, must_understand true: an error",
        no_entry("must be understood", extensions=[{"extension": "http://example.org/e", "must_understand": True}]),
    )
