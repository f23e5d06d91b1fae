"""What a mount is asked to be: one frozen value, made from one table of options.

The table is the list of fields of `MountConfig`. A field is at once a long option (``--metadata-ttl 5``), a mount option
(``-o metadata_ttl=5``; there and in the other places ``-`` and ``_`` are the same), an environment variable
(``ZARRFS_METADATA_TTL=5``) and a key of a TOML file (``metadata_ttl = 5``). The first of these that says something counts, in
this order; where ``-o`` names one option twice, its last word counts, as with mount(8).

All sources speak text, so that each option is parsed by one function, whoever asked.

The TOML file may also say what is mounted where (``store``, ``mountpoint``), for those who start mounts by one name, as systemd does.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from zarrfs.errors import UsageError
from zarrfs.options.mount8 import STANDARD, is_standard, refusal
from zarrfs.options.ownership import parse_group, parse_umask, parse_user

TRUE = frozenset({"1", "yes", "true", "on"})
FALSE = frozenset({"0", "no", "false", "off"})

# Keys of the TOML file alone, and what they have to look like. A store without a path is just its scheme (``memory:``).
_PLACES = {
    "store": re.compile(r"(?:[A-Za-z][\w+.-]*:)?/.*|[A-Za-z][\w+.-]*:", re.DOTALL),
    "mountpoint": re.compile(r"/.*", re.DOTALL),
}

# mount(8)'s words for what has a name of its own here.
_SYNONYMS = {
    "ro": ("read_only", "yes"),
    "rw": ("read_only", "no"),
    "fg": ("foreground", "yes"),
    "exec": ("noexec", "no"),
    "sync": ("durable", "yes"),
}


@dataclass(frozen=True, slots=True)
class Option:
    """One row of the table: ``parse`` makes the value of its text and raises ValueError with what is wrong with it.

    ``flag`` options need no value (``--durable``, ``-o durable``) and have a negation (``--no-durable``, ``-o no_durable``). ``octal``
    ones are text in TOML: its integers do not tell 22 from 0o26.
    """

    parse: Callable[[str], Any]
    metavar: str
    help: str
    flag: bool = False
    octal: bool = False
    short: str | None = None


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


def _positive_seconds(text: str) -> float:
    value = _seconds(text)
    if value == 0:
        raise ValueError("expected more than 0 seconds")
    return value


_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(i?B?)\s*", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Bytes: ``4096``, ``512M`` and ``512MiB`` (powers of 1024), ``512MB`` (powers of 1000)."""
    match = _SIZE.fullmatch(text)
    if match is None or (not match[2] and match[3].lower() not in ("", "b")):
        raise ValueError("expected a size, such as 64MiB, 512M or a number of bytes")
    base = 1000 if match[3].lower() == "b" else 1024
    return int(float(match[1]) * base ** " KMGT".index(match[2].upper() or " "))


def _path(text: str) -> str:
    if not text:
        raise ValueError("expected a path")
    return os.path.abspath(os.path.expanduser(text))


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


def _option(default: Any, parse: Callable[[str], Any], metavar: str, help: str, *, short: str | None = None) -> Any:
    row = Option(parse, metavar, help, flag=parse is _boolean, octal=parse is parse_umask, short=short)
    return dataclasses.field(default=default, metadata={"option": row})


@dataclass(frozen=True, slots=True, kw_only=True)
class MountConfig:
    """What to mount, where and how. ``mountpoint`` is empty where nothing is mounted (``zarrfs info``); paths are absolute.

    ``source`` is what the store is called in the mount table (without its secrets), where that is not as ``store`` has it.
    """

    store: str
    mountpoint: str = ""
    source: str = ""
    foreground: bool = _option(False, _boolean, "", "Stay in the foreground and log to stderr.", short="-f")
    read_only: bool = _option(False, _boolean, "", "Refuse every change (-o ro).")
    view: str | None = _option(None, _name, "VIEW", "Make this view the root of the mount: raw, chunks, npy, ...")
    views: tuple[str, ...] = _option((), _names, "VIEW,...", "Offer these views only; in -o separate them by ':' or '+'.")
    allow_other: bool = _option(False, _boolean, "", "Let other users in, as the files' modes permit.")
    uid: int | None = _option(None, parse_user, "USER", "Whose the files are: a number or name. Default: who mounts.")
    gid: int | None = _option(None, parse_group, "GROUP", "Which group's they are. Default: that of who mounts.")
    umask: int = _option(0o022, parse_umask, "OCTAL", "Permissions that files (666) and folders (777) do not have.")
    noexec: bool = _option(False, _boolean, "", "Let no program in the mount be run, nor mapped to be run.")
    metadata_ttl: float = _option(10.0, _seconds, "SECONDS", "Notice changes made behind the mount within this time.")
    watch: bool = _option(True, _boolean, "", "Notice them at once where the store is a local folder (extra: watch).")
    xattrs: bool = _option(
        True, _boolean, "", "Tell what arrays are as extended attributes; without them small writes take less time."
    )
    memory_limit: int = _option(192 << 20, parse_size, "SIZE", "Memory for decoded chunks and unpublished writes.")
    cache_dir: str | None = _option(
        None,
        _path,
        "DIR",
        "Where what exceeds the memory limit is kept. Default: zarrfs in $XDG_CACHE_HOME, else a temporary folder.",
    )
    durable: bool = _option(False, _boolean, "", "Make what was written survive a power cut at every close, not only at fsync.")
    fill: bool = _option(False, _boolean, "", "Let chunks that are not stored be read in chunks/, as fill values.")
    new_dialect: str = _option(
        "v3", _dialect, "DIALECT", "Of what is made in a store that has no nodes yet: v3, v2, v1, v0, v3_2022[:text] or v3_2019."
    )
    new_chunks: str = _option(
        "auto", str, "CHUNKS", "Chunk shape of new arrays: auto (as zarr-python chooses), none (one chunk), or as in 512x512."
    )
    new_codecs: str = _option(
        "auto", str, "CODECS", "Codecs of new arrays: auto (by dialect), none, or as in blosc:cname=lz4:clevel=5+crc32c."
    )
    new_separator: str = _option(
        "auto", _separator, "SEPARATOR", "Separator in the chunk keys of new arrays: auto (by dialect), '/' or '.'."
    )
    new_shards: str = _option(
        "none",
        str,
        "SHARDS",
        "Chunks of new arrays in one shard, along each dimension, as in 8x8: v3 and v3_2022; none: no shards.",
    )
    dialect_choices: tuple[str, ...] = _option(
        (),
        _choices,
        "D.C=V,...",
        "How documents are read where texts and software disagree (docs/SEMANTICS.md); in -o separate by ':'.",
    )
    shard_delay: float = _option(
        5.0, _seconds, "SECONDS", "Store a shard whose chunks were written in part after this time; 0: at each close."
    )
    resize_erases: bool = _option(False, _boolean, "", "Let a smaller shape in .zarray erase chunks that lie outside of it.")
    temporary_names: tuple[str, ...] = _option(
        (),
        _patterns,
        "PATTERN,...",
        "More names of temporary files in chunks/, zarr3/ and npy/, such as *.bak; in -o separate them by ':'.",
    )
    timeout: float = _option(60.0, _positive_seconds, "SECONDS", "Give up a store operation after this time.")
    log_level: str = _option("info", _level, "LEVEL", "debug, info, warning or error.")
    log_file: str | None = _option(
        None,
        _path,
        "FILE",
        "Append the log to this file. Default: stderr in the foreground, else one file for each mountpoint "
        "in /var/log/zarrfs (root) or $XDG_STATE_HOME/zarrfs.",
    )

    def __post_init__(self) -> None:
        if self.view is not None and self.views:
            raise UsageError("view and views exclude each other: view makes one view the root, views chooses the folders below it")

    def to_json(self) -> str:
        """The whole configuration as text, for `from_json` in another process of the same version."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """What `to_json` wrote."""
        values = json.loads(text)
        lists: dict[str, Any] = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        return cls(**(values | lists))


def options() -> dict[str, Option]:
    """The table: every option by its name (with underscores), in the order in which help lists them."""
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
    """The configuration that all sources together ask for.

    ``store`` and ``mountpoint`` are those of the TOML file where they are None. ``flags``: values of long options by name, None where
    one was not given; booleans or text. ``mount_options``: the arguments of each ``-o``. ``config_file``: the TOML file, else the one
    that ``-o config=`` or ``ZARRFS_CONFIG`` names. ``unknown`` is told each name in ``mount_options`` that is no option, which else is
    an error. Raises `UsageError`, which names the option, its source and, for an unknown one, the nearest that exists.
    """
    environment = os.environ if environment is None else environment
    from_o = _from_mount_options(mount_options, unknown)
    config_file = config_file or from_o.pop("config", None) or environment.get("ZARRFS_CONFIG")
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
    _settle_views([texts for _, texts in sources])
    values: dict[str, Any] = {}
    for name, option in options().items():
        for said_by, texts in sources:
            if name in texts:
                try:
                    values[name] = option.parse(texts[name])
                except ValueError as error:
                    raise UsageError(f"{said_by(name)}: {error}, not {texts[name]!r}") from error
                break
    return MountConfig(
        store=_place("store", from_file, config_file) if store is None else store,
        mountpoint=_place("mountpoint", from_file, config_file) if mountpoint is None else mountpoint,
        **values,
    )


def mountpoint_of(config_file: str | None, environment: Mapping[str, str] | None = None) -> str:
    """The mountpoint that a TOML file names: ``config_file``, else that of ``ZARRFS_CONFIG``. Raises `UsageError`."""
    config_file = config_file or (os.environ if environment is None else environment).get("ZARRFS_CONFIG")
    return _place("mountpoint", _from_toml(config_file) if config_file else {}, config_file)


def split_mount_options(text: str) -> list[str]:
    r"""The options of one ``-o`` argument: separated by commas, except those that ``\`` or double quotes protect."""
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
        raise UsageError(f"-o {text}: ends inside {'a quotation' if quoted else 'an escape'}")
    return [part for part in (*parts, part) if part]


def join_mount_options(options: Iterable[str]) -> str:
    """The argument of ``-o`` that `split_mount_options` takes apart into ``options``."""
    return ",".join(re.sub(r'([\\,"])', r"\\\1", option) for option in options)


def _variable(name: str) -> str:
    return "ZARRFS_" + name.upper()


def _settle_views(sources: list[dict[str, str]]) -> None:
    """``view`` and ``views`` answer one question: the first source that answers it silences the others."""
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
    try:
        with open(path, "rb") as file:
            document = tomllib.load(file)
    except OSError as error:
        raise UsageError(f"configuration file {path}: {error.strerror}: check --config and ZARRFS_CONFIG") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"configuration file {path} is not TOML: {error}") from error
    texts = {}
    for written, value in document.items():
        name = written.replace("-", "_")
        if name in _PLACES:
            texts[name] = _absolute(path, name, value)
            continue
        if name not in options():
            raise UsageError(f"{path}: unknown option {written!r}{_nearest(name, [*options(), *_PLACES])}")
        if options()[name].octal and not isinstance(value, str):
            raise UsageError(f'{path}: {written}: expected octal digits in quotes, as in {written} = "022"')
        try:
            texts[name] = _text(value)
        except ValueError as error:
            raise UsageError(f"{path}: {written}: {error}") from error
    for name, text in texts.items():
        if "\0" in text:
            raise UsageError(f"{path}: {name}: no value holds a NUL")
    return texts


def _absolute(path: str, name: str, value: Any) -> str:
    # Never shown: the URL of a store may hold secrets.
    if not isinstance(value, str) or not _PLACES[name].fullmatch(value):
        what = "an absolute path or a URL" if name == "store" else "an absolute path"
        raise UsageError(f"{path}: {name}: expected {what}: the file means the same wherever it is read")
    return value


def _place(name: str, from_file: Mapping[str, str], config_file: str | None) -> str:
    try:
        return from_file[name]
    except KeyError:
        where = f"in {config_file}, which has none" if config_file else "in a file that --config names"
        both = f'give it as an argument, or as {name} = "..." {where}'
        raise UsageError(f"{name.upper()} is missing: {both}; see `zarrfs mount --help`") from None


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
    close = difflib.get_close_matches(name, list(names), n=1)
    return f"; did you mean {close[0]}?" if close else "; `zarrfs mount --help` lists them"
