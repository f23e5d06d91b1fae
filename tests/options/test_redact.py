from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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
        ("zip:s3://KEY:SECRET@host/x.zip", "zip:s3://***@host/x.zip"),
        ("foo:SECRET@bar", "foo:***@bar"),
        ("s3:KEY:SEC/RET@bucket/x", "s3:***@bucket/x"),
        ("s3:/KEY:SECRET@bucket/x", "s3:/***@bucket/x"),
        ("KEY:SECRET@bucket", "KEY:***@bucket"),
        ("zip:/a@b/x.zip", "zip:/a@b/x.zip"),
        ("zip:/a/b:c@d/x.zip|zip:e@f", "zip:/a/b:c@d/x.zip|zip:e@f"),
        ("http:host:9000/a@b", "http:host:9000/a@b"),
    ],
)
def test_a_url_without_its_secrets(url: str, public: str) -> None:
    assert public_url(url) == public


@pytest.mark.parametrize(
    "url", ["zip:s3://me:canary@h/x.zip", "foo:canary@bar", "s3:me:canary@bar/x", "s3:/me:canary@b|unsharded:"]
)
@pytest.mark.parametrize("command", ["info", "check", "mount"])
def test_no_command_prints_the_secret_of_a_url_that_it_refuses(tmp_path: Path, command: str, url: str) -> None:
    mountpoint = [str(tmp_path)] if command == "mount" else []
    ended = subprocess.run([sys.executable, "-m", "zarrfs", command, url, *mountpoint], capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "***@" in ended.stderr and "canary" not in ended.stderr + ended.stdout


def test_no_part_of_a_secret_is_left_in_an_error() -> None:
    url = "s3://AKIA123:se%2Fcret@bucket/x?token=canary"
    text = redact(f"GET {url}: 403 for AKIA123 with se/cret, signed canary; {url[:25]}", url)
    assert not any(secret in text for secret in ("AKIA123", "se/cret", "se%2Fcret", "canary"))
    assert "bucket/x" in text and "403" in text
