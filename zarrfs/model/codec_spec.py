"""One codec of a chain, as named in a document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class CodecSpec:
    """One codec of a chain, in the terms of the final v3: ``name`` and ``configuration``."""

    name: str
    configuration: Mapping[str, Any] = field(default_factory=dict)
