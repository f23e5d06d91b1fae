"""Zarr core specification version 3.1, statement by statement: stores, operations on hierarchies, storage transformers."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.conformance import test_v3
from tests.conformance.stores import abstract_store_interface, file_system_store
from tests.conformance.test_v3 import GROUP, LEFT, WHOLE, doc, grid, made, store, unknown
from tests.support.conforming import (
    all_of,
    amended,
    array,
    document,
    edited,
    elements,
    equal,
    erased,
    holds,
    keys,
    members,
    new_array,
    new_group,
    node,
    raises,
    reads,
)
from tests.support.statements import Statement
from tests.transformers import test_deadline as deadline_tests
from tests.transformers import test_sharding as transformer_tests
from zarrfs.errors import ContentInvalid, EntryExists
from zarrfs.keys import NodePath

TEXT = test_v3.TEXT.continued()

abstract_store_interface(TEXT, "21")
file_system_store(TEXT, "22")

# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("23", "Storage: Operations")

TREE = {"zarr.json": GROUP, "g/zarr.json": GROUP, **{f"g/a/{key}": value for key, value in store().items()}, "h/zarr.json": GROUP}
TEXT.row(
    "create a group: set its document, and ensure groups at all paths above",
    lambda: equal(keys(new_group("/x/y", new="v3")), ["x/y/zarr.json", "x/zarr.json", "zarr.json"]),
)
TEXT.row(
    "create an array: set its document; groups above are implied",
    lambda: equal(keys(new_array("/x/y", new="v3")), ["x/y/zarr.json", "x/zarr.json", "zarr.json"]),
    "documents of the groups above are also created",
)
TEXT.row(
    "a group that is there stays as it is",
    lambda: equal(
        new_array("/g/b", new="v3", into={"zarr.json": GROUP, "g/zarr.json": b'{"zarr_format":3,"node_type":"group"}'})[
            "g/zarr.json"
        ],
        b'{"zarr_format":3,"node_type":"group"}',
    ),
)
TEXT.row(
    "store chunk data: set the encoded chunk at its data key",
    lambda: equal(made(write={(1,): [8, 9]})["a/c/1"], np.array([8, 9], "<i4").tobytes()),
)
TEXT.row("retrieve chunk data: get the data key", reads(store(), WHOLE))
TEXT.row(
    "discover children: prefixes of list_dir, not starting with __", holds({**TREE, "__x/y": b""}, {"g": "group", "h": "group"})
)
TEXT.row("whether a child is an array or a group: its document", holds(TREE, {"a": "array"}, "/g"))
TEXT.row(
    "keys beside the document are no children",
    holds({**TREE, "README.md": b"text"}, {"g": "group", "h": "group"}),
    "as stated: they are in raw/",
)
TEXT.row(
    "where nothing can be listed, children are known otherwise",
    lambda: equal(
        array(
            {
                "zarr.json": {
                    **GROUP,
                    "consolidated_metadata": {"kind": "inline", "must_understand": False, "metadata": {"a": doc()}},
                },
                "a/c/0/0": LEFT,
            },
            "/a",
        ).quirks[-1],
        "no documents of its own: read from the consolidated copy",
    ),
    "through the consolidated copy",
)
TEXT.row(
    "discover all nodes: recursively",
    lambda: equal((members(TREE), members(TREE, "/g"), members(TREE, "/h")), ({"g": "group", "h": "group"}, {"a": "array"}, {})),
)
TEXT.row(
    "erase an array: its document and its data",
    lambda: equal(keys(erased(TREE, "/g/a")), ["g/zarr.json", "h/zarr.json", "zarr.json"]),
)
TEXT.row(
    "erase a group: its document, and all nodes under it", lambda: equal(keys(erased(TREE, "/g")), ["h/zarr.json", "zarr.json"])
)
TEXT.row(
    "a node exists where its document is",
    lambda: equal([type(node(TREE, path)).__name__ for path in ("/g", "/g/a", "/x")], ["GroupNode", "ArrayNode", "NoneType"]),
)
TEXT.row(
    "creating over a node",
    raises(EntryExists, "exists", lambda: new_array("/g/a", new="v3", into=TREE)),
    "refused: to replace an array, rename over it or erase it first",
)
TEXT.row(
    "chunks under the path of a new array",
    lambda: equal("a/c/0" in new_array("/a", new="v3", into={"zarr.json": GROUP, "a/c/0": b"old"}), False),
    "erased: a new array begins empty",
)

# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("24", "Storage transformers")

TEXT.row(
    "they are configured per array, by storage_transformers",
    unknown("made_up", storage_transformers=["made_up"]),
    "no core transformer is defined, and none is known",
)
TEXT.tested(
    "they serve the interface of stores",
    transformer_tests.test_the_example_of_the_text,
    "as for the sharding of 2022, and for those that the mount adds to every store",
)
TEXT.tested(
    "those that do not change the layout may be added at runtime",
    deadline_tests.test_what_is_in_time_is_as_if_there_were_no_deadline,
    "as stated: deadline, counters, read-only, change stream",
)
TEXT.tested("they may be stacked", transformer_tests.test_two_levels_of_shards)

# --------------------------------------------------------------------------------------------------------------------------------
TEXT.section("25", "Implementation notes: Resizing")


def _resized(shape: tuple[int, ...], *, erase: bool, values: dict[str, Any]) -> dict[str, bytes]:
    return edited(values, lambda editor, _: editor.resize(NodePath("/"), shape, erase_outside=erase))


LINE = {"zarr.json": doc(shape=[4], chunk_grid=grid(2)), "c/0": np.array([1, 2], "<i2"), "c/1": np.array([3, 4], "<i2")}
TEXT.row("arrays can be resized", lambda: equal(document(amended(LINE, shape=(6,)), "zarr.json")["shape"], [6]))
TEXT.row(
    "shrinking: chunks outside may be kept or deleted, by configuration",
    all_of(
        raises(ContentInvalid, "resize_erases", lambda: _resized((2,), erase=False, values=LINE)),
        lambda: equal(keys(_resized((2,), erase=True, values=LINE)), ["c/0", "zarr.json"]),
    ),
    "erased with --resize-erases; without it, refused where any is stored, so that no data is lost or reappears",
)
TEXT.row(
    "growing: where no chunks are there is the fill value, and none are written",
    lambda: equal(
        (keys(_resized((6,), erase=False, values=LINE)), elements(_resized((6,), erase=False, values=LINE)).tolist()),
        (["c/0", "c/1", "zarr.json"], [1, 2, 3, 4, 7, 7]),
    ),
)
TEXT.row(
    "data that were not deleted when it shrank are shown again",
    lambda: equal(
        elements(_resized((4,), erase=False, values={**LINE, "zarr.json": doc(shape=[2], chunk_grid=grid(2))})).tolist(),
        [1, 2, 3, 4],
    ),
    "as stated, for data that other programs left there",
)


@TEXT.own
def test_statement(statement: Statement) -> None:
    statement.check()  # type: ignore[operator]
