"""Takes secrets out of what people and logs see.

A store URL may carry them in two places (RFC 3986): the userinfo (``s3://KEY:SECRET@bucket``) and the values of the query
(``https://host/x.zarr?sig=...``). Which of the query's names are harmless is not ours to know, so all of its values go.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

_USERINFO = re.compile(r"(?<=://)([^/@|?#]*)@")
_QUERY_VALUE = re.compile(r"(?<=[?&])([^=&#|]*)=([^&#|]+)")
_HIDDEN = "***"


def public_url(url: str) -> str:
    """``url`` without its secrets; a plain path, which has none, as it is."""
    if "://" not in url:
        return url
    return _QUERY_VALUE.sub(rf"\1={_HIDDEN}", _USERINFO.sub(f"{_HIDDEN}@", url))


def redact(text: str, url: str) -> str:
    """``text`` (of an error, whoever wrote it) without the secrets of ``url``, in whatever form they are quoted."""
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
    # Shorter ones would tear ordinary words apart; nothing that short protects anything.
    return {secret for secret in found if len(secret) >= 4}
