"""Statements on stores that the texts of v3, of 2022 and the final one, have in common."""

from __future__ import annotations

import trio

from tests.stores import test_archives as archive_tests
from tests.stores import test_fallbacks as fallback_tests
from tests.stores import test_opening as opening_tests
from tests.stores.conformance import StoreConformance
from tests.stores.folder import test_store as folder_tests
from tests.stores.readable import ReadableConformance
from tests.support.conforming import equal, opened_folder, raises
from tests.support.statements import NOT_YET, Text
from zarrfs.errors import KeyUnusable, RangesOverlap, UsageError
from zarrfs.keys import ByteRange, Key, Prefix
from zarrfs.stores.base import Store
from zarrfs.stores.memory import MemoryStore
from zarrfs.stores.opening import open_store

_SET = {"a/b": b"1", "a/c/d": b"22", "e/f/g": b"333"}


async def _stored(values: dict[str, bytes]) -> MemoryStore:
    store = MemoryStore()
    for key, value in values.items():
        await store.set(Key(key), value)
    return store


async def _cases() -> None:
    store = await _stored({"foo": b"a", "FOO": b"b"})
    assert (await store.get(Key("foo")), await store.get(Key("FOO"))) == (b"a", b"b")


async def _ranges() -> None:
    store = await _stored({"a": b"0123456789"})
    got = await store.get_partial_values([(Key("a"), ByteRange(2, 3)), (Key("a"), ByteRange(0, None)), (Key("a"), ByteRange(7))])
    assert got == [b"234", b"0123456789", b"789"]


async def _overlapping() -> None:
    store = await _stored({"a": b"0123456789"})
    await store.set_partial_values([(Key("a"), 4, b"xx"), (Key("a"), 3, b"yy")])


async def _listed() -> None:
    store: Store = await _stored({"a/b": b"", "a/c": b"", "a/d/e": b"", "a/f/g": b""})
    found = [(name, is_prefix) async for name, is_prefix, _, _ in store.list_dir(Prefix("a/"))]
    assert sorted(found) == [("b", False), ("c", False), ("d", True), ("f", True)]
    assert [each async for each in store.list_dir(Prefix("b/"))] == []
    assert [each async for each in store.list_prefix(Prefix("a/d/"))] == ["a/d/e"]


def abstract_store_interface(text: Text, number: str) -> None:
    """Add the section "Abstract store interface"."""
    text.section(number, "Stores: Abstract store interface")
    text.row("a key does not end with /", raises(KeyUnusable, "not a store key", lambda: Key("a/")))
    if text.name == "v3":
        text.tested("a key is a Unicode string", ReadableConformance.test_names_are_kept_as_they_are)
    else:
        text.tested(
            "a key has the characters a-z, A-Z, 0-9, / . - _",
            ReadableConformance.test_names_are_kept_as_they_are,
            "every key in a store is kept; names of new nodes consist of these characters (Node names)",
        )
    text.tested("a value is a sequence of bytes", StoreConformance.test_what_was_set_is_got)
    text.tested("a store has one value for a key", StoreConformance.test_set_replaces_the_whole_value)
    text.row("keys are case sensitive", lambda: trio.run(_cases))
    text.row("a range is a start and a length; without a length it is to the end", lambda: trio.run(_ranges))
    text.tested(
        "stores without partial access fulfil partial requests by whole values",
        fallback_tests.test_a_value_that_is_replaced_between_two_requests_is_asked_for_again,
    )
    text.row("a prefix ends with /", raises(KeyUnusable, "not a prefix", lambda: Prefix("a")))
    text.tested(
        "a store need not be readable, writable and listable",
        StoreConformance.test_read_only_stores_refuse_every_change,
        "as stated: an operation without the capability fails with an error of its own",
    )
    text.tested("get(key): the value", ReadableConformance.test_what_is_held_is_got, "as stated; None for a missing key")
    text.tested(
        "get_partial_values(key_ranges): values in the order of the ranges, a key several times, none for missing keys",
        ReadableConformance.test_partial_values_keep_order_and_duplicates,
        "as stated; in addition a suffix range, and a required generation",
    )
    text.tested("set(key, value)", StoreConformance.test_set_replaces_the_whole_value)
    text.tested(
        "set_partial_values: values at starts, a key several times",
        StoreConformance.test_partial_values_are_set_within_what_is_there,
    )
    text.row("ranges for one key must not overlap", raises(RangesOverlap, "'a'", lambda: trio.run(_overlapping)))
    text.tested("erase(key)", StoreConformance.test_erasing_removes_and_may_be_repeated)
    text.tested("erase_values(keys)", StoreConformance.test_erasing_removes_and_may_be_repeated)
    text.tested(
        "erase_prefix(prefix): all keys with the prefix",
        StoreConformance.test_erasing_a_prefix_takes_what_begins_with_it_and_no_more,
    )
    text.tested(
        "Zip archives do not allow removal",
        archive_tests.test_by_scheme_whatever_it_is_called_and_read_only,
        "as stated: archives are read-only stores",
    )
    text.tested("list(): all keys", ReadableConformance.test_the_examples_of_the_specification)
    text.tested(
        "list_prefix(prefix): all keys with the prefix; the example", ReadableConformance.test_the_examples_of_the_specification
    )
    text.tested(
        "list_prefix without a trailing slash is undefined",
        ReadableConformance.test_a_prefix_ends_with_a_slash,
        "refused: KeyUnusable",
    )
    text.row("list_dir(prefix): keys and prefixes without a slash behind it; the example", lambda: trio.run(_listed))
    text.tested(
        "fallbacks for partial values and erase_values are recommended",
        fallback_tests.test_parts_of_values_are_set_without_losing_the_rest,
        "as stated: `Store` has them, and one for erase_prefix and list_prefix",
    )
    text.tested(
        "LMDB and the like may be stores",
        fallback_tests.test_a_prefix_is_erased_key_by_key,
        "LMDB, SQLite, DBM and Zip, beside folders",
    )
    text.row(
        "object stores (S3, Azure, Google) may be stores",
        raises(UsageError, "s3", lambda: trio.run(open_store, "s3://bucket/x.zarr")),
        NOT_YET + "they come later; the URL is refused, and the message lists the known schemes",
    )


def file_system_store(text: Text, number: str) -> None:
    """Add the section "File system store"."""
    text.section(number, "File system store")
    text.row("a key's slashes are those of the path below the base directory", lambda: equal(opened_folder(_SET), _SET))
    text.tested(
        "a key is a path, and the reverse",
        folder_tests.test_keys_that_are_no_paths,
        "as stated; a key that cannot be a path is refused",
    )
    text.tested("get: the contents of the file", ReadableConformance.test_what_is_held_is_got)
    text.tested(
        "set: write the value as the contents",
        StoreConformance.test_a_concurrent_get_sees_a_whole_value,
        "as stated: by a new file that is renamed, so that no reader sees a part",
    )
    text.tested(
        "delete: the file or directory",
        folder_tests.test_a_key_where_a_folder_is_and_the_reverse,
        "a key is a file: a folder is erased only as a prefix",
    )
    text.tested("list: walk from the base directory", ReadableConformance.test_the_examples_of_the_specification)
    text.tested("list_prefix: walk from the directory", folder_tests.test_a_deep_tree_is_listed_and_removed)
    text.tested("list_dir: the children of the directory", folder_tests.test_a_folder_of_ten_thousand)
    text.tested(
        "(no statement) symbolic links and special files",
        folder_tests.test_links_are_not_listed_and_not_followed,
        "neither listed nor followed: they may lead outside the store",
    )
    if text.name == "v3":
        text.tested(
            "the canonical URI is a file URI; without a scheme a URI may be a path",
            opening_tests.test_file_urls,
            "both are accepted",
        )
        text.tested("a path without a scheme", opening_tests.test_a_path_that_exists_is_that_path)
