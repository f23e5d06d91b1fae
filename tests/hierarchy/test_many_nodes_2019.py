"""Creating and renaming nodes of 2019 costs as many requests in a large group as in a small one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from trio.testing import MockClock, trio_test

from tests.hierarchy.test_edits import Editing, editing
from tests.hierarchy.test_roots import DRAFT_ARRAY, DRAFT_GROUP, draft_2019
from zarrfs.errors import CaseConflict
from zarrfs.keys import ByteRange, Key, NodePath
from zarrfs.stores.memory import MemoryStore
from zarrfs.stores.values import Answer
from zarrfs.transformers.forwarding import ForwardingStore

FORM = "https://purl.org/zarr/spec/{}/codec/{}/1.0"


class Counting(ForwardingStore):
    """Counts the requests for documents."""

    count = 0

    async def get_many(self, key_ranges: Sequence[tuple[Key, ByteRange]]) -> list[Answer]:
        self.count += 1
        return await super().get_many(key_ranges)


def groups(number: int) -> dict[str, bytes]:
    return draft_2019("") | {f"meta/root/g{index}.group": DRAFT_GROUP for index in range(number)}


async def requests(number: int) -> dict[str, int]:
    """Return the requests of edits at the root of a hierarchy with this number of groups, of which nothing is known before."""
    store = Counting(MemoryStore())
    async with editing(groups(number), inner=store) as e:
        # The first new node is in the form of an array that may be anywhere.
        await e.group("/x")
        found: dict[str, int] = {}
        for name, edit in (
            ("group", lambda: e.group("/y")),
            ("group below", lambda: e.group("/x/deep/z")),
            ("layout of an array", lambda: e.editor.layout_for(NodePath("/x/a"))),
            ("rename", lambda: e.editor.rename(NodePath("/y"), NodePath("/w"))),
        ):
            e.reading.hierarchy.forget_all()
            before = store.count
            await edit()
            found[name] = store.count - before
        return found


@trio_test
async def test_other_nodes_of_a_group_cost_no_requests(autojump_clock: MockClock) -> None:
    # On a machine that stalls, documents would have to be read again meanwhile.
    assert await requests(100) == await requests(400)


def array(form: str) -> bytes:
    codec = b'"compressor": {"codec": "%s", "configuration": {"level": 1}}' % FORM.format(form, "gzip").encode()
    return DRAFT_ARRAY.replace(b'"compressor": null', codec)


async def form(e: Editing, path: str) -> str:
    return str(getattr(await e.editor.layout_for(NodePath(path)), "codec", None))


@trio_test
async def test_a_new_array_has_the_form_of_one_behind_many_groups_and_of_a_nearer_one() -> None:
    values = groups(100) | {"meta/root/g99/a.array": array("far"), "meta/root/n/b.array": array("near")}
    async with editing(values) as e:
        assert (await form(e, "/g99/x")) == FORM.format("far", "{}")
        assert (await form(e, "/n/x")) == FORM.format("near", "{}")
        await e.store.erase(Key("meta/root/n/b.array"))
        for path in ("/n/x", "/g1/x", "/x"):
            assert (await form(e, path)) == FORM.format("far", "{}")


@trio_test
async def test_names_that_differ_in_case_are_those_of_nodes() -> None:
    async with editing(groups(3)) as e:
        for name in ("/G1", "/G1/x"):
            with pytest.raises(CaseConflict):
                await e.group(name)
        await e.editor.rename(NodePath("/g1"), NodePath("/G1"))
        assert set(await e.kinds()) == {"g0", "G1", "g2"}
