"""Removal of secrets from messages and logs.

A store URL may carry secrets in two places (RFC 3986): the userinfo (``s3://KEY:SECRET@bucket``) and the values of the query
(``https://host/x.zarr?sig=...``). Harmless names of the query are not known here, so all of its values are removed.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

# Up to the last @ before the path, as programs read it. Secret keys of S3 may contain slashes, which people do not always encode: what
# follows a name and a colon, and is no port, is a password and not a path.
_USERINFO = re.compile(r"(?<=://)([^/|?#]*|[^][/@:|?#]+:(?!\d+(?:[/|?#]|$))[^|?#]*)@")
_QUERY_VALUE = re.compile(r"(?<=[?&])([^=&#|]*)=([^&#|]+)")
_HIDDEN = "***"


def public_url(url: str) -> str:
    """Return ``url`` without its secrets; a plain path is returned unchanged."""
    if "://" not in url:
        return url
    return _QUERY_VALUE.sub(rf"\1={_HIDDEN}", _USERINFO.sub(f"{_HIDDEN}@", url))


def redact(text: str, url: str) -> str:
    """Return ``text`` (of any error) without the secrets of ``url``, quoted in any form."""
    if "://" not in url:
        return text
    text = text.replace(url, public_url(url))
    for secret in sorted(_secrets(url), key=len, reverse=True):
        text = text.replace(secret, _HIDDEN)
    return text


def _secrets(url: str) -> set[str]:
    found = {value for _, value in _QUERY_VALUE.findall(url)}
    for userinfo in _USERINFO.findall(url):
        found.update((userinfo, *userinfo.split(":", 1)))
    found |= {unquote(secret) for secret in found}
    # Shorter ones would break ordinary words; a secret that short protects nothing.
    return {secret for secret in found if len(secret) >= 4}
