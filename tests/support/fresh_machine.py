"""A shell on a copy of this machine in its initial state: the starting point of a page of instructions.

In a namespace of its own, the folders that instructions change are fresh, under their usual names: /data, /mnt, /opt, /etc, /run,
/sbin, /usr/local/bin, /var/log and $HOME. ``sudo`` runs its arguments; ``python3`` is the tests' interpreter; ``~/zarrfs`` is a clone
with a ``.venv`` as created by ``make`` (it is that of the tests). No process outlives the shell. Requires root.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .namespace import run_in_namespace
from .readme import File, Line

_ROOT = Path(__file__).parents[2]
_CLONED = ("LICENSE", "Makefile", "README.md", "demo", "docs", "pyproject.toml", "scripts", "systemd", "tests/cases/v1", "zarrfs")

# The new / is a fresh folder with every entry of the real one mounted into it, then the folders that have to be fresh.
_MACHINE = r"""
root=$NAMESPACE/root; mkdir "$root"; mount -t tmpfs -o mode=0755 root "$root"
for each in /* /.[!.]*; do
    if [ -L "$each" ]; then cp -P "$each" "$root$each"
    elif [ -d "$each" ]; then mkdir "$root$each"; mount --rbind "$each" "$root$each"
    elif [ -f "$each" ]; then touch "$root$each"; mount --bind "$each" "$root$each"
    fi
done
fresh() { for folder; do mkdir -p "$root$folder"; mount -t tmpfs -o mode=0755 fresh "$root$folder"; done; }
# What is in it can be used, and more can be put beside it.
writable() {
    for folder; do
        mkdir -p "$root/originals$folder"; mount --rbind "$folder" "$root/originals$folder"; fresh "$folder"
        (cd "$root/originals$folder"; for each in *; do [ ! -e "$each" ] || ln -s "/originals$folder/$each" "$root$folder/"; done)
    done
}
mkdir -p "$root/data" "$root/home"
fresh /mnt /data /home /run /var/log
writable /opt /usr/local/bin /usr/local/sbin
rm -f "$root/opt/zarrfs" "$root/usr/local/bin/zarrfs"
mkdir "$root/home/reader"
fresh /etc; cp -a /etc/. "$root/etc/"; rm -rf "$root/etc/zarrfs"; : >"$root/etc/fstab"; mkdir -p "$root/etc/systemd/system"
for program in sudo python3 zarrfs; do rm -f "$root/usr/local/bin/$program"; done
printf '#!/bin/sh\nexec "$@"\n' >"$root/usr/local/bin/sudo"
printf '#!/bin/sh\nexec "%s" "$@"\n' "$PYTHON" >"$root/usr/local/bin/python3"
chmod 755 "$root"/usr/local/bin/{sudo,python3}
mkdir "$root/home/reader/zarrfs"
(cd "$CLONE"; cp -r --parents $CLONED "$root/home/reader/zarrfs/")
ln -s "${SCRIPTS%/bin}" "$root/home/reader/zarrfs/.venv"
"""
_ENVIRONMENT = (
    "HOME=/home/reader",
    "USER=root",
    "LOGNAME=root",
    "LC_ALL=C.UTF-8",
    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
)
_MARK = "\x1e"


@dataclass(frozen=True)
class Answer:
    """The response to a line: output and errors, interleaved; ``code`` is None if a program in the line is missing."""

    line: Line
    output: str
    code: int | None


def type_in(steps: Sequence[Line | File], *, timeout: float) -> list[Answer]:
    """Type ``steps`` into one bash on a fresh machine; return the answers up to the first line that fails."""
    script = "\n".join(_typed(index, step) for index, step in enumerate(steps))
    done = run_in_namespace(
        # In a PID namespace of its own, so that all processes end with it.
        f'{_MACHINE}\nexec unshare --pid --fork --kill-child --mount-proc="$root/proc" '
        f'chroot "$root" env {" ".join(_ENVIRONMENT)} bash -c {shlex.quote(f"exec 2>&1 </dev/null; cd; {script}")}',
        sbin=True,
        env={"PYTHON": sys.executable, "CLONE": str(_ROOT), "CLONED": " ".join(_CLONED)},
        timeout=timeout,
    )
    found = re.findall(rf"{_MARK}(\d+)\n(.*?){_MARK}(\d*)\n", done.stdout, re.DOTALL)
    answers = [
        Answer(line, output, int(code) if code else None)
        for index, output, code in found
        if isinstance(line := steps[int(index)], Line)
    ]
    assert answers or not steps, f"the machine could not be made: {done.stdout}{done.stderr}"
    return answers


def _typed(index: int, step: Line | File) -> str:
    if isinstance(step, File):
        return f"printf %s {shlex.quote(step.text)} >{shlex.quote(step.path)}"
    programs = " ".join(map(shlex.quote, sorted(step.programs())))
    return (
        f"printf '{_MARK}{index}\\n'\n"
        f"if [ $(command -v {programs} | wc -l) = {len(step.programs())} ]; then eval {shlex.quote(step.text)}; code=$?; else code=; fi\n"
        f"printf '{_MARK}%s\\n' \"$code\"\n"
        f'[ "${{code:-0}}" = 0 ] || exit 1'
    )
