"""Text output of ``zarrfs check``: a progress bar, then the findings, then one line of summary.

Names and reasons come from the store: they pass through `zarrfs.printable.printable`, and rich gets them as `Text`, never as markup.
"""

from __future__ import annotations

from rich.text import Text

from zarrfs.printable import counted, printable, size
from zarrfs.reports import progress
from zarrfs.reports.findings import Finding, Findings, Report


def render(report: Report) -> Text:
    """Return the text to print, without the last line end."""
    text = Text()
    for title, findings, style in (
        ("bad", report.bad, "red"),
        ("could not be checked", report.unchecked, "yellow"),
        (
            "incomplete, or in progress in a mount (--repair completes or undoes operations without a worker)",
            report.steps,
            "yellow",
        ),
        ("not yet in place", report.making, "dim"),
        ("repaired", report.repaired, "green"),
        ("outside the grid, where no program reads it", report.outside, "dim"),
        ("hides documents of other layouts, which were not checked", report.hidden, "dim"),
        ("below an array, where no view shows it, not checked", report.below, "yellow"),
        ("at a name that no node may have, where no view shows it, not checked", report.misnamed, "yellow"),
        ("outdated, which a mount of a local store ignores, and other programs follow", report.outdated, "yellow"),
        ("of no array, which may have lost its document, not checked", report.orphaned, "yellow"),
    ):
        _append(text, title, findings, style)
    return text.append_text(_summary(report))


class Bar(progress.Bar):
    """Progress bar of the check."""

    def update(self, report: Report) -> None:
        """Show the progress."""
        found = f", {report.bad.count} bad" if report.bad.count else ""
        self.show(f"chunks{found}", report.done, report.total)


def _append(text: Text, title: str, findings: Findings, style: str) -> None:
    if not findings.count:
        return
    text.append(f"{title}: {findings.count}\n", f"bold {style}")
    for finding in findings.first:
        text.append(f"  {printable(_line(finding))}\n", style)
    if findings.count > len(findings.first):
        text.append(f"  and {findings.count - len(findings.first)} more\n", style)


def _line(finding: Finding) -> str:
    # The chunk's key, which can be inspected or erased; most reasons name its coordinates and its array.
    return f"{finding.path if finding.key is None else finding.key}: {finding.reason}"


def _summary(report: Report) -> Text:
    line = (
        f"{printable(report.store)}: {counted(report.nodes, 'node')}, {counted(report.chunks, 'chunk')}, "
        f"{size(report.stored_nbytes)} stored, {size(report.decoded_nbytes)} decoded{_shards(report)}: "
    )
    faults = [f"{report.bad.count} bad"] if report.bad.count else []
    if report.unchecked.count:
        faults.append(f"{report.unchecked.count} could not be checked")
    if report.steps.count:
        faults.append(f"{counted(report.steps.count, 'operation')} incomplete")
    if not report.complete:
        faults.append(f"interrupted after {report.done} of {report.total} chunks")
    if not faults and report.orphaned.count:
        faults.append("well, but for chunks of no array" if report.arrays else "no arrays, but chunks")
    elif not faults and report.outdated.count and report.arrays:
        faults.append("well, but for outdated consolidated copies")
    # Another folder than was meant has none either.
    return Text(line + (", ".join(faults) or ("all is well" if report.arrays else "no arrays, nothing was checked")), "bold")


def _shards(report: Report) -> str:
    if not report.shards:
        return ""
    full = f"{100 * report.shard_chunks / report.shard_chunks_possible:.0f} %" if report.shard_chunks_possible else "0 %"
    return f", {counted(report.shards, 'shard')} {full} full with {size(report.shard_unused_nbytes)} unused"
