"""The layout before Zarr 1.0: ``__zmeta__``, ``__zattr__`` and ``__zdata__/0.0.blosc`` in the folder of each array.

Source: "zarr - Persistence" (the documentation of zarr 0.3 and 0.4), the only specification. It has no version number; here it is v0.

    t2m/__zmeta__             {"chunks": [100], "clevel": 5, "cname": "lz4", "dtype": "<f4", "fill_value": NaN, ...}
    t2m/__zattr__             {"units": "K"}
    t2m/__zdata__/0.blosc     a Blosc container; the only compressor, in C order only

Behaviour of the software beyond the specification:

* ``fill_value`` may be null, and NaN and the infinities are bare tokens (`zarrfs.dialects.bare_fill`); ``dtype`` may be a list of fields.
* ``__zattr__`` exists once an attribute was set. Locks (``__zattr__.lock``, ``__zdata__/0.blosc.lock``) may be beside the locked key;
  they are neither nodes nor chunks.
* zarr 0.3.0 pickled ``__zmeta__``. It is recognised by its first bytes, refused, and never unpickled.

The chunk of a 0-dimensional array, which the software could not create, is ``0.blosc``, as in v2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from zarrfs.dialects.arrays_only import ArraysOnlyLayout, format_common, parse_common
from zarrfs.dialects.base import Dialect, Documents
from zarrfs.dialects.documents import integer, member, parse_object, shortened, string
from zarrfs.errors import MetadataError, MetadataUnsupported, NotRepresentable
from zarrfs.keys import Key, NodePath, Prefix
from zarrfs.model.chunk_key import ChunkKeyEncoding
from zarrfs.model.codec_spec import CodecSpec
from zarrfs.model.metadata import ArrayMetadata, ArrayNode, GroupNode

ZMETA = "__zmeta__"
ZATTR = "__zattr__"
ZDATA = "__zdata__"
# Protocol 0, as zarr 0.3.0 wrote it, of a dict or an object; protocol 1; and every later one, which begins with its number.
_PICKLES = (b"(dp", b"(lp", b"c", b"}", *(bytes([0x80, protocol]) for protocol in range(2, 6)))
_SHUFFLES = (0, 1, 2)


class V0(Dialect):
    """The layout before Zarr 1.0."""

    name = "v0"
    # After all others: if documents of two layouts are in one folder, those of the newer were written later.
    priority = 300
    has_groups = False
    has_undefined_fill = True
    lock_suffix = ".lock"
    chunk_key_encoding = ChunkKeyEncoding(prefix="", separator=".", scalar="0.blosc", suffix=".blosc")
    new_codecs = (CodecSpec("blosc", {"cname": "lz4", "clevel": 5, "shuffle": "shuffle", "blocksize": 0}),)

    def root_keys(self, prefix: Prefix) -> tuple[Key, ...]:
        return prefix.key(ZMETA), prefix.key(ZATTR)

    def open(self, prefix: Prefix, documents: Documents) -> V0Layout | None:
        return V0Layout(self, prefix) if prefix.key(ZMETA) in documents else None

    def create(self, prefix: Prefix) -> V0Layout:
        return V0Layout(self, prefix)


@dataclass(frozen=True)
class V0Layout(ArraysOnlyLayout):
    """Arrays of v0."""

    array_name: ClassVar[str] = ZMETA
    attributes_name: ClassVar[str] = ZATTR
    document_names: ClassVar[frozenset[str]] = frozenset((ZMETA, ZATTR))

    def chunk_prefix(self, path: NodePath) -> Prefix:
        return self.listing_prefix(path).child(ZDATA)

    def kept_prefixes(self, node: GroupNode | ArrayNode) -> tuple[Prefix, ...]:
        # The original software lists it without checking that it exists.
        return (self.chunk_prefix(node.path),) if isinstance(node, ArrayNode) else super().kept_prefixes(node)

    def read_array(self, key: Key, documents: Documents) -> dict[str, Any]:
        if documents[key].startswith(_PICKLES):
            raise MetadataUnsupported(
                f"{key}: pickle of zarr 0.3.0, refused: unpickling runs code from the store",
                key=key,
            )
        return parse_object(key, documents[key])

    def parse_array(self, document: Mapping[str, Any]) -> tuple[ArrayMetadata, tuple[str, ...]]:
        shuffle = member(document, "shuffle")
        if type(shuffle) is not int or shuffle not in _SHUFFLES:
            raise MetadataError(f"shuffle must be 0, 1 or 2, not {shortened(shuffle)}")
        blosc = {
            "id": "blosc",
            "cname": string(member(document, "cname"), "cname"),
            "clevel": integer(member(document, "clevel"), "clevel"),
            "shuffle": shuffle,
        }
        return parse_common(document, self.dialect.chunk_key_encoding, [blosc], reverse=False), ()

    def format_array(self, metadata: ArrayMetadata) -> dict[str, Any]:
        common, reverse, compressors = format_common(metadata, self.dialect)
        if reverse:
            raise NotRepresentable("v0 has only C order")
        if len(compressors) != 1 or compressors[0]["id"] != "blosc":
            raise NotRepresentable("v0 has only blosc compression")
        if compressors[0]["blocksize"] != 0 or compressors[0]["shuffle"] not in _SHUFFLES:
            raise NotRepresentable("v0 can represent only compressor, level and shuffle of blosc")
        return common | {name: compressors[0][name] for name in ("cname", "clevel", "shuffle")}

    def _against(self, name: str) -> str | None:
        return f"{name} is part of an array" if name in (ZMETA, ZATTR, ZDATA) else super()._against(name)


PLUGIN = V0()
