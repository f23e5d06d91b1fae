"""A separate program: umount2(2) of a mountpoint, with flags; its exit code is the errno.

    umount2.py MOUNTPOINT FLAGS [DEVICE]

A folder on the way may belong to another user, who can replace it by a link at any time. So the folder that contains the mountpoint is
held by a descriptor, and the mount there must have the number DEVICE (``0:52``). From then on the name cannot refer to another mount: the
kernel does not rename mountpoints.

It imports nothing of zarrfs: it is run by its path, and the environment does not affect Python's imports (``python -I -S``).
"""

import ctypes
import errno
import os
import sys


def device_at(path: str) -> str | None:
    """Return the device number of the mount reached at ``path``. Sends requests only to file systems on the way."""
    descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW)
    with open(f"/proc/self/fdinfo/{descriptor}", "rb") as lines:
        info = dict(line.split(b":", 1) for line in lines if b":" in line)
    # An open descriptor would keep the mount in use.
    os.close(descriptor)
    with open("/proc/self/mountinfo", "rb") as lines:
        devices = {fields[0]: fields[2] for fields in (line.split(b" ") for line in lines)}
    device = devices.get(info[b"mnt_id"].strip())
    return None if device is None else device.decode()


def unmount(mountpoint: str, flags: int, device: str | None) -> int:
    """Unmount, and return the errno."""
    folder, name = os.path.split(mountpoint)
    try:
        path = f"/proc/self/fd/{os.open(folder, os.O_PATH | os.O_DIRECTORY)}/{name}"
        if device is not None and device_at(path) != device:
            print("gone, or covered by another mount")
            return errno.ESTALE
    except OSError as error:
        return error.errno or errno.EIO
    libc = ctypes.CDLL(None, use_errno=True)
    return ctypes.get_errno() if libc.umount2(os.fsencode(path), flags) else 0


if __name__ == "__main__":
    sys.exit(unmount(sys.argv[1], int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None))
