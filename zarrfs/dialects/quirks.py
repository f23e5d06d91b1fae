"""The deviations of one document from its specification that are accepted.

A deviation that real software wrote is accepted by default and told in the node's ``quirks``. Where accepting it is a matter of
judgement, the dialect declares a choice (`Dialect.choices`) with the values `USE` and `REFUSE`.
"""

from __future__ import annotations

from collections.abc import Mapping

from zarrfs.errors import MetadataError

USE = "use"
REFUSE = "refuse"
USE_OR_REFUSE = (USE, REFUSE)


class Quirks(list[str]):
    """The deviations that were accepted, one text each. ``chosen``: the user's choices of ``dialect``, by name."""

    def __init__(self, dialect: str, chosen: Mapping[str, str]) -> None:
        super().__init__()
        self._dialect = dialect
        self._chosen = chosen

    def accept(self, choice: str, text: str) -> None:
        """Add the deviation ``text``. Raises `MetadataError` where the user chose to refuse deviations of the kind ``choice``."""
        if self._chosen.get(choice) == REFUSE:
            raise MetadataError(f"{text}: refused ({self._dialect}.{choice}={REFUSE})")
        self.append(text)
