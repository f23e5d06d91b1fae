"""Common rules of the drafts of Zarr v3."""

from __future__ import annotations

import pytest

from zarrfs.dialects.drafts import codec_from_json, name_in_uri
from zarrfs.errors import MetadataUnsupported

URI = "https://purl.org/zarr/spec/codec/gzip"


@pytest.mark.parametrize("version", ["", "/1", "/1.0", "/v1.2", "/1.0/"])
def test_a_codec_of_our_major_version_is_known(version: str) -> None:
    assert name_in_uri(URI + version, ("codec",)) == "gzip"


@pytest.mark.parametrize("version", ["/2.0", "/0.9", "/v3", "/10.0", "/1.0.x"])
def test_a_codec_of_another_major_version_is_refused(version: str) -> None:
    with pytest.raises(MetadataUnsupported, match="unknown"):
        codec_from_json({"codec": URI + version, "configuration": {"level": 1}}, "compressor")
