"""The promises of README.md: sections with lines to type, their output, and files to write.

In a block, a line that begins with ``$ `` is typed into a shell, and the lines below it are its output, in which ``...`` matches
anything (as in doctest). A fenced block whose first line is a comment with only a file name is that file. Nothing is substituted.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"

_HEADING = re.compile(r"^(#{2,3}) (.+)$")
_NAMED = re.compile(r"^(?://|#|%) (\S*[./]\S+)$")
# A new command begins after these words; sudo runs the following one.
_SEPARATORS = frozenset({"&&", "||", "|", ";", "&", "(", ")", "sudo", "!", "{", "if", "then", "do", "while"})


@dataclass(frozen=True)
class Line:
    """A line to type, and its promised output (empty: no promise)."""

    number: int
    text: str
    answer: str

    def programs(self) -> frozenset[str]:
        """Return the programs that it runs by name, except those with a path, and those inside quotes and substitutions."""
        words = shlex.shlex(self.text, posix=True, punctuation_chars="();&|")
        words.whitespace_split = True
        words.commenters = "#"
        found, begins = set(), True
        for word in words:
            if word in _SEPARATORS:
                begins = True
            elif begins and not re.match(r"^\w+=", word):
                found.add(word)
                begins = False
        return frozenset(name for name in found if re.fullmatch(r"[\w.+-]+", name))


@dataclass(frozen=True)
class File:
    """A file to write."""

    number: int
    path: str
    text: str


@dataclass(frozen=True)
class Section:
    """The steps between a heading and the next one; ``above`` is the enclosing heading."""

    title: str
    above: str
    steps: list[Line | File] = field(default_factory=list)

    def lines(self) -> list[Line]:
        return [step for step in self.steps if isinstance(step, Line)]


def sections(text: str) -> list[Section]:
    """Return the sections of a Markdown page, in order, also those without steps.

    Raises ValueError for a line that would never be run.
    """
    made = [Section("", "")]
    rows = list(enumerate(text.splitlines(), start=1))
    position = 0
    while position < len(rows):
        number, row = rows[position]
        if row.startswith("```"):
            end = next(at for at in range(position + 1, len(rows)) if rows[at][1].startswith("```"))
            made[-1].steps.extend(_block(rows[position + 1 : end]))
            position = end
        elif heading := _HEADING.match(row):
            above = "" if heading[1] == "##" else next((s.title for s in reversed(made) if not s.above), "")
            made.append(Section(heading[2], above))
        elif row.startswith("    "):
            end = next((at for at in range(position, len(rows)) if not rows[at][1].startswith("    ")), len(rows))
            made[-1].steps.extend(_block([(at, text[4:]) for at, text in rows[position:end]]))
            position = end - 1
        elif row.lstrip().startswith("$ "):
            raise ValueError(f"line {number} is in no block: {row}")
        position += 1
    return made


def drawing(text: str) -> str:
    """Return the first block that draws a tree, without its remarks (after two spaces) and its first line."""
    found = re.search(r"^```text\n\S+\n((?:[├└│ ].*\n)+)```", text, re.MULTILINE)
    assert found is not None
    return "\n".join(re.sub(r"(?<=[\w.])  .*", "", row).rstrip() for row in found[1].splitlines()) + "\n"


def _block(rows: list[tuple[int, str]]) -> list[Line | File]:
    if rows and (named := _NAMED.match(rows[0][1])):
        return [File(rows[0][0], named[1], "".join(f"{row}\n" for _, row in rows))]
    steps: list[Line | File] = []
    for number, row in rows:
        if row.startswith("$ "):
            steps.append(Line(number, row[2:], ""))
        elif steps and isinstance(steps[-1], Line):
            last = steps[-1]
            steps[-1] = Line(last.number, last.text, f"{last.answer}{row}\n")
    return steps
