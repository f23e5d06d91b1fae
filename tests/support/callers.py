"""Sender of requests for handlers that are called without a kernel."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

CALLER: Any = SimpleNamespace(pid=0, uid=0, gid=0, umask=0o022)
