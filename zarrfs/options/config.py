"""Configuration of a mount: one frozen value, built from one table of options.

The table is the list of fields of `MountConfig`. A field is at once a long option (``--metadata-ttl 5``), a mount option
(``-o metadata_ttl=5``; there and in the other places ``-`` and ``_`` are the same), an environment variable
(``ZARRFS_METADATA_TTL=5``) and a key of a TOML file (``metadata_ttl = 5``). The first source in this order that has a value wins; of an
option repeated in ``-o`` the last value wins, as in mount(8).

All sources deliver text, so that one function parses an option from any of them.

The TOML file may also name ``store`` and ``mountpoint``, for mounts started by one name, as by systemd.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from zarrfs.errors import UsageError
from zarrfs.memory.machine import default_limit
from zarrfs.options.mount8 import STANDARD, is_standard, refusal
from zarrfs.options.ownership import parse_group, parse_umask, parse_user
from zarrfs.stores import own_files

TRUE = frozenset({"1", "yes", "true", "on"})
FALSE = frozenset({"0", "no", "false", "off"})

# Keys of the TOML file only, and their form. A store without a path is a bare scheme (``memory:``).
_PLACES = {
    "store": re.compile(r"(?:[A-Za-z][\w+.-]*:)?/.*|[A-Za-z][\w+.-]*:", re.DOTALL),
    "mountpoint": re.compile(r"/.*", re.DOTALL),
}

_ANYWHERE = "the file does not depend on the current folder"

# Seconds (eleven days): poll(2) waits for at most 2^31 milliseconds, and some waits are a little longer than the deadline.
_LONGEST = 1_000_000

# Names of mount(8) for options that have another name here.
_SYNONYMS = {
    "ro": ("read_only", "yes"),
    "rw": ("read_only", "no"),
    "fg": ("foreground", "yes"),
    "exec": ("noexec", "no"),
    "sync": ("durable", "yes"),
}


@dataclass(frozen=True, slots=True)
class Option:
    """One row of the table: ``parse`` returns the value of a text, or raises ValueError with the reason.

    ``group`` is the section of the option in ``--help``; ``help`` is one line, without the default. ``flag`` options need no value
    (``--durable``, ``-o durable``) and have a negation (``--no-durable``, ``-o no_durable``). ``octal`` options are text in TOML, whose
    integers do not distinguish 22 from 0o26. The default of a ``computed`` option depends on the machine: ``help`` describes it.
    """

    parse: Callable[[str], Any]
    metavar: str
    group: str
    help: str
    flag: bool = False
    octal: bool = False
    short: str | None = None
    computed: bool = False


def _boolean(text: str) -> bool:
    word = text.strip().lower()
    if word not in TRUE | FALSE:
        raise ValueError("expected yes or no")
    return word in TRUE


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise ValueError("expected a number of seconds, such as 10 or 0.5")
    return value


def _deadline(text: str) -> float:
    value = _seconds(text)
    if not 0 < value <= _LONGEST:
        raise ValueError(f"expected more than 0 and at most {_LONGEST} seconds")
    return value


_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(i?B?)\s*", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Return bytes for ``4096``, ``512M`` and ``512MiB`` (powers of 1024), ``512MB`` (powers of 1000). Raises ValueError."""
    match = _SIZE.fullmatch(text)
    if match is None or (not match[2] and match[3].lower() not in ("", "b")):
        raise ValueError("expected a size, such as 64MiB, 512M or a number of bytes")
    base = 1000 if match[3].lower() == "b" else 1024
    nbytes = float(match[1]) * base ** " KMGT".index(match[2].upper() or " ")
    if nbytes >= 1 << 63:
        raise ValueError("expected a size below 8 EiB")
    return int(nbytes)


def _path(text: str) -> str:
    if not text:
        raise ValueError("expected a path")
    expanded = os.path.expanduser(text)
    if expanded.startswith("~"):
        # Not a name in the current folder: a configuration file has the same meaning everywhere.
        raise ValueError("expected a path, or ~USER of a user of this machine")
    try:
        return own_files.absolute(expanded)
    except UsageError as error:
        raise ValueError("expected a path without `..` after a symbolic link") from error


def _name(text: str) -> str:
    if not re.fullmatch(r"\w[\w.-]*", text):
        raise ValueError("expected one name")
    return text


def _dialect(text: str) -> str:
    if not re.fullmatch(r"\w[\w.-]*(:\w+)?", text):
        raise ValueError("expected the name of a dialect, or dialect:form")
    return text


def _separator(text: str) -> str:
    if text not in ("auto", "/", ".", "dot", "slash"):
        raise ValueError("expected auto, '/' or '.'")
    return {"dot": ".", "slash": "/"}.get(text, text)


def _names(text: str) -> tuple[str, ...]:
    return tuple(_name(name) for name in re.split(r"[,:+]", text))


def _patterns(text: str) -> tuple[str, ...]:
    patterns = tuple(re.split(r"[,:]", text))
    if not all(patterns) or any("/" in pattern or pattern in (".", "..") for pattern in patterns):
        raise ValueError("expected patterns of file names, such as *.bak")
    return patterns


def _choices(text: str) -> tuple[str, ...]:
    choices = tuple(re.split(r"[,:+]", text)) if text else ()
    if not all(re.fullmatch(r"\w+\.\w+=\w+", choice) for choice in choices):
        raise ValueError("expected dialect.choice=value")
    return choices


def _level(text: str) -> str:
    if text.lower() not in ("debug", "info", "warning", "error"):
        raise ValueError("expected debug, info, warning or error")
    return text.lower()


def _option(default: Any, parse: Callable[[str], Any], metavar: str, group: str, help: str, *, short: str | None = None) -> Any:
    computed = callable(default)
    row = Option(parse, metavar, group, help, flag=parse is _boolean, octal=parse is parse_umask, short=short, computed=computed)
    if computed:
        return dataclasses.field(default_factory=default, metadata={"option": row})
    return dataclasses.field(default=default, metadata={"option": row})


@dataclass(frozen=True, slots=True, kw_only=True)
class MountConfig:
    """Store, mountpoint and options of a mount; paths are absolute.

    ``mountpoint`` is empty for commands without a mount (``zarrfs info``).
    ``source`` is the store's name in the mount table (without its secrets), if that differs from ``store``.
    """

    store: str
    mountpoint: str = ""
    source: str = ""
    foreground: bool = _option(False, _boolean, "", "General", "Run in the foreground, log to stderr", short="-f")
    read_only: bool = _option(False, _boolean, "", "Access", "Refuse all changes (-o ro)")
    allow_other: bool = _option(False, _boolean, "", "Access", "Admit other users, by the modes of the files")
    uid: int | None = _option(None, parse_user, "USER", "Access", "Owner of all files [default: the mounting user]")
    gid: int | None = _option(None, parse_group, "GROUP", "Access", "Group of all files [default: of the mounting user]")
    umask: int = _option(0o022, parse_umask, "OCTAL", "Access", "Bits cleared in modes 666, 777 (folders)")
    noexec: bool = _option(False, _boolean, "", "Access", "Forbid execution and executable mappings of files")
    view: str | None = _option(None, _name, "VIEW", "Layouts", "View at the root of the mount, such as raw or npy")
    views: tuple[str, ...] = _option((), _names, "VIEW,...", "Layouts", "Views offered as folders [default: all]")
    fill: bool = _option(False, _boolean, "", "Layouts", "Read missing chunks in chunks/ as fill values")
    xattrs: bool = _option(True, _boolean, "", "Layouts", "Array metadata in xattrs; slows small writes")
    dialect_choices: tuple[str, ...] = _option((), _choices, "D.C=V,...", "Layouts", "Interpretation of ambiguous documents")
    metadata_ttl: float = _option(10.0, _seconds, "SECONDS", "Caches", "Maximum delay of changes by other programs")
    watch: bool = _option(True, _boolean, "", "Caches", "Watch local folders by inotify (extra: watch)")
    memory_limit: int = _option(
        default_limit,
        parse_size,
        "SIZE",
        "Caches",
        "Memory for cached, staged data [default: 1/10, up to 4GiB]",
    )
    cache_dir: str | None = _option(None, _path, "DIR", "Caches", "Spill folder [default: $XDG_CACHE_HOME/zarrfs, else $TMPDIR]")
    timeout: float = _option(60.0, _deadline, "SECONDS", "Caches", "Deadline of one store operation")
    durable: bool = _option(False, _boolean, "", "Writing", "Sync to disk at every close, not only at fsync")
    shard_delay: float = _option(5.0, _seconds, "SECONDS", "Writing", "Delay before an incomplete shard is stored")
    resize_erases: bool = _option(False, _boolean, "", "Writing", "Erase chunks outside a shape reduced in .zarray")
    temporary_names: tuple[str, ...] = _option(
        (), _patterns, "PATTERN,...", "Writing", "More names of temporary files, such as *.bak"
    )
    new_dialect: str = _option("v3", _dialect, "DIALECT", "New arrays", "Dialect of nodes created in an empty store")
    new_chunks: str = _option("auto", str, "CHUNKS", "New arrays", "Chunk shape: auto, none or as in 512x512")
    new_codecs: str = _option("auto", str, "CODECS", "New arrays", "Codecs: auto, none or as in zstd+crc32c")
    new_separator: str = _option("auto", _separator, "SEPARATOR", "New arrays", "Separator in chunk keys: auto, '/' or '.'")
    new_shards: str = _option("none", str, "SHARDS", "New arrays", "Chunks per shard: none or as in 8x8")
    log_level: str = _option("info", _level, "LEVEL", "Logging", "Least level: debug, info, warning or error")
    log_file: str | None = _option(None, _path, "FILE", "Logging", "Log file, appended to [default: see below]")

    def __post_init__(self) -> None:
        if self.view is not None and self.views:
            raise UsageError("view and views exclude each other: view is the root of the mount, views are folders below it")

    def to_json(self) -> str:
        """Return the whole configuration as text, for `from_json` in another process of the same version."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the configuration that `to_json` wrote."""
        values = json.loads(text)
        lists: dict[str, Any] = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        return cls(**(values | lists))


def options() -> dict[str, Option]:
    """Return the table: every option by its name (with underscores), in the order of ``--help``."""
    return {field.name: field.metadata["option"] for field in dataclasses.fields(MountConfig) if "option" in field.metadata}


def resolve(
    store: str | None,
    mountpoint: str | None = "",
    *,
    flags: Mapping[str, Any] | None = None,
    mount_options: Iterable[str] = (),
    environment: Mapping[str, str] | None = None,
    config_file: str | None = None,
    unknown: Callable[[str], None] | None = None,
) -> MountConfig:
    """Return the configuration that results from all sources.

    ``store`` and ``mountpoint`` come from the TOML file if None. ``flags``: values of long options by name, booleans or text, None if not
    given. ``mount_options``: the arguments of each ``-o``. ``config_file``: the TOML file, else that of ``-o config=`` or
    ``ZARRFS_CONFIG``. ``unknown`` is called with each unknown name in ``mount_options``; without it such a name is an error. Raises
    `UsageError`, which names the option, its source and, for an unknown option, the nearest known one.
    """
    environment = os.environ if environment is None else environment
    from_o = _from_mount_options(mount_options, unknown)
    config_file = _config_file((config_file, from_o.pop("config", None)), environment)
    from_file = _from_toml(config_file) if config_file else {}
    sources: list[tuple[Callable[[str], str], dict[str, str]]] = [
        (
            lambda name: f"--{name.replace('_', '-')}",
            {name: _text(value) for name, value in (flags or {}).items() if value is not None},
        ),
        (lambda name: f"-o {name}", from_o),
        (
            lambda name: f"environment variable {_variable(name)}",
            {name: text for name in options() if (text := environment.get(_variable(name)))},
        ),
        (lambda name: f"{config_file}: {name}", from_file),
    ]
    _drop_lesser_views([texts for _, texts in sources])
    values: dict[str, Any] = {}
    for name, option in options().items():
        for source, texts in sources:
            if name in texts:
                try:
                    values[name] = option.parse(texts[name])
                except ValueError as error:
                    raise UsageError(f"{source(name)}: {error}, not {texts[name]!r}") from error
                break
    return MountConfig(
        store=_required("store", from_file, config_file) if store is None else store,
        mountpoint=_required("mountpoint", from_file, config_file) if mountpoint is None else mountpoint,
        **values,
    )


def mountpoint_of(config_file: str | None, environment: Mapping[str, str] | None = None) -> str:
    """Return the mountpoint in a TOML file: ``config_file``, else that of ``ZARRFS_CONFIG``. Raises `UsageError`."""
    config_file = _config_file((config_file,), os.environ if environment is None else environment)
    return _required("mountpoint", _from_toml(config_file) if config_file else {}, config_file, command="umount")


def split_mount_options(text: str) -> list[str]:
    r"""Split an ``-o`` argument into options at commas, except those escaped by ``\`` or within double quotes. Raises `UsageError`."""
    parts, part, quoted, protected = [], "", False, False
    for character in text:
        if protected:
            part += character
            protected = False
        elif character == "\\":
            protected = True
        elif character == '"':
            quoted = not quoted
        elif character == "," and not quoted:
            parts.append(part)
            part = ""
        else:
            part += character
    if quoted or protected:
        raise UsageError(f"-o {text}: ends inside {'a quoted string' if quoted else 'an escape'}")
    return [part for part in (*parts, part) if part]


def join_mount_options(options: Iterable[str]) -> str:
    """Return the argument of ``-o`` that `split_mount_options` splits into ``options``."""
    return ",".join(re.sub(r'([\\,"])', r"\\\1", option) for option in options)


def _config_file(arguments: Iterable[str | None], environment: Mapping[str, str]) -> str | None:
    """Return the TOML file of the first argument given, else that of the environment. Raises `UsageError` for an empty argument."""
    for file in arguments:
        if file is not None:
            if not file:
                # In a script, an unset variable: without the file's options a store would be writable that they protect.
                raise UsageError("no configuration file given: expected a path")
            return file
    return environment.get("ZARRFS_CONFIG") or None


def _variable(name: str) -> str:
    return "ZARRFS_" + name.upper()


def _drop_lesser_views(sources: list[dict[str, str]]) -> None:
    """Drop ``view`` and ``views`` from all sources after the first that has either: they are alternatives."""
    for number, source in enumerate(sources):
        if source.keys() & {"view", "views"}:
            for lesser in sources[number + 1 :]:
                lesser.pop("view", None)
                lesser.pop("views", None)
            return


def _from_mount_options(arguments: Iterable[str], unknown: Callable[[str], None] | None) -> dict[str, str]:
    texts: dict[str, str] = {}
    for part in (part for argument in arguments for part in split_mount_options(argument)):
        written, equals, value = part.partition("=")
        name = written.strip().replace("-", "_")
        if (reason := refusal(part)) is not None:
            raise UsageError(f"-o {written}: {reason}")
        name, implied = _SYNONYMS.get(name, (name, "yes"))
        negated = name.removeprefix("no_")
        if negated != name and negated in options() and options()[negated].flag:
            name, implied = negated, "no"
        if name != "config" and name not in options():
            if is_standard(part):
                continue
            if unknown is None:
                raise UsageError(f"-o {written}: unknown option{_nearest(name, [*options(), *_SYNONYMS, *STANDARD, 'config'])}")
            unknown(written)
            continue
        flag = name in options() and options()[name].flag
        if not equals and not flag:
            raise UsageError(
                f"-o {written}: needs a value, as in {name}={options()[name].metavar if name in options() else 'FILE'}"
            )
        if equals and implied == "no":
            raise UsageError(f"-o {part}: {written} takes no value")
        texts[name] = value if equals else implied
    return texts


def _from_toml(path: str) -> dict[str, str]:
    import tomllib

    try:
        with open(path, "rb") as file:
            document = tomllib.load(file)
    except OSError as error:
        raise UsageError(f"configuration file {path}: {error.strerror}: see --config and ZARRFS_CONFIG") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"configuration file {path}: not TOML: {error}") from error
    texts = {}
    for written, value in document.items():
        name = written.replace("-", "_")
        if name in texts:
            raise UsageError(f"{path}: {name}: given twice, with '-' and with '_'")
        if name in _PLACES:
            texts[name] = _absolute(path, name, value)
            continue
        if name not in options():
            raise UsageError(f"{path}: unknown option {written!r}{_nearest(name, [*options(), *_PLACES])}")
        if options()[name].octal and not isinstance(value, str):
            raise UsageError(f'{path}: {written}: expected octal digits in quotes, as in {written} = "022"')
        try:
            texts[name] = _text(value)
            if options()[name].parse is _path and not texts[name].startswith(("/", "~")):
                raise ValueError(f"expected an absolute path: {_ANYWHERE}")
        except ValueError as error:
            raise UsageError(f"{path}: {written}: {error}") from error
    for name, text in texts.items():
        if "\0" in text:
            raise UsageError(f"{path}: {name}: value contains a NUL")
    return texts


def _absolute(path: str, name: str, value: Any) -> str:
    # The value is not shown: the URL of a store may contain secrets.
    if not isinstance(value, str) or not _PLACES[name].fullmatch(value):
        what = "an absolute path or a URL" if name == "store" else "an absolute path"
        raise UsageError(f"{path}: {name}: expected {what}: {_ANYWHERE}")
    return value


def _required(name: str, from_file: Mapping[str, str], config_file: str | None, command: str = "mount") -> str:
    try:
        return from_file[name]
    except KeyError:
        where = f"in {config_file}" if config_file else "in a file given by --config"
        raise UsageError(
            f'{name.upper()} is missing: no argument, and no {name} = "..." {where}; see `zarrfs {command} --help`'
        ) from None


def _text(value: Any) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case str():
            return value
        case int() | float():
            return str(value)
        case [*items] if all(isinstance(item, str) for item in items):
            return ",".join(items)
        case _:
            raise ValueError("expected text, a number, true, false or a list of names")


def _nearest(name: str, names: Iterable[str]) -> str:
    import difflib

    close = difflib.get_close_matches(name, list(names), n=1)
    return f"; did you mean {close[0]}?" if close else "; `zarrfs mount --help` lists them"
