"""Write docs/CONFORMANCE.md: ``python -m tests.conformance``."""

from __future__ import annotations

from tests.conformance.document import DOCUMENT, TEXTS
from tests.support.statements import rendered

DOCUMENT.write_text(rendered(TEXTS))
