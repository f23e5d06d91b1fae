"""Removal of secrets from messages and logs.

A store URL may carry secrets in two places (RFC 3986): the userinfo (``s3://KEY:SECRET@bucket``) and the values of the query
(``https://host/x.zarr?sig=...``). Harmless names of the query are not known here, so all of its values are removed. A URL without its
slashes (``s3:KEY:SECRET@bucket``) has a userinfo too, as it stands in the message that refuses it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import unquote

# Up to the last @ before the path, as programs read it. Secret keys of S3 may contain slashes, which people do not always encode: what
# follows a name and a colon, and is no port, is a password and not a path.
_PASSWORD = r"[^][/@:|?#]+:(?!\d+(?:[/|?#]|$))[^|?#]*"
_USERINFO = re.compile(rf"(?<=://)([^/|?#]*|{_PASSWORD})@")
# One slash may begin a path, as in ``zip:/a@b``: only what has a password is a userinfo then.
_WITHOUT_SLASHES = re.compile(rf"(?<=:)([^/|?#]*|{_PASSWORD})@|(?<=:/)({_PASSWORD})@")
_QUERY_VALUE = re.compile(r"(?<=[?&])([^=&#|]*)=([^&#|]+)")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_HIDDEN = "***"


def public_url(url: str) -> str:
    """Return ``url`` without its secrets; a plain path is returned unchanged."""
    scheme = _SCHEME.match(url)
    if scheme is None and "://" not in url:
        return url
    parts, done = [], 0
    for start, end in _userinfos(url):
        parts += [url[done:start], _HIDDEN]
        done = end
    public = "".join((*parts, url[done:]))
    return _QUERY_VALUE.sub(rf"\1={_HIDDEN}", public) if "://" in url else public


def redact(text: str, url: str) -> str:
    """Return ``text`` (of any error) without the secrets of ``url``, quoted in any form."""
    text = text.replace(url, public_url(url))
    for secret in sorted(_secrets(url), key=len, reverse=True):
        text = text.replace(secret, _HIDDEN)
    return text


def _userinfos(url: str) -> Iterator[tuple[int, int]]:
    """Yield the places of the userinfos of all layers of ``url``."""
    scheme = _SCHEME.match(url)
    if scheme is not None and not url.startswith("//", scheme.end()):
        without = _WITHOUT_SLASHES.match(url, scheme.end()) or _WITHOUT_SLASHES.match(url, scheme.end() + 1)
        if without is not None and "://" not in without[0]:
            yield without.start(), without.end() - 1
            return
    if "://" in url:
        yield from (found.span(1) for found in _USERINFO.finditer(url))


def _secrets(url: str) -> set[str]:
    found = {value for _, value in _QUERY_VALUE.findall(url)} if "://" in url else set()
    for start, end in _userinfos(url):
        found.update((url[start:end], *url[start:end].split(":", 1)))
    found |= {unquote(secret) for secret in found}
    # Shorter ones would break ordinary words; a secret that short protects nothing.
    return {secret for secret in found if len(secret) >= 4}
