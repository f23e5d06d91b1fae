"""Codec members in the form of netCDF-C."""

from __future__ import annotations

from typing import Any

import pytest

from zarrfs.codecs import lookup
from zarrfs.dialects.quirks import REFUSE, Quirks
from zarrfs.dialects.v2.netcdf_codecs import from_netcdf
from zarrfs.errors import MetadataError
from zarrfs.model.codec_spec import CodecSpec


@pytest.mark.parametrize("size", [0, "0"])
def test_netcdf_shuffles_elements_of_the_type_and_says_zero(size: object) -> None:
    quirks = Quirks("v2", {})
    assert from_netcdf({"id": "shuffle", "elementsize": size}, 8, quirks) == {"id": "shuffle", "elementsize": 8}
    assert quirks[-1].startswith("elementsize of shuffle is 0, read as 8")


def test_zero_can_be_read_as_numcodecs_reads_it() -> None:
    quirks = Quirks("v2", {"elementsize": "none"})
    assert from_netcdf({"id": "shuffle", "elementsize": 0}, 8, quirks) == {"id": "shuffle", "elementsize": 0}
    assert quirks == ["elementsize of shuffle is 0, read as no shuffling, as chosen by v2.elementsize=none"]


@pytest.mark.parametrize(("config", "number"), [({"id": "zlib", "level": "9"}, 9), ({"id": "zstd", "level": "-5"}, -5)])
def test_numbers_as_text_are_read(config: dict[str, Any], number: int) -> None:
    quirks = Quirks("v2", {})
    assert from_netcdf(config, 4, quirks) == {**config, "level": number}
    assert list(quirks) == [f'level of "{config["id"]}" is the string "{config["level"]}"']
    with pytest.raises(MetadataError, match=r"v2\.level=refuse"):
        from_netcdf(config, 4, Quirks("v2", {"level": REFUSE}))


@pytest.mark.parametrize(
    ("config", "itemsize"),
    [
        ({"id": "shuffle", "elementsize": 0}, 1),
        ({"id": "shuffle", "elementsize": 2}, 4),
        ({"id": "shuffle", "elementsize": False}, 4),
        ({"id": "shuffle"}, 4),
        ({"id": "zlib", "level": "all"}, 4),
        ({"id": "zlib", "level": 4}, 4),
        (None, 4),
    ],
)
def test_anything_else_is_left_to_the_codec(config: object, itemsize: int) -> None:
    quirks = Quirks("v2", {})
    assert from_netcdf(config, itemsize, quirks) is config and not quirks


def test_zero_is_never_written() -> None:
    """Readers of v2 disagree on it."""
    assert lookup.to_numcodecs(CodecSpec("numcodecs.shuffle", {"elementsize": 0})) == {"id": "shuffle", "elementsize": 1}
    assert lookup.to_numcodecs(CodecSpec("numcodecs.shuffle", {"elementsize": 4})) == {"id": "shuffle", "elementsize": 4}
