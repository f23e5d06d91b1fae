"""Write docs/CONFORMANCE.md: ``python -m tests.conformance``."""

from __future__ import annotations

from tests.conformance.document import DOCUMENT, page

DOCUMENT.write_text(page())
