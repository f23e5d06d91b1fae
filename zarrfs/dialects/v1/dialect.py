"""Zarr v1: ``meta``, ``attrs`` and chunks ``0.0`` in the folder of each array.

Source: Zarr storage specification version 1; sections are named where a rule is followed.

    t2m/meta     {"chunks": [100], "compression": "blosc", "compression_opts": {"clevel": 5, ...}, "dtype": "<f4", "fill_value": null,
                  "order": "C", "shape": [365], "zarr_format": 1}
    t2m/attrs    {"units": "K"}; {} if there are none
    t2m/0        a chunk, compressed

Deviations of the software (zarr 1.0 and 1.1):

* **Order "F".** The specification: 'column-major order, i.e., the first dimension varies fastest'. The software passes chunks to Blosc in
  memory order, column-major, but converts them to bytes in row-major order for every other compressor and for none, and reads them so.
  Archives were written by it, so we read that; the choice ``order=text`` reads what the specification requires. Nothing in the store
  distinguishes the two: each affected array reports it (in its ``quirks`` and in the log), and no array is *written* with another
  compressor and order F, as all readers agree on C.
* NaN and the infinities are bare tokens (`zarrfs.dialects.bare_fill`).
* ``compression`` may be null, meaning "none" (`zarrfs.dialects.v1.compression`).

``meta`` and ``attrs`` are common names: a ``meta`` without members of an array is not of this dialect, unless ``attrs`` is beside it. The
chunk of a 0-dimensional array, absent from the specification and impossible in the software, is ``0``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from zarrfs.dialects.arrays_only import ArraysOnlyLayout, format_common, parse_common
from zarrfs.dialects.base import Dialect, Documents
from zarrfs.dialects.documents import member, parse_object, shortened
from zarrfs.dialects.v1.compression import format_compression, parse_compression
from zarrfs.errors import MetadataError, NotRepresentable
from zarrfs.keys import ROOT, Key, NodePath, Prefix
from zarrfs.model import chunk_key
from zarrfs.model.codec_spec import CodecSpec
from zarrfs.model.metadata import ArrayMetadata

META = "meta"
ATTRS = "attrs"
_SOFTWARE, _TEXT = "software", "text"
_MARKS = frozenset({"shape", "chunks", "dtype"})


@dataclass(frozen=True)
class V1(Dialect):
    """Zarr v1. ``order``: interpretation of chunks in order F that Blosc did not compress."""

    name = "v1"
    priority = 200
    has_groups = False
    has_undefined_fill = True
    chunk_key_encoding = chunk_key.v2(".")
    new_codecs = (CodecSpec("blosc", {"cname": "lz4", "clevel": 5, "shuffle": "shuffle", "blocksize": 0}),)
    choices = {"order": (_SOFTWARE, _TEXT)}  # noqa: RUF012

    order: str = _SOFTWARE

    def choosing(self, chosen: Mapping[str, str]) -> V1:
        return V1(**chosen)

    def root_keys(self, prefix: Prefix) -> tuple[Key, ...]:
        return prefix.key(META), prefix.key(ATTRS)

    def open(self, prefix: Prefix, documents: Documents) -> V1Layout | None:
        layout = V1Layout(self, prefix)
        try:
            return layout if layout.describes_array(documents) else None
        except MetadataError:
            return layout

    def create(self, prefix: Prefix) -> V1Layout:
        return V1Layout(self, prefix)


@dataclass(frozen=True)
class V1Layout(ArraysOnlyLayout):
    """Arrays of v1."""

    array_name: ClassVar[str] = META
    attributes_name: ClassVar[str] = ATTRS
    document_names: ClassVar[frozenset[str]] = frozenset((META, ATTRS))
    always_attributes: ClassVar[bool] = True

    dialect: V1

    def shared_keys(self, path: NodePath) -> tuple[Key, ...]:
        return self.document_keys(path)[:1]

    def reserved_keys(self, path: NodePath) -> tuple[Key, ...]:
        # Many files of other programs are called "meta".
        return ()

    def describes_array(self, documents: Documents) -> bool:
        """Return True if ``documents`` include those of an array at the root. Raises `MetadataError` if that is unreadable."""
        key, _ = self.document_keys(ROOT)
        return key in documents and self.read_array(key, documents) is not None

    def read_array(self, key: Key, documents: Documents) -> dict[str, Any] | None:
        has_attributes = key.parent.key(ATTRS) in documents
        try:
            document = parse_object(key, documents[key])
        except MetadataError:
            if has_attributes or documents[key].lstrip()[:1] == b"{":
                raise
            return None
        return document if has_attributes or "zarr_format" in document or document.keys() >= _MARKS else None

    def parse_array(self, document: Mapping[str, Any]) -> tuple[ArrayMetadata, tuple[str, ...]]:
        version = member(document, "zarr_format")
        if type(version) is not int or version != 1:
            raise MetadataError(f"zarr_format must be 1, not {shortened(version)}")
        order = member(document, "order")
        if order not in ("C", "F"):
            raise MetadataError(f"order must be 'C' or 'F', not {shortened(order)}")
        compressors = parse_compression(document)
        is_doubtful = order == "F" and not _keeps_order(compressors)
        reverse = order == "F" and (not is_doubtful or self.dialect.order == _TEXT)
        metadata = parse_common(document, self.dialect.chunk_key_encoding, compressors, reverse=reverse)
        if not is_doubtful or metadata.ndim < 2:
            return metadata, ()
        return metadata, (_ORDER_AS_TEXT if reverse else _ORDER_AS_SOFTWARE,)

    def format_array(self, metadata: ArrayMetadata) -> dict[str, Any]:
        common, reverse, compressors = format_common(metadata, self.dialect)
        if reverse and not _keeps_order(compressors):
            raise NotRepresentable("v1: readers agree on chunks in order F only if blosc compressed them")
        return common | format_compression(compressors) | {"order": "F" if reverse else "C", "zarr_format": 1}

    def _against(self, name: str) -> str | None:
        return "a key is an ASCII string" if not name.isascii() else super()._against(name)


def _keeps_order(compressors: list[dict[str, Any]]) -> bool:
    """Return True if the software stores chunks of order F in order F."""
    return bool(compressors) and compressors[0]["id"] == "blosc"


_ORDER_AS_SOFTWARE = (
    "order is F and the compressor is not blosc: chunks are read in C order, as zarr 1.x wrote them;"
    " --dialect-choices v1.order=text reads them in F order, as specified"
)
_ORDER_AS_TEXT = (
    "order is F and the compressor is not blosc: chunks are read in F order, as specified and chosen by v1.order=text;"
    " zarr 1.x wrote them in C order"
)

PLUGIN = V1()
