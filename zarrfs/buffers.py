"""Types of bytes and of elements in memory."""

from __future__ import annotations

from typing import Any

import numpy as np

Buffer = bytes | bytearray | memoryview
NDArray = np.ndarray[Any, np.dtype[Any]]
