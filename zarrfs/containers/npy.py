"""``.npy``: NumPy's own format for one array.

Source: numpy.lib.format (NEP 1). Always C order and little-endian; NumPy writes the header, so its version and padding are NumPy's.
Types that NumPy lacks (bfloat16, float8, int4) are void of the same width.
"""

from __future__ import annotations

import io

import numpy as np

from zarrfs.containers.base import Container, Elements, FileLayout, Literal
from zarrfs.errors import NotRepresentable
from zarrfs.model.data_type import require_plain
from zarrfs.model.metadata import ArrayMetadata


class Npy(Container):
    """See the module's text."""

    name = "npy"
    suffix = ".npy"

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
            # A structured type too long for version 1.0's 16-bit header length.
            try:
                np.lib.format.write_array_header_2_0(header, content)
            except (ValueError, UnicodeEncodeError) as error:
                raise NotRepresentable(f"an .npy file cannot say {metadata.data_type.name}: {error}") from error
        literal = Literal(0, header.getvalue())
        if metadata.nbytes == 0:
            return FileLayout((literal,))
        return FileLayout((literal, Elements(literal.nbytes, metadata.nbytes)))


PLUGIN = Npy()
