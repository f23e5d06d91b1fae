"""A program of its own: umount2(2) of its argument, with flags; its exit code is the errno.

It imports nothing of zarrfs: it is run by its path, without the environment's say in what Python imports (``python -I -S``).
"""

import ctypes
import os
import sys

if __name__ == "__main__":
    libc = ctypes.CDLL(None, use_errno=True)
    sys.exit(ctypes.get_errno() if libc.umount2(os.fsencode(sys.argv[1]), int(sys.argv[2])) else 0)
