"""Accepted deviations of one document from its specification.

A deviation found in real stores is accepted by default and listed in the node's ``quirks``. If accepting it is a matter of judgement, the
dialect declares a choice (`Dialect.choices`) with the values `USE` and `REFUSE`.
"""

from __future__ import annotations

from collections.abc import Mapping

from zarrfs.errors import MetadataError

USE = "use"
REFUSE = "refuse"
USE_OR_REFUSE = (USE, REFUSE)


class Quirks(list[str]):
    """The accepted deviations, one text each. ``chosen``: the user's choices for ``dialect``, by name."""

    def __init__(self, dialect: str, chosen: Mapping[str, str]) -> None:
        super().__init__()
        self._dialect = dialect
        self._chosen = chosen

    def chosen(self, choice: str) -> str | None:
        """Return the user's value for ``choice``."""
        return self._chosen.get(choice)

    def accept(self, choice: str, text: str) -> None:
        """Add the deviation ``text``. Raises `MetadataError` if the user refuses deviations of the kind ``choice``."""
        if self._chosen.get(choice) == REFUSE:
            raise MetadataError(f"{text}: refused ({self._dialect}.{choice}={REFUSE})")
        self.append(text)
