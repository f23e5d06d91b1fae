from __future__ import annotations

import pytest

from zarrfs.options.redact import public_url, redact


@pytest.mark.parametrize(
    ("url", "public"),
    [
        ("/data/a@b?x=1", "/data/a@b?x=1"),
        ("memory:", "memory:"),
        ("s3://bucket/a@b/x.zarr", "s3://bucket/a@b/x.zarr"),
        ("s3://KEY:SECRET@bucket/x", "s3://***@bucket/x"),
        ("s3://KEY:SEC/RET+/x@bucket/x", "s3://***@bucket/x"),
        ("s3://KEY:SEC@RET@bucket/x", "s3://***@bucket/x"),
        ("s3://KEY:/SECRET@bucket/a@b|zip:", "s3://***@b|zip:"),
        ("http://host:9000/a@b", "http://host:9000/a@b"),
        ("http://[::1]:9000/a@b|zip:c@d", "http://[::1]:9000/a@b|zip:c@d"),
        ("https://token@host/x", "https://***@host/x"),
        ("https://host/x?sig=abcd&v=1#f", "https://host/x?sig=***&v=***#f"),
        ("https://me:pass@host/x.zip?token=t|zip:a", "https://***@host/x.zip?token=***|zip:a"),
    ],
)
def test_a_url_without_its_secrets(url: str, public: str) -> None:
    assert public_url(url) == public


def test_no_part_of_a_secret_is_left_in_an_error() -> None:
    url = "s3://AKIA123:se%2Fcret@bucket/x?token=canary"
    text = redact(f"GET {url}: 403 for AKIA123 with se/cret, signed canary; {url[:25]}", url)
    assert not any(secret in text for secret in ("AKIA123", "se/cret", "se%2Fcret", "canary"))
    assert "bucket/x" in text and "403" in text
