"""``.npy``: NumPy's own format for one array.

Source: numpy.lib.format (NEP 1). Files are in C order and little-endian; NumPy writes the header and decides on its version and
padding. Types that NumPy lacks (bfloat16, float8, int4) are void of the same width.
"""

from __future__ import annotations

import ast
import io
import math
import re

import numpy as np

from zarrfs.containers.base import Container, Elements, FileLayout, Head, Literal
from zarrfs.errors import ContentInvalid, NotRepresentable
from zarrfs.model.data_type import require_plain
from zarrfs.model.metadata import ArrayMetadata

# The header length follows the magic string and the version; its own width in bytes depends on the major version.
_PREFIX_NBYTES = len(np.lib.format.MAGIC_PREFIX) + 2
_LENGTH_NBYTES = {1: 2, 2: 4}
_LONGEST_PREFIX_NBYTES = _PREFIX_NBYTES + max(_LENGTH_NBYTES.values())
# Limit of a header. NumPy's own is 10,000; a structured type with a thousand fields needs more.
_MAX_NBYTES = 64 * 1024
# The suffix of integers that Python 2 wrote, as in (3L, 4L); strings are skipped.
_LONG = re.compile(r"""('[^']*'|"[^"]*")|(?<=\d)L\b""")


class Npy(Container):
    """See the module's text. Reads headers of versions 1.0 and 2.0, C and Fortran order, either byte order."""

    name = "npy"
    example = ('python3 -c \'import numpy; print(numpy.load("npy/NAME.npy", mmap_mode="r").shape)\'', "an array, without Zarr")
    suffix = ".npy"
    writable = True

    def layout(self, metadata: ArrayMetadata) -> FileLayout:
        require_plain(metadata.data_type, "an .npy file")
        header = io.BytesIO()
        content = {
            "descr": np.lib.format.dtype_to_descr(metadata.data_type.npy_dtype),
            "fortran_order": False,
            "shape": metadata.shape,
        }
        try:
            np.lib.format.write_array_header_1_0(header, content)
        except ValueError:
            # A structured type may exceed the 16-bit header length of version 1.0.
            try:
                np.lib.format.write_array_header_2_0(header, content)
            except (ValueError, UnicodeEncodeError) as error:
                raise NotRepresentable(f"an .npy file cannot represent {metadata.data_type.name}: {error}") from error
        literal = Literal(0, header.getvalue())
        if metadata.nbytes == 0:
            return FileLayout((literal,))
        return FileLayout((literal, Elements(literal.nbytes, metadata.nbytes)))

    def read_head(self, data: bytes) -> Head | None:
        prefix = data[:_PREFIX_NBYTES]
        magic = prefix[: len(np.lib.format.MAGIC_PREFIX)]
        # Zeros may be a place for the header, which some programs write after ftruncate(2), or last, and in pieces.
        awaited = len(data) > _LONGEST_PREFIX_NBYTES
        if any(byte != right and (byte or not awaited) for byte, right in zip(magic, np.lib.format.MAGIC_PREFIX, strict=False)):
            raise ContentInvalid("not an .npy file: it does not begin with \\x93NUMPY")
        if len(prefix) < _PREFIX_NBYTES or 0 in magic or prefix[-2:] == b"\0\0":
            return None
        major, minor = prefix[-2:]
        if major not in _LENGTH_NBYTES or minor != 0:
            raise ContentInvalid(f".npy version {major}.{minor} is not supported; 1.0 and 2.0 are")
        begin = _PREFIX_NBYTES + _LENGTH_NBYTES[major]
        if len(data) < begin:
            return None
        nbytes = begin + int.from_bytes(data[_PREFIX_NBYTES:begin], "little")
        if nbytes > _MAX_NBYTES:
            raise ContentInvalid(f".npy header of {nbytes} bytes exceeds the limit of {_MAX_NBYTES}")
        if len(data) < nbytes or nbytes == begin or 0 in data[begin:nbytes]:
            return None
        read = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
        try:
            header = _of_python_3(data[begin:nbytes])
            file = io.BytesIO(len(header).to_bytes(_LENGTH_NBYTES[major], "little") + header)
            shape, fortran_order, dtype = read(file, max_header_size=_MAX_NBYTES)
        except Exception as error:
            raise ContentInvalid(f".npy header cannot be parsed: {error}") from error
        if dtype.hasobject:
            raise ContentInvalid(".npy file of Python objects is a pickle, which is not supported")
        if any(extent < 0 for extent in shape) or math.prod(shape) * dtype.itemsize > 2**62:
            raise ContentInvalid(f".npy header: invalid shape {shape}")
        return Head(nbytes, tuple(int(extent) for extent in shape), dtype, bool(fortran_order))


def _of_python_3(header: bytes) -> bytes:
    """Return ``header`` as a literal of Python 3. Raises SyntaxError, ValueError and any other exception of parsing.

    NumPy passes any other header to `tokenize`, whose time is quadratic in its length: minutes for 64 KiB.
    """
    text = header.decode("latin1")
    try:
        ast.literal_eval(text)
    except SyntaxError:
        if "\\" in text:
            raise
        text = _LONG.sub(lambda found: found[1] or "", text)
        ast.literal_eval(text)
    return text.encode("latin1")


PLUGIN = Npy()
