"""The fill value that ``chunks/`` shows for an array, and the effect of writing one.

Readers of Zarr v2 (xarray, GDAL, netCDF-C) take ``fill_value`` for the CF attribute ``_FillValue``: elements that equal it are
missing data. In final v3 the two are separate: ``fill_value`` is the value of missing chunks, ``_FillValue`` is an attribute. A v3
array appears as follows:

    .zarray fill_value   is _FillValue, else null; "NaN" if the array's own fill value is NaN and there is no _FillValue
    .zattrs _FillValue   is a plain number for integer and floating-point types (netCDF masks by it), and is left out if .zarray alone
                         represents it: NaN, infinities, and other types
    missing chunks       can be read, and are listed, if .zarray does not give their value bit for bit ("NaN" has no payload)
    removed chunks       are stored with the value that .zarray gives them, if that is not the array's own fill value

A ``_FillValue`` that the type cannot hold is shown unchanged, beside null. Dialects in whose software ``fill_value`` is both
(`Dialect.fill_value_marks_missing`) are shown unchanged, except, in dialects without null, arrays with a fill value of zero, which is
the default there, and no sign that zeros are missing data; of NaN, which marks nothing else, so that ``_FillValue`` may; and one that
equals ``_FillValue``. A NaN with a payload, which 2022 has, is shown as "NaN", and missing chunks as in v3. Writes are converted in the
other direction; docs/design/024-fill-values.md has the rules.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from zarrfs import registry
from zarrfs.errors import ContentInvalid
from zarrfs.model import cf_fill_value as cf
from zarrfs.model.data_type import DataType
from zarrfs.model.fill_value import undefined
from zarrfs.model.metadata import ArrayMetadata, ArrayNode

LISTED_CHUNKS = 65_536
LISTED_NBYTES = 1 << 30
"""A folder lists its missing chunks if there are at most `LISTED_CHUNKS`, of at most `LISTED_NBYTES` in total."""


def shown_fill(node: ArrayNode) -> bytes | None:
    """Return the element that ``.zarray`` shows as ``fill_value``; None for null."""
    metadata = node.metadata
    if not _is_apart(node):
        return metadata.fill_value
    if cf.NAME in node.attributes:
        return cf.decode(metadata.data_type, node.attributes[cf.NAME])
    own = metadata.fill_bytes
    return own if cf.is_nan(metadata.data_type, own) else None


def shown_attributes(node: ArrayNode) -> dict[str, Any]:
    """Return the attributes with ``_FillValue`` in the form that netCDF programs read."""
    attributes, data_type = dict(node.attributes), node.metadata.data_type
    if _is_apart(node) and cf.NAME in attributes:
        element = cf.decode(data_type, attributes[cf.NAME])
        if element is not None:
            del attributes[cf.NAME]
            if cf.is_number(data_type) and math.isfinite(number := cf.plain(data_type, element)):
                attributes[cf.NAME] = number
    return attributes


def says_what_is_missing(node: ArrayNode) -> bool:
    """Return True if readers of ``.zarray`` fill missing chunks with the array's own fill value, bit for bit."""
    shown = _read_fill(node)
    return not _is_apart(node) if shown is None else shown == node.metadata.fill_bytes


def removed_reads_as(node: ArrayNode) -> bytes | None:
    """Return the element that readers of ``.zarray`` take for missing ones; None if that is null, or the array's own fill value.

    Programs (zarr-python 3, tensorstore, GDAL) remove a chunk instead of writing it if all its elements equal this one.
    """
    return None if says_what_is_missing(node) else _read_fill(node)


def may_be_unlisted(metadata: ArrayMetadata) -> bool:
    """Return True if an array has more chunks than a folder lists when they are missing."""
    return math.prod(metadata.grid_shape) > LISTED_CHUNKS or metadata.chunks_nbytes > LISTED_NBYTES


def attributes_from(node: ArrayNode, written: Mapping[str, Any], ident: str) -> dict[str, Any]:
    """Return the attributes that a write of ``written`` to ``.zattrs`` gives to ``node``. Raises `ContentInvalid`.

    If ``written`` has no ``_FillValue``, the stored one stays, since ``.zarray`` represents it: programs write an empty ``.zattrs``
    first. Another one than ``.zarray`` has is refused, unless it cannot be written there first, as it is the array's own fill value, or
    ``.zarray`` has what netCDF-C writes there in any case.
    """
    attributes, data_type = dict(written), node.metadata.data_type
    if not _is_apart(node):
        return attributes
    before = node.attributes.get(cf.NAME)
    element = cf.decode(data_type, before)
    if cf.NAME not in written:
        if element is not None:
            attributes[cf.NAME] = before
        return attributes
    new = cf.decode(data_type, written[cf.NAME])
    if element is None:
        # A bare NaN stays one, and is left out (`cf.without_nan`): the creating program has written null, and expects to find it again.
        if new is not None and cf.is_read_back(data_type) and not cf.is_plain_nan(data_type, written[cf.NAME]):
            attributes[cf.NAME] = cf.encode(data_type, new)
    elif cf.are_equal(data_type, element, new):
        attributes[cf.NAME] = before
    elif new is not None and any(cf.is_netcdf_default(data_type, each) for each in (element, node.metadata.fill_bytes)):
        attributes[cf.NAME] = cf.encode(data_type, new)
    elif _may_differ(node):
        raise _conflict(ident, written[cf.NAME])
    return attributes


def attributes_with_fill(node: ArrayNode, fill: bytes | None, ident: str) -> dict[str, Any] | None:
    """Return the attributes that a write of this fill value to ``.zarray`` gives to ``node``; None for no change.

    The array's own fill value stays: missing chunks read as before. Raises `ContentInvalid`.
    """
    data_type = node.metadata.data_type
    if cf.are_equal(data_type, shown_fill(node), fill):
        return None
    if not cf.is_read_back(data_type) and fill == node.metadata.fill_bytes:
        # A new array is created with this value, and the creating program writes it again.
        return None
    lacks_null = any(node.dialect in each for each in _dialects_apart())
    if fill is None and lacks_null and not cf.has_form(data_type) and node.metadata.fill_bytes == undefined(data_type):
        # The array may have been created with null, which the layout lacks: the creating program writes null again for another shape.
        return None
    if not _may_differ(node) or not cf.is_read_back(data_type):
        raise ContentInvalid(f"{ident}: fill_value of an array cannot be changed; its shape can", key=ident)
    attributes = dict(node.attributes)
    if fill is not None:
        attributes[cf.NAME] = cf.encode(data_type, fill)
    elif cf.is_nan(data_type, node.metadata.fill_bytes):
        # Programs take null for zero, and leave out chunks of zeros.
        raise ContentInvalid(f"{ident}: fill_value cannot be null: missing chunks of this array read as NaN", key=ident)
    else:
        attributes.pop(cf.NAME, None)
    return attributes


def is_undefined(node: ArrayNode, *, is_new: bool) -> bool:
    """Return True if a fill value written to ``.zarray`` becomes the array's own one.

    ``is_new``: no program has stated the fill value of the document yet (`zarrfs.hierarchy.undefined_fills`).
    """
    return node.metadata.fill_value is None or (is_new and cf.NAME not in node.attributes)


def is_same_array(shown: ArrayMetadata, written: ArrayMetadata) -> bool:
    """Return True if an accepted ``.zarray`` describes the array that is shown.

    Of text and byte strings it may have the array's own fill value where null is shown. Readers have to get the document as written:
    zarr-python 2 takes null for uninitialized memory, and the missing chunks of a new array are not there until its folder is listed.
    """
    if shown.fill_value is None and not cf.is_read_back(written.data_type):
        written = replace(written, fill_value=None)
    return shown == written


def new_attributes(
    dialect: str, data_type: DataType, fill: bytes | None, attributes: Mapping[str, Any], ident: str
) -> Mapping[str, Any]:
    """Return the attributes of a new array whose ``.zarray`` has this fill value. Raises `ContentInvalid`.

    ``attributes`` are those written before it.
    """
    if not _marks_nothing(dialect, data_type, fill) or not cf.is_read_back(data_type):
        return attributes
    written = cf.decode(data_type, attributes.get(cf.NAME))
    if fill is None:
        return {**attributes, cf.NAME: cf.encode(data_type, written)} if written is not None else attributes
    if dialect not in _dialects_apart()[0] and cf.is_nan(data_type, fill):
        # In 2019 and 2022, NaN is missing data without the attribute, and beside another one.
        return attributes
    if cf.NAME in attributes and not cf.are_equal(data_type, written, fill):
        if written is None or not cf.is_netcdf_default(data_type, fill):
            raise _conflict(ident, attributes[cf.NAME])
        fill = written
    return {**attributes, cf.NAME: cf.encode(data_type, fill)}


def _read_fill(node: ArrayNode) -> bytes | None:
    """Return the element that readers of ``.zarray`` find in it; None for null. v2 has "NaN" for each NaN, whatever its payload."""
    shown, data_type = shown_fill(node), node.metadata.data_type
    return shown if shown is None or not cf.has_form(data_type) else cf.with_plain_nan(data_type, shown)


def _is_apart(node: ArrayNode) -> bool:
    """Return True if ``_FillValue`` of ``node`` says what is missing data, and not its fill value alone."""
    data_type, own = node.metadata.data_type, node.metadata.fill_value
    _, without_null = _dialects_apart()
    if _may_differ(node):
        return True
    is_stated = own is not None and node.dialect in without_null and cf.NAME in node.attributes and cf.has_form(data_type)
    return is_stated and cf.are_equal(data_type, cf.decode(data_type, node.attributes[cf.NAME]), own)


def _may_differ(node: ArrayNode) -> bool:
    """Return True if ``_FillValue`` of ``node`` may be another value than its fill value."""
    return _marks_nothing(node.dialect, node.metadata.data_type, node.metadata.fill_value) and cf.has_form(node.metadata.data_type)


def _marks_nothing(dialect: str, data_type: DataType, fill: bytes | None) -> bool:
    """Return True if no number is missing data because of this fill value."""
    always, without_null = _dialects_apart()
    return dialect in always or (dialect in without_null and fill is not None and (not any(fill) or cf.is_nan(data_type, fill)))


@cache
def _dialects_apart() -> tuple[Collection[str], Collection[str]]:
    """Return the dialects whose fill value never marks missing data, and those without null, of which zero and NaN do not."""
    dialects = registry.plugins("zarrfs.dialects")
    always = {each.name for each in dialects if not each.fill_value_marks_missing}
    return always, {each.name for each in dialects if not each.has_undefined_fill} - always


def _conflict(ident: str, value: Any) -> ContentInvalid:
    return ContentInvalid(
        f"{ident}: the attribute {cf.NAME} ({value!r}) and the fill_value of .zarray differ: fill_value takes precedence, write it first",
        key=ident,
    )
