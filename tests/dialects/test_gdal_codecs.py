"""Codec members in the form of GDAL, in both layouts that it writes."""

from __future__ import annotations

from typing import Any

import pytest

from zarrfs.dialects.gdal_codecs import from_gdal
from zarrfs.dialects.quirks import REFUSE, Quirks
from zarrfs.errors import MetadataError

LZMA: dict[str, Any] = {"id": "lzma", "preset": 6, "delta": 1}


@pytest.mark.parametrize("dialect", ["v2", "v3_2022"])
def test_an_lzma_array_of_gdal_is_read(dialect: str) -> None:
    quirks = Quirks(dialect, {})
    assert from_gdal(LZMA, quirks) == {"id": "lzma", "preset": 6}
    assert list(quirks) == ["lzma has the member delta (1)"]
    with pytest.raises(MetadataError, match=f"{dialect}.lzma=refuse"):
        from_gdal(LZMA, Quirks(dialect, {"lzma": REFUSE}))


def test_the_shuffle_of_gdal_is_read() -> None:
    quirks = Quirks("v2", {})
    assert from_gdal({"id": "blosc", "shuffle": "BIT"}, quirks) == {"id": "blosc", "shuffle": 2}
    assert list(quirks) == ['shuffle of blosc is "BIT" instead of 2']


@pytest.mark.parametrize(("text", "checksum"), [("NO", False), ("YES", True), ("true", True), ("OFF", False)])
@pytest.mark.parametrize("dialect", ["v2", "v3_2022"])
def test_a_zstd_array_of_gdal_is_read(dialect: str, text: str, checksum: bool) -> None:
    config = {"id": "zstd", "level": 13, "checksum": text}
    quirks = Quirks(dialect, {})
    assert from_gdal(config, quirks) == {"id": "zstd", "level": 13, "checksum": checksum}
    assert list(quirks) == [f'checksum of zstd is "{text}" instead of {str(checksum).lower()}']
    with pytest.raises(MetadataError, match=f"{dialect}.zstd=refuse"):
        from_gdal(config, Quirks(dialect, {"zstd": REFUSE}))


@pytest.mark.parametrize(
    "config",
    [
        {**LZMA, "delta": 0},
        {**LZMA, "delta": 257},
        {**LZMA, "delta": True},
        {**LZMA, "delta": "1"},
        {**LZMA, "format": 3},
        {**LZMA, "filters": [{"id": 33}]},
        {"id": "zlib", "level": 1, "delta": 1},
        {"id": "lzma", "preset": 6},
        {"id": "blosc", "shuffle": "all"},
        {"id": "zstd", "level": 1, "checksum": "maybe"},
        {"id": "zstd", "level": 1, "checksum": False},
        "lzma",
        None,
    ],
)
def test_anything_else_is_left_to_the_codec(config: object) -> None:
    quirks = Quirks("v2", {})
    assert from_gdal(config, quirks) is config and not quirks
