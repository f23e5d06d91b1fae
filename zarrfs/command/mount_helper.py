"""Helpers of mount(8) and umount(8): /sbin/mount.zarrfs, /sbin/mount.fuse.zarrfs and /sbin/umount.fuse.zarrfs.

They translate mount(8)'s arguments into those of `zarrfs mount`, and outcomes into mount(8)'s exit codes. The arguments are those of
mount(8), "EXTERNAL HELPERS", as libmount passes them (util-linux, libmount/src/context_mount.c and context_umount.c):

    mount.zarrfs SPEC DIR [-sfnv] [-N NAMESPACE] [-o OPTIONS]... [-t TYPE.SUBTYPE]
    umount.zarrfs DIR [-nlfvr] [-N NAMESPACE] [-t TYPE.SUBTYPE]

mount(8) run by an ordinary user is root by its set-user-ID bit and drops that before it runs a helper: a helper has no more rights than
the user.
"""

from __future__ import annotations

import dataclasses
import fcntl
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NoReturn, Self

from zarrfs import __version__
from zarrfs.command import exit_codes
from zarrfs.command.answering import absolute, check_before, located, start
from zarrfs.errors import UsageError, ZarrfsError
from zarrfs.lifecycle import interpreter, interrupts, mount_table, standard_files
from zarrfs.lifecycle.interrupts import Interrupted
from zarrfs.options.config import MountConfig, join_mount_options, resolve, split_mount_options
from zarrfs.options.redact import public_url

# mount(8) and umount(8), "EXIT STATUS".
INCORRECT_INVOCATION = 1
SYSTEM_ERROR = 2
INTERNAL_BUG = 4
INTERRUPTED = 8
FAILURE = 32

TYPES = ("zarrfs", "fuse.zarrfs")
NO_STORE = "none"
"""Placeholder for STORE in fstab if the configuration file names the store."""

# <linux/nsfs.h>: a descriptor of the user namespace that owns a namespace; see ioctl_ns(2).
_NS_GET_USERNS = 0xB701

_MOUNT = "mount.zarrfs"
_UMOUNT = "umount.zarrfs"
_USAGE = {
    _MOUNT: "mount.zarrfs STORE DIR [-sfnv] [-N NAMESPACE] [-o OPT[,OPT]...] [-t TYPE]",
    _UMOUNT: "umount.zarrfs DIR [-nlfvr] [-N NAMESPACE] [-t TYPE]",
}
_FLAGS = {_MOUNT: "sfnvrw", _UMOUNT: "nlfvr"}
_WITH_VALUE = {_MOUNT: "Not", _UMOUNT: "Nt"}


def mount() -> None:
    """Run the command ``mount.zarrfs``."""
    _main(_MOUNT, sys.argv[1:])


def umount() -> None:
    """Run the command ``umount.zarrfs``."""
    _main(_UMOUNT, sys.argv[1:])


def _main(program: str, arguments: Sequence[str]) -> NoReturn:
    interrupts.are_as_usual()
    standard_files.open_missing()
    interpreter.use_utf8()
    standard_files.end(run(program, arguments))


def run(program: str, arguments: Sequence[str]) -> int:
    """Run ``mount.zarrfs`` or ``umount.zarrfs`` and return its exit code, one of mount(8)'s. Errors are printed here."""
    if {"-h", "--help", "-V", "--version"} & set(arguments[:1]):
        print(f"{program} of zarrfs {__version__}: the helper of {program.partition('.')[0]}(8)\n  {_USAGE[program]}")
        return 0

    print_line = partial(exit_codes.print_line, program=program)
    # URLs whose secrets error messages must not show.
    urls = list(arguments)
    try:
        call = Call.of(program, arguments)
        if call.namespace is not None:
            return _in_namespace(call, call.namespace)
        return _mount(call, print_line, urls) if program == _MOUNT else _umount(call, print_line)
    except (KeyboardInterrupt, Interrupted):
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 (each has its exit code)
        print_line(exit_codes.outcome_of(error, urls).message)
        match error:
            case UsageError():
                return INCORRECT_INVOCATION
            case ZarrfsError():
                return FAILURE
            case OSError() | MemoryError():
                return SYSTEM_ERROR
            case _:
                return INTERNAL_BUG


@dataclass(frozen=True, slots=True)
class Call:
    """Arguments of a helper.

    ``operands``: STORE and DIR, or DIR; ``flags``: the letters; ``options``: the argument of each -o; ``namespace``: the mount namespace,
    as a file or the number of a process in it.
    """

    program: str
    operands: tuple[str, ...]
    flags: frozenset[str] = frozenset()
    options: tuple[str, ...] = ()
    namespace: str | None = None

    @classmethod
    def of(cls, program: str, arguments: Sequence[str]) -> Self:
        """Parse ``arguments``, in any order. Raises `UsageError`."""
        operands: list[str] = []
        flags: set[str] = set()
        values: dict[str, list[str]] = {letter: [] for letter in "Not"}
        # Not getopt: with POSIXLY_CORRECT it takes everything after STORE for words.
        rest = list(arguments)
        while rest:
            argument = rest.pop(0)
            if argument == "--":
                operands += rest
                break
            if not argument.startswith("-") or argument == "-":
                operands.append(argument)
                continue
            letters = argument[1:]
            while letters:
                letter, letters = letters[0], letters[1:]
                if letter in _FLAGS[program]:
                    flags.add(letter)
                elif letter in _WITH_VALUE[program]:
                    if not letters and not rest:
                        raise _malformed(program, f"-{letter}: needs a value")
                    values[letter].append(letters or rest.pop(0))
                    break
                else:
                    raise _malformed(program, f"{argument}: unknown argument")
        expected = 2 if program == _MOUNT else 1
        if len(operands) != expected or not all(operands):
            raise _malformed(program, f"expected {expected} arguments, got {len(operands)}" if all(operands) else "empty argument")
        for fstype in values["t"]:
            if fstype not in TYPES:
                raise _malformed(program, f"-t {fstype}: unknown type, expected {' or '.join(TYPES)}")
        options = [*values["o"], *(word for letter, word in (("r", "ro"), ("w", "rw")) if letter in flags and program == _MOUNT)]
        return cls(program, tuple(operands), frozenset(flags), tuple(options), values["N"][-1] if values["N"] else None)


def _malformed(program: str, what: str) -> UsageError:
    """Return the error for arguments that mount(8) would not pass."""
    return UsageError(f"{what}; usage: {_USAGE[program]}")


def configuration(call: Call, print_line: Callable[[str], None]) -> MountConfig:
    """Return the configuration of a call of `mount.zarrfs`. Raises `UsageError`; with ``-s``, unknown options are printed instead."""
    spec, folder = call.operands
    # fstab is readable by everyone: a store whose URL contains secrets is named in the file of `-o config=`.
    store = None if spec == NO_STORE else spec
    sloppily = (lambda name: print_line(f"-o {name}: unknown option, ignored")) if "s" in call.flags else None
    config = resolve(store, folder, mount_options=[join_mount_options(_asked(call.options))], unknown=sloppily)
    if config.foreground:
        raise UsageError("foreground: not possible with mount(8), which returns once the mount is usable: use `zarrfs mount -f`")
    # mount(8) recognizes a mounted line of fstab by its source, so the spelling must be that of fstab.
    return dataclasses.replace(located(config), source=_from_anywhere(spec))


def _from_anywhere(spec: str) -> str:
    """Return ``spec`` as written, except for a relative path, which becomes absolute; mount(8) passes one only if it does not exist."""
    return spec if spec.startswith("/") or ":" in spec or spec == NO_STORE else absolute(spec)[0]


def _asked(arguments: Sequence[str]) -> list[str]:
    """Return the options of all -o, without an ``rw`` added by mount(8).

    mount(8) adds ``rw`` wherever there is no ``ro``, and it would override ``read_only = true`` of a configuration file.
    """
    options = [option for argument in arguments for option in split_mount_options(argument)]
    access = [option for option in options if option in ("ro", "rw")]
    kept = [option for option in options if option not in access]
    return ["ro", *kept] if access[-1:] == ["ro"] else kept


def _mount(call: Call, print_line: Callable[[str], None], urls: list[str]) -> int:
    """Mount as `mount.zarrfs`, return the exit code, and add the store's URL to ``urls``."""
    config = configuration(call, print_line)
    urls.append(config.store)
    verbose, fake = "v" in call.flags, "f" in call.flags
    what = f"{public_url(config.source)} on {config.mountpoint}"
    if verbose:
        print_line(f"{'would mount' if fake else 'mounting'} {what}{_chosen(config)}")
    replaces_dead = check_before(config)
    if fake:
        _open(config)
        return 0
    outcome = start(config, replaces_dead, print_line)
    if outcome.message or verbose:
        print_line(outcome.message or f"mounted {what}")
    return FAILURE if outcome.exit_code else 0


def _open(config: MountConfig) -> None:
    """Open the store and close it; raise the error if that fails."""
    import trio

    from zarrfs.stores.opening import in_time, open_store

    async def opened() -> None:
        store = await in_time(config.timeout, config.store, lambda: open_store(config.store, read_only=True))
        await store.aclose()

    trio.run(opened)


def _chosen(config: MountConfig) -> str:
    """Return the options that differ from their defaults, as text."""
    defaults = MountConfig(store=config.store, mountpoint=config.mountpoint, source=config.source)
    chosen = {
        field.name: value
        for field in dataclasses.fields(config)
        if (value := getattr(config, field.name)) != getattr(defaults, field.name)
    }
    return "".join(f", {name}={value}" for name, value in chosen.items())


def _umount(call: Call, print_line: Callable[[str], None]) -> int:
    from zarrfs.lifecycle import unmounting

    (folder,) = call.operands
    outcome = unmounting.unmount(folder, lazy="l" in call.flags, print_line=print_line)
    if outcome.message or "v" in call.flags:
        print_line(outcome.message or f"{folder} unmounted")
    return FAILURE if outcome.exit_code else 0


def _in_namespace(call: Call, namespace: str) -> int:
    """Run the same call within ``namespace`` by nsenter(1) of util-linux: a thread of Python cannot enter one alone."""
    from zarrfs.lifecycle import programs

    nsenter = programs.find("nsenter")
    if nsenter is None:
        raise ZarrfsError("-N: nsenter(1) not found: install util-linux")
    file = f"/proc/{namespace}/ns/mnt" if namespace.isdecimal() else namespace
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(f"-N {namespace}: {error.strerror}") from error
    try:
        _require_ours(descriptor, namespace)
        # A process in another namespace starts in the root folder.
        *specs, folder = call.operands
        operands = [*map(_from_anywhere, specs), mount_table.absolute(folder)]
        flags = [f"-{flag}" for flag in sorted(call.flags)]
        options = [word for option in call.options for word in ("-o", option)]
        again = interpreter.command("zarrfs.command.mount_helper", call.program, *flags, *options, "--", *operands)
        # By the descriptor that was checked.
        enter = [nsenter, f"--mount=/proc/{os.getpid()}/fd/{descriptor}", "--", *again]
        code = subprocess.run(enter, env=interpreter.environment(), check=False).returncode
    finally:
        os.close(descriptor)
    # Other codes are nsenter's own: no such namespace, or no Python in it.
    return code if code in (0, INCORRECT_INVOCATION, SYSTEM_ERROR, INTERNAL_BUG, INTERRUPTED, FAILURE) else FAILURE


def _require_ours(descriptor: int, namespace: str) -> None:
    """Raise `ZarrfsError` if another user namespace owns the mount namespace.

    Its users can mount over this Python there, and their program would run with the rights of root outside.
    """
    try:
        owner = fcntl.ioctl(descriptor, _NS_GET_USERNS)
    except OSError as error:
        raise ZarrfsError(f"-N {namespace}: not a namespace of this machine's root: {error.strerror}") from error
    try:
        is_ours = os.path.samestat(os.fstat(owner), os.stat("/proc/self/ns/user"))
    finally:
        os.close(owner)
    if not is_ours:
        raise ZarrfsError(
            f"-N {namespace}: belongs to another user namespace, whose users choose what is run there: mount it inside"
        )


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2:])
