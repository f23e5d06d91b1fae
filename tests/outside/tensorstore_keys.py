"""tensorstore's file store as a store of keys and values, and drivers on top of it other than those of Zarr."""

from __future__ import annotations

import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy
import pytest
import tensorstore

_CHUNKS = tensorstore.ChunkLayout(chunk_shape=[4, 5])


def kvstore(folder: Path) -> dict[str, str]:
    return {"driver": "file", "path": f"{folder}/"}


class TestKeyValueStore:
    @pytest.fixture
    def store(self, tmp_path: Path) -> Any:
        return tensorstore.KvStore.open(kvstore(tmp_path / "k")).result()

    @pytest.mark.parametrize("nbytes", [0, 1, 4096, 3_000_000])
    def test_values(self, store: Any, nbytes: int) -> None:
        store.write("a/b", bytes(range(256)) * (nbytes // 256) + bytes(nbytes % 256)).result()
        assert len(store.read("a/b").result().value) == nbytes

    def test_missing(self, store: Any) -> None:
        assert store.read("a").result().state == "missing"
        store.write("a/b", b"x").result()
        assert store.read("a/c").result().state == "missing"

    @pytest.mark.parametrize("key", ["a", "a/b/c/d", "a b", "ä", "a.b", "a%b", "x" * 200])
    def test_names(self, store: Any, key: str) -> None:
        store[key] = b"value"
        assert store[key] == b"value"
        assert store.list().result() == [key.encode()]

    def test_replaced_and_deleted(self, store: Any) -> None:
        for value in (b"1", b"22", b""):
            store["a"] = value
            assert store["a"] == value
        del store["a"]
        assert store.read("a").result().state == "missing"
        del store["a"]

    def test_ranges(self, store: Any) -> None:
        store["a"] = b"0123456789"
        for wanted in (slice(3, 5), slice(0, 10), slice(4, 4), slice(7, None), slice(-3, None)):
            assert store.read("a", byte_range=wanted).result().value == b"0123456789"[wanted]

    def test_list_of_ranges(self, store: Any) -> None:
        for key in ("a/b", "a/c/d", "b", "c/e"):
            store[key] = b""
        found = store.list(tensorstore.KvStore.KeyRange("a/", "b")).result()
        assert sorted(found) == [b"a/b", b"a/c/d"]
        assert sorted(store.list(tensorstore.KvStore.KeyRange("a/c", "c"), strip_prefix_length=1).result()) == [b"", b"/c/d"]
        assert len(store.list().result()) == 4

    def test_delete_range(self, store: Any) -> None:
        for key in ("a/b", "a/c/d", "b", "c/e"):
            store[key] = b""
        store.delete_range(tensorstore.KvStore.KeyRange("a/b", "b")).result()
        assert sorted(store.list().result()) == [b"b", b"c/e"]
        store.delete_range(tensorstore.KvStore.KeyRange("", "")).result()
        assert store.list().result() == []

    def test_conditional_writes(self, store: Any) -> None:
        first = store.write("a", b"1").result().generation
        second = store.write("a", b"2", if_equal=first).result().generation
        assert second != first
        store.write("a", b"3", if_equal=first).result()
        assert store["a"] == b"2"
        missing = store.read("b").result().stamp.generation
        store.write("b", b"1", if_equal=missing).result()
        store.write("b", b"2", if_equal=missing).result()
        assert store["b"] == b"1"

    def test_conditional_reads(self, store: Any) -> None:
        generation = store.write("a", b"1").result().generation
        assert store.read("a", if_not_equal=generation).result().state == "unspecified"
        store["a"] = b"22"
        assert store.read("a", if_not_equal=generation).result().value == b"22"

    def test_concurrent_counters(self, store: Any, tmp_path: Path) -> None:
        store["n"] = b"0"

        def count(_: int) -> None:
            mine = tensorstore.KvStore.open(kvstore(tmp_path / "k"), context=tensorstore.Context()).result()
            for _ in range(10):
                while True:
                    found = mine.read("n").result()
                    value = str(int(found.value) + 1).encode()
                    if mine.write("n", value, if_equal=found.stamp.generation).result().generation:
                        break

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(count, range(4)))
        assert store["n"] == b"40"

    @pytest.mark.parametrize("mode", [{}, {"atomic": True}], ids=["isolated", "atomic"])
    def test_transaction(self, store: Any, mode: dict[str, bool]) -> None:
        store["a"] = b"1"
        with tensorstore.Transaction(**mode) as transaction:
            changed = store.with_transaction(transaction)
            changed["a"] = b"2"
            assert (changed["a"], store["a"]) == (b"2", b"1")
        assert store["a"] == b"2"

    def test_transaction_with_several_keys(self, store: Any) -> None:
        store["gone"] = b"1"
        with tensorstore.Transaction() as transaction:
            changed = store.with_transaction(transaction)
            changed["a"], changed["b/c"] = b"2", b"3"
            del changed["gone"]
        assert sorted(store.list().result()) == [b"a", b"b/c"]

    def test_transaction_that_is_aborted(self, store: Any) -> None:
        transaction = tensorstore.Transaction()
        store.with_transaction(transaction)["a"] = b"1"
        transaction.abort()
        assert store.list().result() == []

    def test_transaction_that_is_overtaken(self, store: Any) -> None:
        store["a"] = b"1"
        transaction = tensorstore.Transaction(repeatable_read=True)
        changed = store.with_transaction(transaction)
        assert changed["a"] == b"1"
        changed["b"] = b"2"
        store["a"] = b"3"
        with pytest.raises(ValueError, match="ABORTED"):
            transaction.commit_sync()


class TestOtherDrivers:
    def test_json(self, tmp_path: Path) -> None:
        spec = {"driver": "json", "kvstore": {"driver": "file", "path": f"{tmp_path}/a.json"}, "json_pointer": "/b"}
        tensorstore.open(spec).result().write({"c": [1, 2]}).result()
        assert tensorstore.open(spec, context=tensorstore.Context()).result().read().result().item() == {"c": [1, 2]}

    @pytest.mark.parametrize("count", [1, 300])
    def test_ocdbt(self, tmp_path: Path, count: int) -> None:
        spec = {"driver": "ocdbt", "base": f"file://{tmp_path}/o/"}
        store = tensorstore.KvStore.open(spec).result()
        for write in [store.write(f"{number:04}", str(number)) for number in range(count)]:
            write.result()
        again = tensorstore.KvStore.open(spec, context=tensorstore.Context()).result()
        assert len(again.list().result()) == count
        assert again[f"{count - 1:04}"] == str(count - 1).encode()

    def test_ocdbt_array(self, tmp_path: Path) -> None:
        spec = {"driver": "zarr3", "kvstore": {"driver": "ocdbt", "base": f"file://{tmp_path}/o/"}}
        values = numpy.arange(100).reshape(10, 10)
        array = tensorstore.open(spec, create=True, dtype=values.dtype, shape=[10, 10], chunk_layout=_CHUNKS).result()
        array.write(values).result()
        again = tensorstore.open(spec, open=True, context=tensorstore.Context()).result()
        assert (again.read().result() == values).all()

    def test_zip(self, tmp_path: Path) -> None:
        with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
            archive.writestr("b/c", b"value")
        store = tensorstore.KvStore.open({"driver": "zip", "base": {"driver": "file", "path": f"{tmp_path}/a.zip"}}).result()
        assert store["b/c"] == b"value"
