"""A store without shards: the chunks of its sharded arrays have the keys that they would have if the arrays were not sharded.

Each sharded array gets a `ShardingStore` for each of its levels of shards; everything else is passed on. Documents describe arrays
without shards, of the same chunks and codecs. `ShardedArrays` finds these arrays and converts their documents.
See docs/design/029-unsharded.md.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import replace
from typing import Protocol

from zarrfs.arrays.counters import WorkCounters
from zarrfs.arrays.shard_index_cache import ShardIndexCache
from zarrfs.buffers import Buffer
from zarrfs.errors import KeyConflict, MetadataError, NotPermitted, PrefixNotEmpty, StoreAccessDenied
from zarrfs.keys import WHOLE, ByteRange, Key, Prefix
from zarrfs.model.chunk_grid import Coords, Shape
from zarrfs.model.metadata import ArrayNode
from zarrfs.stores.anchor import Anchor
from zarrfs.stores.base import Store
from zarrfs.stores.change import Change
from zarrfs.stores.presupposing import presupposed, presupposing_nothing
from zarrfs.stores.values import DirEntry, Expected, Generation, Got, KeyStat
from zarrfs.transformers.forwarding import ForwardingStore
from zarrfs.transformers.sharding import INDEXES_NBYTES
from zarrfs.transformers.unsharded_array import UnshardedArray

# Limits on open arrays, and on documents whose sizes are cached.
_ARRAYS, _SIZES = 1024, 4096


class Documents(Protocol):
    """Documents with shards and without: as `zarrfs.hierarchy.sharded_arrays.Documents`."""

    async def shown(self, key: Key, document: bytes, generation: Generation) -> bytes: ...
    async def unsharded(self, key: Key, document: bytes) -> bytes: ...
    async def copied_keys(self, key: Key, document: bytes) -> Mapping[str, Key]: ...
    async def resharded(self, key: Key, document: bytes, stored: bytes, nodes: Mapping[str, bytes]) -> bytes: ...


class Folder(Protocol):
    """Knowledge of a folder: as `zarrfs.hierarchy.sharded_arrays.Folder`."""

    @property
    def array(self) -> ArrayNode | None: ...
    def documents(self, key: Key) -> Documents | None: ...
    def document_keys(self) -> Sequence[Key]: ...


class Arrays(Protocol):
    """The sharded arrays of a store: as `zarrfs.hierarchy.sharded_arrays.ShardedArrays`."""

    async def folder(self, prefix: Prefix) -> Folder: ...
    def changed(self, target: Key | Prefix) -> set[Prefix]: ...


class UnshardedStore(ForwardingStore):
    """Shows ``inner`` as if none of the sharded ``arrays`` in it were sharded."""

    def __init__(self, inner: Store, arrays: Arrays) -> None:
        super().__init__(inner)
        # A chunk's key is never a directory in ``inner``, even if shards have directories.
        self.capabilities = replace(inner.capabilities, hierarchical=False)
        self._arrays = arrays
        self._open_arrays: OrderedDict[Prefix, UnshardedArray] = OrderedDict()
        self._sizes: OrderedDict[Key, tuple[Generation, int]] = OrderedDict()
        self._indexes = ShardIndexCache(INDEXES_NBYTES)
        self._counters = WorkCounters()

    # --- choice of the store ------------------------------------------------------------------------------------------------

    async def _store_of(self, key: Key) -> tuple[Store, Documents | None]:
        """Return the store that has the value of ``key``, and the conversion of its document, if it is one."""
        folder = await self._arrays.folder(key.parent)
        open_array = self._open(folder.array)
        if open_array is not None and open_array.is_chunk(key):
            return open_array.store, None
        return self.inner, folder.documents(key)

    async def _of_prefix(self, prefix: Prefix) -> UnshardedArray | None:
        """Return the array whose folder is ``prefix``, or contains it."""
        return self._open((await self._arrays.folder(prefix)).array)

    def _open(self, node: ArrayNode | None) -> UnshardedArray | None:
        if node is None:
            return None
        open_array = self._open_arrays.get(node.chunk_prefix)
        if open_array is None or not open_array.is_of(node.metadata):
            open_array = self._open_arrays[node.chunk_prefix] = self._array_of(node, node.metadata.grid_shape)
            if len(self._open_arrays) > _ARRAYS:
                self._open_arrays.popitem(last=False)
        self._open_arrays.move_to_end(node.chunk_prefix)
        return open_array

    def _array_of(self, node: ArrayNode, grid_shape: Shape) -> UnshardedArray:
        return UnshardedArray.of(node, grid_shape, self.inner, self._indexes, self._counters, owner=self)

    def _known_over(self, target: Key | Prefix) -> UnshardedArray | None:
        """Return the open array whose prefix ``target`` begins with; the nearest if there are several."""
        for end in (*(n + 1 for n in range(len(target) - 1, -1, -1) if target[n] == "/"), 0):
            if (open_array := self._open_arrays.get(Prefix(target[:end]))) is not None:
                return open_array
        return None

    # --- readable -----------------------------------------------------------------------------------------------------------

    async def get(self, key: Key) -> Buffer | None:
        store, documents = await self._store_of(key)
        if documents is None:
            return await store.get(key)
        found = await self._document(key, documents)
        return found[0] if found is not None else None

    async def get_partial_values(
        self, key_ranges: Sequence[tuple[Key, ByteRange]], *, if_generation: Generation | None = None
    ) -> list[Buffer | None]:
        """Read the chunks of one array together."""
        at: dict[Store, list[int]] = {}
        others: list[int] = []
        for number, (key, _) in enumerate(key_ranges):
            store, documents = await self._store_of(key)
            (others if documents is not None else at.setdefault(store, [])).append(number)
        values: list[Buffer | None] = [None] * len(key_ranges)
        if others:
            wanted = [key_ranges[number] for number in others]
            found = await Store.get_partial_values(self, wanted, if_generation=if_generation)
            for number, value in zip(others, found, strict=True):
                values[number] = value
        for store, numbers in at.items():
            found = await store.get_partial_values([key_ranges[number] for number in numbers], if_generation=if_generation)
            for number, value in zip(numbers, found, strict=True):
                values[number] = value
        return values

    async def get_with_stat(self, key: Key, byte_range: ByteRange) -> tuple[Buffer, KeyStat] | None:
        store, documents = await self._store_of(key)
        if documents is None:
            return await store.get_with_stat(key, byte_range)
        found = await self._document(key, documents)
        if found is None:
            return None
        start, stop = byte_range.resolve(found[1].size)
        return memoryview(found[0])[start:stop], found[1]

    get_many = Store.get_many

    async def hold(self, key: Key) -> None:
        """Return None: a held value of ``inner`` would be a shard, or a document in its stored form."""

    async def data_from(self, key: Key, offset: int) -> int:
        store, documents = await self._store_of(key)
        return offset if documents is not None else await store.data_from(key, offset)

    async def stat(self, key: Key) -> KeyStat | None:
        store, documents = await self._store_of(key)
        stat = await store.stat(key)
        if stat is None or documents is None:
            return stat
        known = self._sizes.get(key)
        if known is not None and known[0] == stat.generation:
            return stat._replace(size=known[1])
        found = await self._document(key, documents)
        return found[1] if found is not None else None

    async def _document(self, key: Key, documents: Documents) -> tuple[bytes, KeyStat] | None:
        """Return a document in its visible form."""
        found = await self.inner.get_with_stat(key, WHOLE)
        if found is None:
            return None
        shown = await documents.shown(key, bytes(found[0]), found[1].generation)
        self._sizes[key] = found[1].generation, len(shown)
        if len(self._sizes) > _SIZES:
            self._sizes.popitem(last=False)
        return shown, found[1]._replace(size=len(shown))

    # --- writable -----------------------------------------------------------------------------------------------------------

    async def set(self, key: Key, value: Buffer, *, expect: Expected = None) -> Generation:
        """Set a value. A document keeps its shards; raises `NotPermitted` if ``value`` does not fit them, or declares shards itself."""
        store, documents = await self._store_of(key)
        if documents is not None:
            value = await self._stored(key, bytes(value), documents)
        try:
            with self._presupposing(key):
                return await store.set(key, value, expect=expect)
        finally:
            self._changed(key, store)

    async def _stored(self, key: Key, value: bytes, documents: Documents) -> bytes:
        """Return the stored form of the document ``value``."""
        if await documents.unsharded(key, value) != value:
            raise NotPermitted(f"{key!r}: arrays are shown without their shards here: a sharded one cannot be written", key=key)
        found = await self.inner.get_with_stat(key, WHOLE)
        stored = bytes(found[0]) if found is not None else b""
        copied = await documents.copied_keys(key, value)
        if not copied and (found is None or await documents.shown(key, stored, found[1].generation) == stored):
            return value
        # Copies have the shards of their nodes: readers of the store find the chunks by them.
        answers = await self.inner.get_many([(each, WHOLE) for each in copied.values()])
        nodes = {name: bytes(each.value) for name, each in zip(copied, answers, strict=True) if isinstance(each, Got)}
        try:
            return await documents.resharded(key, value, stored, nodes)
        except MetadataError as error:
            raise NotPermitted(f"arrays are shown without their shards here: {error}", key=key) from error

    async def set_partial_values(self, key_start_values: Iterable[tuple[Key, int, Buffer]]) -> None:
        at: dict[Store, list[tuple[Key, int, Buffer]]] = {}
        others: list[tuple[Key, int, Buffer]] = []
        for each in key_start_values:
            store, documents = await self._store_of(each[0])
            (others if documents is not None else at.setdefault(store, [])).append(each)
        if others:
            await Store.set_partial_values(self, others)
        for store, values in at.items():
            try:
                with self._presupposing(values[0][0]):
                    await store.set_partial_values(values)
            finally:
                for key in dict.fromkeys(key for key, _, _ in values):
                    self._changed(key, store)

    async def copy(self, old: Key, new: Key) -> bool:
        if all([await self._is_passed_on(key) for key in (old, new)]):
            try:
                return await self.inner.copy(old, new)
            finally:
                self._changed(new, self.inner)
        return await Store.copy(self, old, new)

    async def erase(self, key: Key) -> None:
        await self.erase_values([key])

    erase_if = Store.erase_if

    async def erase_values(self, keys: Iterable[Key]) -> None:
        """Erase values, also of chunks that are not shown: the array may have become smaller since they were listed."""
        at: dict[Store, list[Key]] = {}
        outside: dict[Prefix, tuple[ArrayNode, dict[Key, Coords]]] = {}
        for key in keys:
            store, _ = await self._store_of(key)
            node = (await self._arrays.folder(key.parent)).array
            open_array = self._open(node)
            coords = open_array.outside(key) if open_array is not None else None
            if node is None or coords is None:
                at.setdefault(store, []).append(key)
            else:
                outside.setdefault(node.chunk_prefix, (node, {}))[1][key] = coords
        for node, chunks in outside.values():
            at[self._array_of(node, node.metadata.grid_with(chunks.values())).store] = list(chunks)
        for store, those in at.items():
            try:
                if len(those) == 1:
                    await store.erase(those[0])
                else:
                    await store.erase_values(those)
            finally:
                for key in those:
                    self._changed(key, store)

    async def erase_prefix(self, prefix: Prefix) -> None:
        open_array = await self._of_prefix(prefix)
        try:
            await (open_array.store if open_array is not None else self.inner).erase_prefix(prefix)
        finally:
            self._arrays.changed(prefix)

    async def sync(self, targets: Iterable[Key | Prefix]) -> None:
        at: dict[Store, list[Key | Prefix]] = {}
        for target in targets:
            if isinstance(target, Prefix):
                open_array = await self._of_prefix(target)
                store = open_array.store if open_array is not None else self.inner
            else:
                store, _ = await self._store_of(target)
            at.setdefault(store, []).append(target)
        for store, those in at.items():
            await store.sync(those)

    @asynccontextmanager
    async def exclusive(self, key: Key) -> AsyncIterator[None]:
        store, _ = await self._store_of(key)
        async with store.exclusive(key):
            yield

    async def _is_passed_on(self, key: Key) -> bool:
        store, documents = await self._store_of(key)
        return store is self.inner and documents is None

    def _presupposing(self, target: Key | Prefix) -> AbstractContextManager[None]:
        """Return the context in which ``target`` is set: ``inner`` need not have the folders of chunks, which must exist here."""
        held, open_array = presupposed(), self._known_over(target)
        is_shown_only = held is not None and open_array is not None and open_array.lies_inside(held.prefix)
        return presupposing_nothing() if is_shown_only else nullcontext()

    def _changed(self, key: Key, store: Store) -> None:
        if store is self.inner:
            self._arrays.changed(key)

    # --- file system operations ---------------------------------------------------------------------------------------------

    async def rename(self, old: Key, new: Key) -> bool:
        if not all([await self._is_passed_on(key) for key in (old, new)]):
            raise self._unsupported("rename chunks that lie in shards, and documents")
        try:
            return await self.inner.rename(old, new)
        finally:
            self._arrays.changed(old)
            self._arrays.changed(new)

    async def rename_prefix(self, old: Prefix, new: Prefix) -> bool:
        """Rename whole arrays, and keys beside chunks; unsupported for chunks, which would not be chunks under other names."""
        if old != new and (new.startswith(old) or old.startswith(new)):
            raise KeyConflict(f"renaming {old!r} to {new!r}: one lies below the other", key=old)
        await self._require_outside(old, new)
        try:
            return await self.inner.rename_prefix(old, new)
        finally:
            self._arrays.changed(old)
            self._arrays.changed(new)

    async def exchange_prefixes(self, one: Prefix, other: Prefix) -> None:
        await self._require_outside(one, other)
        try:
            await self.inner.exchange_prefixes(one, other)
        finally:
            self._arrays.changed(one)
            self._arrays.changed(other)

    async def _require_outside(self, *prefixes: Prefix) -> None:
        for prefix in prefixes:
            open_array = await self._of_prefix(prefix)
            if open_array is not None and open_array.lies_inside(prefix):
                raise self._unsupported("rename chunks that lie in shards")

    async def make_prefix(self, prefix: Prefix) -> None:
        open_array = await self._of_prefix(prefix)
        with self._presupposing(prefix):
            await (open_array.store if open_array is not None else self.inner).make_prefix(prefix)
        self._arrays.changed(prefix)

    async def remove_prefix(self, prefix: Prefix) -> None:
        """Remove a prefix with the invisible empty folders of former shards below it."""
        open_array = await self._of_prefix(prefix)
        lead = open_array.grid.chunks.lead(prefix) if open_array is not None else None
        try:
            if open_array is None or lead is None:
                await self.inner.remove_prefix(prefix)
            elif lead:
                await open_array.store.remove_prefix(prefix)
            elif await self.peek(prefix, 1):
                raise PrefixNotEmpty(f"{prefix!r} is not empty", key=prefix)
            else:
                await self._remove_empty(prefix)
        finally:
            self._arrays.changed(prefix)

    async def _remove_empty(self, prefix: Prefix) -> None:
        for name, is_prefix, _, _ in [entry async for entry in self.inner.list_dir(prefix)]:
            if is_prefix:
                await self._remove_empty(prefix.child(name))
        await self.inner.remove_prefix(prefix)

    async def set_times(self, key: Key, mtime_ns: int) -> bool:
        store, _ = await self._store_of(key)
        return await store.set_times(key, mtime_ns)

    # --- listable -----------------------------------------------------------------------------------------------------------

    async def list_dir(self, prefix: Prefix) -> AsyncIterator[DirEntry]:
        """List entries; sizes of documents are those of their visible form."""
        folder = await self._arrays.folder(prefix)
        stats: dict[Key, KeyStat | None] = {}
        for key in folder.document_keys():
            # Read first: chunks beside the document are listed by it.
            with suppress(StoreAccessDenied):
                stats[key] = await self.stat(key)
            folder = await self._arrays.folder(prefix)
        open_array = self._open(folder.array)
        async for name, is_prefix, size, mtime_ns in (open_array.store if open_array is not None else self.inner).list_dir(prefix):
            if not is_prefix and folder.documents(key := prefix.key(name)) is not None:
                with suppress(StoreAccessDenied):
                    stat = stats.get(key) or await self.stat(key)
                    size = stat.size if stat is not None else size
            yield name, is_prefix, size, mtime_ns

    list_prefix = Store.list_prefix
    peek = Store.peek

    async def prefix_exists(self, prefix: Prefix) -> bool:
        open_array = await self._of_prefix(prefix)
        return await (open_array.store if open_array is not None else self.inner).prefix_exists(prefix)

    async def prefix_mtime_ns(self, prefix: Prefix) -> int | None:
        """Return the time of a folder of ``inner``, also for an array's own prefix, as in listings of the folder above."""
        open_array = await self._of_prefix(prefix)
        is_beside = open_array is None or not open_array.lies_inside(prefix)
        return await self.inner.prefix_mtime_ns(prefix) if is_beside else None

    def anchor(self, prefix: Prefix, *, spare: bool = False) -> Anchor | None:
        """Return None below a sharded array's prefix: folders of ``inner`` there contain shards, not chunks."""
        open_array = self._known_over(prefix)
        return None if open_array is not None and open_array.lies_inside(prefix) else self.inner.anchor(prefix, spare=spare)

    # --- change -------------------------------------------------------------------------------------------------------------

    async def watch(self, on_changes: Callable[[Sequence[Change]], None]) -> None:
        """Watch ``inner``: a shard's change becomes one of each of its chunks (`ShardedGrid.seen`), a document's one of all chunks."""

        def forward(changes: Sequence[Change]) -> None:
            seen: list[Change] = []
            for change in changes:
                open_array = self._known_over(change.target)
                seen += open_array.seen(change) if open_array is not None else [change]
                for prefix in self._arrays.changed(change.target):
                    if self._open_arrays.pop(prefix, None) is not None or prefix:
                        seen.append(replace(change, target=prefix, kind="unknown"))
            if seen or not changes:
                on_changes(seen)

        await self.inner.watch(forward)
