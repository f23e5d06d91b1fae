"""Arrays of tensorstore in its file store: its package has no tests, and the tests of its sources are in C++.

A test opens what it has written a second time, with a context of its own, so that nothing is read from a cache.
"""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy
import pytest
import tensorstore

V2_TYPES = ("|b1", "|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8", "<c8", "<c16", "bfloat16")
V2_BIG = (">i2", ">u4", ">i8", ">f4", ">f8", ">c8")
V3_TYPES = (
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128", "bfloat16"),
)
GRIDS = (
    ((), ()),
    ((5,), (5,)),
    ((5,), (2,)),
    ((5,), (8,)),
    ((4, 6), (2, 3)),
    ((4, 6), (3, 4)),
    ((4, 6), (1, 6)),
    ((3, 4, 5), (2, 2, 2)),
    ((2, 1, 3, 2), (1, 1, 2, 2)),
    ((0, 4), (2, 2)),
)
REGIONS = {
    "element": numpy.s_[3, 4],
    "rows": numpy.s_[2:9],
    "column": numpy.s_[:, 5],
    "box": numpy.s_[1:8, 2:7],
    "steps": numpy.s_[::3, ::2],
    "all": numpy.s_[...],
}
SHARDED: dict[str, Any] = {
    "name": "sharding_indexed",
    "configuration": {
        "chunk_shape": [2, 5],
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "zstd", "configuration": {"level": 1}}],
        "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}],
    },
}
KINDS = ("zarr", "zarr3", "shards")
"""Arrays of Zarr 2 and 3 without compression, and arrays of Zarr 3 in compressed shards."""


def elements(shape: tuple[int, ...], dtype: Any = "int32") -> Any:
    return (numpy.arange(1, 1 + numpy.prod(shape, dtype=int)) % 100).reshape(shape).astype(dtype)


def kvstore(folder: Path) -> dict[str, str]:
    return {"driver": "file", "path": f"{folder}/"}


def opened(folder: Path, driver: str, **options: Any) -> Any:
    spec = {"driver": driver, "kvstore": kvstore(folder)} | {
        key: options.pop(key) for key in ("metadata", "field") if key in options
    }
    return tensorstore.open(spec, context=tensorstore.Context(), **options).result()


def v2(shape: tuple[int, ...], chunks: tuple[int, ...], dtype: Any = "<i4", **more: Any) -> dict[str, Any]:
    known = {"compressor": None, "filters": None, "fill_value": None, "order": "C", "zarr_format": 2}
    return known | {"shape": shape, "chunks": chunks, "dtype": dtype} | more


def v3(shape: tuple[int, ...], chunks: tuple[int, ...], dtype: str = "int32", **more: Any) -> dict[str, Any]:
    grid = {"name": "regular", "configuration": {"chunk_shape": chunks}}
    bytes_codec = {"name": "bytes", "configuration": {"endian": "little"}}
    return {"shape": shape, "chunk_grid": grid, "data_type": dtype, "codecs": [bytes_codec]} | more


def kind(folder: Path, kind: str) -> tuple[Any, str]:
    """Return a new array of 10 by 10 elements of a kind, and its driver."""
    match kind:
        case "zarr":
            return opened(folder, "zarr", create=True, metadata=v2((10, 10), (4, 5))), "zarr"
        case "zarr3":
            return opened(folder, "zarr3", create=True, metadata=v3((10, 10), (4, 5))), "zarr3"
        case _:
            return opened(folder, "zarr3", create=True, metadata=v3((10, 10), (4, 10), codecs=[SHARDED])), "zarr3"


def round_trip(folder: Path, driver: str, metadata: dict[str, Any], values: Any) -> None:
    opened(folder, driver, create=True, metadata=metadata).write(values).result()
    found = opened(folder, driver, open=True).read().result()
    assert found.dtype == values.dtype
    numpy.testing.assert_array_equal(found, values)


class TestTypes:
    @pytest.mark.parametrize("dtype", V2_TYPES)
    def test_zarr(self, tmp_path: Path, dtype: str) -> None:
        native = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
        round_trip(tmp_path / "a", "zarr", v2((7, 5), (3, 2), dtype), elements((7, 5), native))

    @pytest.mark.parametrize("dtype", V2_BIG)
    def test_zarr_big_endian(self, tmp_path: Path, dtype: str) -> None:
        round_trip(tmp_path / "a", "zarr", v2((7, 5), (3, 2), dtype), elements((7, 5), numpy.dtype(dtype).newbyteorder("=")))

    @pytest.mark.parametrize("dtype", V3_TYPES)
    def test_zarr3(self, tmp_path: Path, dtype: str) -> None:
        native = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
        round_trip(tmp_path / "a", "zarr3", v3((7, 5), (3, 2), dtype), elements((7, 5), native))

    @pytest.mark.parametrize("dtype", ["int16", "float32", "complex128"])
    def test_zarr3_big_endian(self, tmp_path: Path, dtype: str) -> None:
        codecs = [{"name": "bytes", "configuration": {"endian": "big"}}]
        round_trip(tmp_path / "a", "zarr3", v3((7, 5), (3, 2), dtype, codecs=codecs), elements((7, 5), dtype))

    @pytest.mark.parametrize("field", ["x", "y"])
    def test_zarr_field_of_a_structure(self, tmp_path: Path, field: str) -> None:
        metadata = v2((6,), (4,), [["x", "<i2"], ["y", "<f4"]], fill_value="AAAAAAAA")
        array = opened(tmp_path / "a", "zarr", create=True, metadata=metadata, field=field)
        array.write(elements((6,), array.dtype.numpy_dtype)).result()
        for name in ("x", "y"):
            found = opened(tmp_path / "a", "zarr", open=True, field=name).read().result()
            assert list(found) == ([1, 2, 3, 4, 5, 6] if name == field else [0] * 6)


class TestGrids:
    @pytest.mark.parametrize(("shape", "chunks"), GRIDS, ids=str)
    def test_zarr(self, tmp_path: Path, shape: tuple[int, ...], chunks: tuple[int, ...]) -> None:
        round_trip(tmp_path / "a", "zarr", v2(shape, chunks), elements(shape))

    @pytest.mark.parametrize(("shape", "chunks"), GRIDS, ids=str)
    def test_zarr3(self, tmp_path: Path, shape: tuple[int, ...], chunks: tuple[int, ...]) -> None:
        round_trip(tmp_path / "a", "zarr3", v3(shape, chunks), elements(shape))

    @pytest.mark.parametrize("separator", [".", "/"])
    def test_zarr_separator(self, tmp_path: Path, separator: str) -> None:
        round_trip(tmp_path / "a", "zarr", v2((4, 6), (2, 3), dimension_separator=separator), elements((4, 6)))

    @pytest.mark.parametrize("separator", [".", "/"])
    @pytest.mark.parametrize("encoding", ["default", "v2"])
    def test_zarr3_separator(self, tmp_path: Path, encoding: str, separator: str) -> None:
        keys = {"name": encoding, "configuration": {"separator": separator}}
        round_trip(tmp_path / "a", "zarr3", v3((4, 6), (2, 3), chunk_key_encoding=keys), elements((4, 6)))

    @pytest.mark.parametrize("shape", [(4, 6), (3, 4, 5), (2, 3, 2, 3)], ids=str)
    def test_zarr_order_f(self, tmp_path: Path, shape: tuple[int, ...]) -> None:
        round_trip(tmp_path / "a", "zarr", v2(shape, (2,) * len(shape), order="F"), elements(shape))

    @pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)])
    def test_zarr3_order(self, tmp_path: Path, order: tuple[int, ...]) -> None:
        codecs = [
            {"name": "transpose", "configuration": {"order": order}},
            {"name": "bytes", "configuration": {"endian": "little"}},
        ]
        round_trip(tmp_path / "a", "zarr3", v3((3, 4, 5), (2, 3, 2), codecs=codecs), elements((3, 4, 5)))


class TestCompressors:
    @pytest.mark.parametrize("shuffle", [0, 1, 2])
    @pytest.mark.parametrize("cname", ["blosclz", "lz4", "lz4hc", "zlib", "zstd"])
    def test_zarr_blosc(self, tmp_path: Path, cname: str, shuffle: int) -> None:
        compressor = {"id": "blosc", "cname": cname, "clevel": 5, "shuffle": shuffle, "blocksize": 0}
        round_trip(tmp_path / "a", "zarr", v2((40, 50), (16, 32), "<f4", compressor=compressor), elements((40, 50), "f4"))

    @pytest.mark.parametrize("name", ["zlib", "bz2", "zstd", "gzip"])
    def test_zarr_compressor(self, tmp_path: Path, name: str) -> None:
        round_trip(tmp_path / "a", "zarr", v2((40, 50), (16, 32), compressor={"id": name, "level": 1}), elements((40, 50)))

    @pytest.mark.parametrize("shuffle", ["noshuffle", "shuffle", "bitshuffle"])
    @pytest.mark.parametrize("cname", ["blosclz", "lz4", "lz4hc", "zlib", "zstd"])
    def test_zarr3_blosc(self, tmp_path: Path, cname: str, shuffle: str) -> None:
        blosc = {"cname": cname, "clevel": 5, "shuffle": shuffle, "typesize": 4, "blocksize": 0}
        codecs = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "blosc", "configuration": blosc}]
        round_trip(tmp_path / "a", "zarr3", v3((40, 50), (16, 32), "float32", codecs=codecs), elements((40, 50), "f4"))

    @pytest.mark.parametrize("names", [("gzip",), ("zstd",), ("crc32c",), ("gzip", "crc32c"), ("crc32c", "zstd")], ids="-".join)
    def test_zarr3_codecs(self, tmp_path: Path, names: tuple[str, ...]) -> None:
        codecs: list[dict[str, Any]] = [{"name": "bytes", "configuration": {"endian": "little"}}]
        codecs += [{"name": name} | ({} if name == "crc32c" else {"configuration": {"level": 1}}) for name in names]
        round_trip(tmp_path / "a", "zarr3", v3((40, 50), (16, 32), codecs=codecs), elements((40, 50)))


class TestShards:
    @pytest.mark.parametrize("location", ["start", "end"])
    @pytest.mark.parametrize("inner", [(2, 5), (4, 10), (1, 1), (8, 10)])
    def test_shapes_of_inner_chunks_in_shards(self, tmp_path: Path, inner: tuple[int, int], location: str) -> None:
        codec = {**SHARDED, "configuration": {**SHARDED["configuration"], "chunk_shape": inner, "index_location": location}}
        round_trip(tmp_path / "a", "zarr3", v3((20, 25), (8, 10), codecs=[codec]), elements((20, 25)))

    @pytest.mark.parametrize("chunk", [(0, 0), (3, 1), (7, 4)])
    def test_inner_chunks_of_shards_are_written_one_by_one(self, tmp_path: Path, chunk: tuple[int, int]) -> None:
        array = opened(tmp_path / "a", "zarr3", create=True, metadata=v3((16, 25), (16, 25), codecs=[SHARDED]))
        row, column = chunk[0] * 2, chunk[1] * 5
        array[row : row + 2, column : column + 5].write(7).result()
        array[0, 0].write(9).result()
        wanted = numpy.zeros((16, 25), "int32")
        wanted[row : row + 2, column : column + 5] = 7
        wanted[0, 0] = 9
        numpy.testing.assert_array_equal(opened(tmp_path / "a", "zarr3", open=True).read().result(), wanted)

    def test_an_emptied_shard_is_removed(self, tmp_path: Path) -> None:
        array, driver = kind(tmp_path / "a", "shards")
        array.write(elements((10, 10))).result()
        array[:4].write(0).result()
        assert not (tmp_path / "a/c/0/0").exists()
        assert (opened(tmp_path / "a", driver, open=True)[4:].read().result() == elements((10, 10))[4:]).all()


class TestFillValues:
    @pytest.mark.parametrize("value", [None, 0, 7.5, -1, "NaN", "Infinity", "-Infinity"])
    def test_zarr(self, tmp_path: Path, value: Any) -> None:
        array = opened(tmp_path / "a", "zarr", create=True, metadata=v2((6,), (2,), "<f8", fill_value=value))
        array[2].write(3).result()
        wanted = numpy.full(6, float(value or 0))
        wanted[2] = 3
        numpy.testing.assert_array_equal(opened(tmp_path / "a", "zarr", open=True).read().result(), wanted)

    @pytest.mark.parametrize("value", [0, 7.5, -1, "NaN", "Infinity", "-Infinity"])
    def test_zarr3(self, tmp_path: Path, value: Any) -> None:
        array = opened(tmp_path / "a", "zarr3", create=True, metadata=v3((6,), (2,), "float64", fill_value=value))
        array[2].write(3).result()
        wanted = numpy.full(6, float(value))
        wanted[2] = 3
        numpy.testing.assert_array_equal(opened(tmp_path / "a", "zarr3", open=True).read().result(), wanted)

    @pytest.mark.parametrize("name", ["zarr", "zarr3"])
    def test_a_chunk_of_the_fill_value_is_removed(self, tmp_path: Path, name: str) -> None:
        make = v2 if name == "zarr" else v3
        array = opened(tmp_path / "a", name, create=True, metadata=make((6,), (2,), fill_value=1))
        array.write(5).result()
        array[2:4].write(1).result()
        assert not (tmp_path / "a" / ("1" if name == "zarr" else "c/1")).exists()
        assert list(opened(tmp_path / "a", name, open=True).read().result()) == [5, 5, 1, 1, 5, 5]


@pytest.mark.parametrize("name", KINDS)
class TestParts:
    @pytest.mark.parametrize("region", REGIONS.values(), ids=REGIONS)
    def test_written_over_elements(self, tmp_path: Path, name: str, region: Any) -> None:
        array, driver = kind(tmp_path / "a", name)
        wanted = elements((10, 10))
        array.write(wanted).result()
        array[region].write(-wanted[region]).result()
        wanted[region] *= -1
        numpy.testing.assert_array_equal(opened(tmp_path / "a", driver, open=True).read().result(), wanted)

    @pytest.mark.parametrize("region", REGIONS.values(), ids=REGIONS)
    def test_written_into_nothing_and_read(self, tmp_path: Path, name: str, region: Any) -> None:
        array, driver = kind(tmp_path / "a", name)
        array[region].write(5).result()
        again = opened(tmp_path / "a", driver, open=True)
        assert (again[region].read().result() == 5).all()
        wanted = numpy.zeros((10, 10), "int32")
        wanted[region] = 5
        numpy.testing.assert_array_equal(again.read().result(), wanted)

    def test_index_arrays_and_masks(self, tmp_path: Path, name: str) -> None:
        array, driver = kind(tmp_path / "a", name)
        array.vindex[[1, 5, 9], [0, 4, 9]].write([1, 2, 3]).result()
        array[numpy.eye(10, dtype=bool)[::-1]].write(4).result()
        wanted = numpy.zeros((10, 10), "int32")
        wanted[[1, 5, 9], [0, 4, 9]] = [1, 2, 3]
        wanted[numpy.eye(10, dtype=bool)[::-1]] = 4
        numpy.testing.assert_array_equal(opened(tmp_path / "a", driver, open=True).read().result(), wanted)

    def test_many_writes_at_once(self, tmp_path: Path, name: str) -> None:
        array, driver = kind(tmp_path / "a", name)
        for write in [array[row].write(elements((10,)) + row) for row in range(10)]:
            write.result()
        wanted = elements((10,)) + numpy.arange(10)[:, None]
        numpy.testing.assert_array_equal(opened(tmp_path / "a", driver, open=True).read().result(), wanted)

    def test_threads_write_rows_of_the_same_chunks(self, tmp_path: Path, name: str) -> None:
        _, driver = kind(tmp_path / "a", name)

        def write(row: int) -> None:
            opened(tmp_path / "a", driver, open=True)[row].write(row + 1).result()

        with ThreadPoolExecutor(5) as pool:
            list(pool.map(write, range(10)))
        assert (opened(tmp_path / "a", driver, open=True).read().result() == numpy.arange(1, 11)[:, None]).all()

    def test_processes_write_rows_of_the_same_chunks(self, tmp_path: Path, name: str) -> None:
        _, driver = kind(tmp_path / "a", name)
        programs = [
            subprocess.Popen([sys.executable, "-c", _WRITER, driver, f"{tmp_path / 'a'}/", str(first)]) for first in range(3)
        ]
        assert [program.wait() for program in programs] == [0, 0, 0]
        assert (opened(tmp_path / "a", driver, open=True).read().result() == numpy.arange(1, 11)[:, None]).all()


_WRITER = """
import sys, tensorstore
array = tensorstore.open({"driver": sys.argv[1], "kvstore": {"driver": "file", "path": sys.argv[2]}}).result()
for row in range(int(sys.argv[3]), 10, 3):
    array[row].write(row + 1).result()
"""


@pytest.mark.parametrize("name", KINDS)
class TestArrays:
    def test_opened_by_another_context_while_written(self, tmp_path: Path, name: str) -> None:
        array, driver = kind(tmp_path / "a", name)
        again = opened(tmp_path / "a", driver, open=True)
        for value in (1, 2, 3):
            array[4].write(value).result()
            assert (again[4].read().result() == value).all()

    def test_creating_over_an_array_fails(self, tmp_path: Path, name: str) -> None:
        kind(tmp_path / "a", name)
        with pytest.raises(ValueError, match="ALREADY_EXISTS"):
            kind(tmp_path / "a", name)

    def test_opening_nothing_fails(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(ValueError, match="NOT_FOUND"):
            opened(tmp_path / "a", "zarr" if name == "zarr" else "zarr3", open=True)

    def test_open_or_create(self, tmp_path: Path, name: str) -> None:
        array, driver = kind(tmp_path / "a", name)
        array.write(6).result()
        again = opened(tmp_path / "a", driver, open=True, create=True, dtype=tensorstore.int32, shape=[10, 10])
        assert (again.read().result() == 6).all()

    def test_opening_with_another_type_fails(self, tmp_path: Path, name: str) -> None:
        _, driver = kind(tmp_path / "a", name)
        with pytest.raises(ValueError, match="FAILED_PRECONDITION"):
            opened(tmp_path / "a", driver, open=True, create=True, dtype=tensorstore.float32, shape=[10, 10])

    def test_delete_existing(self, tmp_path: Path, name: str) -> None:
        array, driver = kind(tmp_path / "a", name)
        array.write(6).result()
        metadata = v2((3, 3), (2, 2)) if driver == "zarr" else v3((3, 3), (2, 2))
        opened(tmp_path / "a", driver, create=True, delete_existing=True, metadata=metadata)
        again = opened(tmp_path / "a", driver, open=True)
        assert again.shape == (3, 3)
        assert not again.read().result().any()

    @pytest.mark.parametrize("shape", [(14, 10), (10, 11), (20, 20)], ids=str)
    def test_grown(self, tmp_path: Path, name: str, shape: tuple[int, int]) -> None:
        array, driver = kind(tmp_path / "a", name)
        array.write(6).result()
        array = array.resize(exclusive_max=shape).result()
        array[shape[0] - 1].write(7).result()
        again = opened(tmp_path / "a", driver, open=True)
        wanted = numpy.zeros(shape, "int32")
        wanted[:10, :10] = 6
        wanted[-1] = 7
        numpy.testing.assert_array_equal(again.read().result(), wanted)

    @pytest.mark.parametrize("shape", [(10, 9), (4, 5), (1, 1)], ids=str)
    def test_shrunk(self, tmp_path: Path, name: str, shape: tuple[int, int]) -> None:
        array, driver = kind(tmp_path / "a", name)
        array.write(6).result()
        array.resize(exclusive_max=shape).result()
        again = opened(tmp_path / "a", driver, open=True)
        assert again.shape == shape
        assert (again.read().result() == 6).all()

    def test_resize_of_metadata_only(self, tmp_path: Path, name: str) -> None:
        array, driver = kind(tmp_path / "a", name)
        array.resize(exclusive_max=(4, 4), resize_metadata_only=True).result()
        assert opened(tmp_path / "a", driver, open=True).shape == (4, 4)

    def test_transaction_of_an_array(self, tmp_path: Path, name: str) -> None:
        array, driver = kind(tmp_path / "a", name)
        with tensorstore.Transaction() as transaction:
            changed = array.with_transaction(transaction)
            changed[2].write(1).result()
            changed[8].write(2).result()
            assert not array.read().result().any()
        found = opened(tmp_path / "a", driver, open=True).read().result()
        assert (found.sum(), found[2].sum(), found[8].sum()) == (30, 10, 20)

    def test_transaction_that_is_aborted(self, tmp_path: Path, name: str) -> None:
        array, driver = kind(tmp_path / "a", name)
        transaction = tensorstore.Transaction()
        array.with_transaction(transaction)[2].write(1).result()
        transaction.abort()
        assert not opened(tmp_path / "a", driver, open=True).read().result().any()


def test_zarr3_attributes_and_names_of_dimensions(tmp_path: Path) -> None:
    metadata = v3((4, 6), (2, 3), attributes={"units": "K", "list": [1, None]}, dimension_names=["y", None])
    opened(tmp_path / "a", "zarr3", create=True, metadata=metadata)
    found = opened(tmp_path / "a", "zarr3", open=True)
    assert found.spec().to_json()["metadata"]["attributes"] == {"units": "K", "list": [1, None]}
    assert found.domain.labels == ("y", "")
