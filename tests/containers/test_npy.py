"""``.npy`` files equal those of NumPy, and NumPy's are read."""

from __future__ import annotations

import io
import tokenize

import numpy as np
import pytest
from hypothesis import given

from tests.containers.conformance import array
from tests.support.data_types import data_types, shapes
from tests.support.length import unhurried
from zarrfs.containers.base import Literal
from zarrfs.containers.npy import PLUGIN
from zarrfs.errors import ContentInvalid, NotRepresentable
from zarrfs.model.data_type import DataType, from_name, from_numpy


def written(data_type: DataType, shape: tuple[int, ...], elements: bytes) -> bytes:
    """Return the file, with these bytes as elements."""
    layout = PLUGIN.layout(array(shape, data_type))
    return b"".join(
        extent.data if isinstance(extent, Literal) else elements[extent.start : extent.start + extent.nbytes]
        for extent in layout.extents
    )


@unhurried
@given(data_type=data_types(), shape=shapes(max_ndim=3))
def test_numpy_reads_type_shape_and_elements(data_type: DataType, shape: tuple[int, ...]) -> None:
    count = int(np.prod(shape, dtype=object))
    elements = np.resize(np.arange(251, dtype="u1"), count * data_type.itemsize) if count else np.zeros(0, "u1")
    read = np.lib.format.read_array(io.BytesIO(written(data_type, shape, elements.tobytes())), allow_pickle=False)
    assert read.shape == shape
    assert read.dtype == data_type.npy_dtype
    assert read.tobytes() == elements.tobytes()
    assert read.flags.c_contiguous or read.size == 0


@pytest.mark.parametrize("name", ["bool", "int8", "uint64", "float16", "complex128"])
def test_the_bytes_are_numpys_own(name: str) -> None:
    data_type = from_name(name)
    values = np.arange(6).reshape(2, 3).astype(data_type.dtype)
    theirs = io.BytesIO()
    np.save(theirs, values)
    assert written(data_type, (2, 3), values.tobytes()) == theirs.getvalue()


def test_the_elements_are_aligned() -> None:
    for shape in [(), (5,), (1,) * 32]:
        assert PLUGIN.layout(array(shape, from_name("float64"))).extents[1].offset % 64 == 0


def test_fields_too_many_for_the_first_version_of_the_format() -> None:
    data_type = from_numpy(np.dtype([(f"a field with a long name, number {n}", "<i4") for n in range(2000)]))
    content = written(data_type, (1,), bytes(8000))
    assert np.lib.format.read_magic(io.BytesIO(content)) == (2, 0)
    # NumPy requires its caller to permit so long a header.
    assert np.lib.format.read_array(io.BytesIO(content), max_header_size=1 << 20).dtype == data_type.npy_dtype


def test_names_of_fields_beyond_latin_1_are_read_back_or_refused() -> None:
    data_type = from_numpy(np.dtype([("温度", "<f4")]))
    try:
        content = written(data_type, (1,), bytes(4))
    except NotRepresentable:
        return
    assert np.lib.format.read_array(io.BytesIO(content)).dtype.names == ("温度",)


def with_header(text: str) -> bytes:
    header = text.encode("latin1")
    return np.lib.format.magic(1, 0) + len(header).to_bytes(2, "little") + header


def test_a_header_that_python_2_wrote() -> None:
    head = PLUGIN.read_head(
        with_header("{'descr': [('a3L', '<i4'), ('3L', '<i2', (2L,))], 'fortran_order': False, 'shape': (3L, 4L), }\n")
    )
    assert head is not None
    assert (head.shape, head.dtype) == ((3, 4), np.dtype([("a3L", "<i4"), ("3L", "<i2", (2,))]))


@pytest.mark.parametrize("size", [8, 10_000])
@pytest.mark.parametrize("version", [1, 2])
def test_a_header_in_a_file_of_zeros_is_complete_with_its_last_byte(size: int, version: int) -> None:
    """Programs write it piece by piece into a file that ftruncate(2) has extended, or as the last part of the file."""
    file = io.BytesIO()
    write_header = np.lib.format.write_array_header_1_0 if version == 1 else np.lib.format.write_array_header_2_0
    write_header(file, {"descr": "<f8", "fortran_order": False, "shape": (size,)})
    header, elements = file.getvalue(), bytes(100)
    for written in range(len(header)):
        assert PLUGIN.read_head(header[:written] + bytes(len(header) - written) + elements) is None
    for missing in range(1, len(header)):
        assert PLUGIN.read_head(bytes(missing) + header[missing:] + elements) is None
    head = PLUGIN.read_head(header + elements)
    assert head is not None
    assert head.shape == (size,)


@pytest.mark.parametrize(
    "text",
    [
        "{'descr': '<f2', 'fortran_order': False, 'shape': (3, ",
        "{'descr': '<f2', 'fort\xc8er': False, 'shape, 'shape, 'shape",
        "{'descr': '<f2', 'fortran_order': False, 'shape': (3L\\",
        "{'descr': ('<f2',), 'fortran_order': False, 'shape': (3,)}",
        "{'descr': ('<f2', 10**9), 'fortran_order': False, 'shape': (3,)}",
        "{'descr': [('a',)], 'fortran_order': False, 'shape': (3,)}",
        "{'descr': '<f2', 'fortran_order': False, 'shape': (" + "9" * 5000 + ",)}",
        "(" * 60_000,
        "-" * 60_000,
    ],
    ids=lambda text: text[:50],
)
def test_headers_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(ContentInvalid):
        PLUGIN.read_head(with_header(text))


def test_no_header_is_handed_to_the_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tokenizer needs most of a minute for 60,000 blanks, and blocks all other requests meanwhile."""
    monkeypatch.setattr(tokenize, "generate_tokens", None)
    with pytest.raises(ContentInvalid, match="never closed"):
        PLUGIN.read_head(with_header("{'descr': '<f2', 'fortran_order': False, 'shape': (3," + " " * 60_000))
