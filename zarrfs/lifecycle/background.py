"""Start of a mount in the background: the process that starts the daemon, and their protocol.

The daemon is a new process, started by exec: clients of object stores do not survive fork. It gets the resolved configuration in its
environment, which only its owner can read (arguments are public), and a pipe. Through the pipe it sends ``ready``, or its `Outcome` as
JSON; if it dies before, its log output is relayed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence

from zarrfs.errors import ZarrfsError
from zarrfs.lifecycle import dead_mounts, interpreter, interrupts, mount_table
from zarrfs.lifecycle.exit_report import Outcome
from zarrfs.lifecycle.interrupts import Heard, Interrupted
from zarrfs.lifecycle.parent import READY, READY_CONFIG, READY_FD
from zarrfs.options import log_file as logs
from zarrfs.options.config import MountConfig
from zarrfs.options.redact import public_url

_TAIL_NBYTES = 4096
_PATIENCE = 5.0
_MOMENT = 1.0


# --- the parent -----------------------------------------------------------------------------------------------------------------


def daemon_command(config: MountConfig) -> list[str]:
    """Return the daemon's command. Its arguments are for readers of ``ps``; `Parent.adopt` receives the configuration itself."""
    return interpreter.command("zarrfs", "mount", "--foreground", "--", public_url(config.store), config.mountpoint)


def start(config: MountConfig, command: Sequence[str] | None = None) -> tuple[Outcome, subprocess.Popen[bytes]]:
    """Run ``command`` (by default zarrfs itself) as the daemon of ``config``; return once its mount answers, or with the error.

    The process continues if the outcome is success, and has ended otherwise. Raises `UsageError` for an unusable log file, and
    `Interrupted` after a signal; then nothing is mounted.
    """
    with interrupts.heard() as signals:
        return _start(config, command, signals)


def _start(config: MountConfig, command: Sequence[str] | None, signals: Heard) -> tuple[Outcome, subprocess.Popen[bytes]]:
    config = dataclasses.replace(config, log_file=config.log_file or logs.default_file(config.mountpoint))
    assert config.log_file is not None
    before = mount_table.mount_at(mount_table.resolved(config.mountpoint))
    reader, writer = os.pipe()
    with open(reader, "rb"):
        try:
            with logs.open_to_append(config.log_file) as log_file:
                log_start = log_file.seek(0, os.SEEK_END) if log_file.seekable() else 0
                process = subprocess.Popen(
                    command or daemon_command(config),
                    stdin=subprocess.DEVNULL,
                    stdout=log_file,
                    stderr=log_file,
                    cwd="/",
                    pass_fds=(writer,),
                    # The log is in UTF-8, whatever the locale.
                    env=interpreter.environment()
                    | {"PYTHONIOENCODING": "utf-8", READY_FD: str(writer), READY_CONFIG: config.to_json()},
                )
        finally:
            os.close(writer)
        output = bytearray()
        while signals.before(reader) and (portion := os.read(reader, _TAIL_NBYTES)):
            output += portion
        is_ready = output == READY
        error = _looked_at(config.mountpoint, signals) if is_ready else None
    if signals.first is not None:
        _call_off(process, config)
        raise Interrupted(signals.first)
    if error is not None:
        _call_off(process, config, config.timeout + _PATIENCE)
        return Outcome(
            1, f"{config.mountpoint}: mounted, but not usable: {error.strerror or error}; see {config.log_file}"
        ), process
    if is_ready:
        return Outcome(0), process
    # It has sent its outcome, and cannot end while a thread waits for a store that hangs.
    _has_ended(process, _MOMENT if output else None)
    if mount_table.mount_at(mount_table.resolved(config.mountpoint)) not in (None, before):
        # It was killed between its mount and its first answer.
        _clear(config)
    return _explain(bytes(output), process.returncode, _tail(config.log_file, log_start), config.log_file), process


def _looked_at(mountpoint: str, signals: Heard) -> OSError | None:
    """Return the error of a look at the mount; None if it answers, or a signal came first."""
    errors: list[OSError] = []
    reader, writer = os.pipe()

    def look() -> None:
        try:
            # That is an answer too, where uid and umask deny access even to the mounting user.
            with contextlib.suppress(PermissionError):
                os.listdir(mountpoint)
        except OSError as error:
            errors.append(error)
        finally:
            os.close(writer)

    with open(reader, "rb"):
        # A thread, since the look cannot be interrupted.
        threading.Thread(target=look, daemon=True).start()
        signals.before(reader)
    return errors[0] if errors else None


def _call_off(process: subprocess.Popen[bytes], config: MountConfig, patience: float = _PATIENCE) -> None:
    """End a daemon whose mount is unused, and remove the mount if there is one."""
    process.terminate()
    if not _has_ended(process, patience):
        process.kill()
        # Else it ends when the store it opens answers, and does nothing until then.
        _has_ended(process, _MOMENT)
    _clear(config)


def _has_ended(process: subprocess.Popen[bytes], patience: float | None) -> bool:
    """Wait for the end of the process, for some seconds; not if only threads are left that wait in the kernel."""
    end = None if patience is None else time.monotonic() + patience
    while True:
        try:
            process.wait(_MOMENT / 10)
        except subprocess.TimeoutExpired:
            if (end is not None and time.monotonic() > end) or _has_only_threads(process.pid):
                return False
        else:
            return True


def _has_only_threads(pid: int) -> bool:
    """Return True if the main thread of a process has ended, but another one has not."""
    try:
        states = [_state(f"/proc/{pid}/task/{task}") for task in os.listdir(f"/proc/{pid}/task")]
        return _state(f"/proc/{pid}") == "Z" and "D" in states
    except OSError:
        return False


def _state(process: str) -> str:
    with open(f"{process}/stat", errors="replace") as file:
        return file.read().rpartition(")")[2].split()[0]


def _clear(config: MountConfig) -> None:
    """Remove dead mounts from the mountpoint."""
    with contextlib.suppress(ZarrfsError):
        dead_mounts.clear(mount_table.resolved(config.mountpoint))


def _explain(output: bytes, returncode: int | None, tail: str, log_file: str) -> Outcome:
    if output:
        outcome = Outcome(**json.loads(output))
        # libfuse and fusermount3 print their reasons on stderr only.
        return outcome._replace(message=f"{outcome.message}{tail}") if outcome.exit_code == 6 else outcome
    if returncode is None:
        # A thread of it is left, which keeps its exit code from its parent.
        how = "ended"
    elif returncode < 0:
        how = f"was killed by {_called(-returncode)}"
    else:
        how = f"exited with code {returncode}"
    return Outcome(1, f"daemon {how} before the mount was usable; end of {log_file}:{tail or ' empty'}")


def _called(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _tail(log_file: str, start: int) -> str:
    try:
        # Another kind of file may be there by now, on which an open must not block.
        with logs.open_to_read(log_file) as file:
            file.seek(max(start, file.seek(0, os.SEEK_END) - _TAIL_NBYTES))
            text = file.read(_TAIL_NBYTES).decode(errors="replace").strip()
    except OSError:
        # It is unreadable, or has been moved away.
        return ""
    return f"\n{text}" if text else ""
