"""Map a file in a process of its own: a signal ends it if its bytes no longer exist.

    python map_file.py FILE

Writes the number of bytes and the bytes. Reads ``OFFSET COUNT``, and so many bytes to be put there, or nothing. The exit code is the
errno of a failure.
"""

from __future__ import annotations

import errno
import mmap
import os
import sys


def main(path: str) -> None:
    try:
        fd = os.open(path, os.O_RDWR)
        with mmap.mmap(fd, os.fstat(fd).st_size) as mapped:
            data = bytes(mapped)
            sys.stdout.buffer.write(b"%d\n" % len(data) + data)
            sys.stdout.flush()
            if line := sys.stdin.buffer.readline():
                offset, count = map(int, line.split())
                mapped[offset : offset + count] = sys.stdin.buffer.read(count)
                mapped.flush()
        os.close(fd)
    except (OSError, ValueError) as error:
        sys.exit(getattr(error, "errno", None) or errno.EINVAL)


if __name__ == "__main__":
    main(sys.argv[1])
