"""Expected behaviour of nodes in a view: plain models for state machines."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

FILL = 7


@dataclass
class ModelNode:
    """A node. ``shape`` None: a group. ``chunks``: two int16 elements each, including those beyond the edge."""

    attributes: dict[str, Any] = field(default_factory=dict)
    shape: int | None = None
    chunks: dict[int, list[int]] = field(default_factory=dict)

    def described(self) -> tuple[Any, ...]:
        """Return the node as `tests.support.zarr_python.described` does."""
        if self.shape is None:
            return "group", self.attributes
        elements = np.full(2 * -(-self.shape // 2), FILL, "i2")
        for index, values in self.chunks.items():
            elements[2 * index : 2 * index + 2] = values
        return "array", self.attributes, (self.shape,), (2,), "int16", elements[: self.shape].tobytes()


def require(is_so: bool) -> None:
    """Raise `ValueError` for an impossible operation."""
    if not is_so:
        raise ValueError


def parent_of(path: str) -> str:
    """Return the path of the group above."""
    return path.rpartition("/")[0]
