"""Stores that several users can write to, each with a mount or another program."""

from __future__ import annotations

import pytest

from tests.support.users import run_as_users, script_of_python

pytestmark = pytest.mark.fuse

_ARRAY = (
    '{"zarr_format": 2, "shape": [2], "chunks": [2], "dtype": "<i8", '
    '"compressor": null, "fill_value": 0, "order": "C", "filters": null}'
)
_SAVE = script_of_python(
    """
import numpy, sys
try:
    numpy.save(sys.argv[1], numpy.arange(3))
except OSError as error:
    print(error.strerror)
else:
    print("saved")
"""
)
_PREPARED = """
A="$W/65534" B="$W/2"
mkdir -m 1777 "$W/s" && echo '{"zarr_format": 2}' > "$W/s/.zgroup"
mkdir -m 0777 "$W/s/a" && echo '%s' > "$W/s/a/.zarray" && chown -R 65534:65534 "$W/s/a"
save() { as "$1" %s "$2"; }
"""


def lines(script: str) -> list[str]:
    """Return the lines of output of a script, after the preparation of a store with an array ``a`` at ``$W/s``."""
    return run_as_users(_PREPARED % (_ARRAY, _SAVE) + script).splitlines()


@pytest.mark.parametrize("taken", ["mkdir -m 0700", "mkdir -m 0755", "touch", "mkfifo", "ln -s /tmp"])
def test_who_takes_the_name_of_the_folder_of_operations_prevents_no_mount(taken: str) -> None:
    said = lines(f"""
    as 2 {taken} "$W/s/.zarrfs"
    code as 65534 zarrfs mount "$W/s" "$A/m"
    save 65534 "$A/m/npy/new.npy"
    save 65534 "$A/m/npy/a.npy"
    as 65534 cmp "$W/s/a/.zarray" "$A/m/raw/a/.zarray"
    as 65534 zarrfs umount "$A/m" 2> /dev/null || true
    ls "$W/s"
    """)
    assert said == ["code 0", "saved", "Not a directory" if taken == "touch" else "Permission denied", "a", "new"]


def test_a_new_array_belongs_to_the_group_of_its_folder_and_has_no_more_rights() -> None:
    """It is built in `.zarrfs/`, whose group and mode are those of the store."""
    said = lines("""
    mkdir "$W/s/g" && echo '{"zarr_format": 2}' > "$W/s/g/.zgroup" && chown -R 2:7 "$W/s/g" && chmod 2777 "$W/s/g"
    eval "$(declare -f as | sed 's/--clear-groups/--groups 7/')"
    as 65534 zarrfs mount "$W/s" "$A/m"
    save 65534 "$A/m/npy/g/new.npy"
    chmod 0700 "$W/s/a"
    save 65534 "$A/m/npy/a.npy"
    as 65534 zarrfs umount "$A/m"
    (cd "$W/s" && find g/new a -printf '%M %U:%G %p\\n' | sort -k 3)
    """)
    assert said == [
        *("saved", "saved"),
        "drwx------ 65534:65534 a",
        *(f"-rw-r--r-- 65534:65534 a/{name}" for name in (".zarray", "0")),
        *("drwxr-sr-x 65534:7 g/new", "-rw-r--r-- 65534:7 g/new/.zarray", "-rw-r--r-- 65534:7 g/new/0"),
    ]


def test_a_hidden_operation_of_another_user_does_not_end_the_watch() -> None:
    said = lines("""
    chmod 0755 "$W/s/a"
    as 65534 zarrfs mount "$W/s" "$A/m"
    watched() { as 65534 grep -q '"watched": true' "$A/m/.zarrfs/stats.json"; }
    until watched; do :; done
    as 2 mkdir "$W/s/.zarrfs" && as 2 mkdir -m 0 "$W/s/.zarrfs/hidden" && as 2 touch "$W/s/late"
    until as 65534 test -e "$A/m/raw/late"; do :; done
    watched && echo watched
    as 65534 zarrfs umount "$A/m"
    """)
    assert said == ["watched"]


def test_a_store_of_which_only_groups_are_writable_is_writable_there() -> None:
    """Its mount was read-only, where other programs write. What is new is missing in a copy that only others may write."""
    said = lines("""
    echo '{"zarr_consolidated_format": 1, "metadata": {".zgroup": {"zarr_format": 2}}}' > "$W/s/.zmetadata"
    for g in g h; do mkdir "$W/s/$g" && echo '{"zarr_format": 2}' > "$W/s/$g/.zgroup"; done
    chown -R 65534 "$W/s/g" && chmod 0755 "$W/s"
    as 65534 zarrfs mount --log-file "$A/log" "$W/s" "$A/m"
    for file in g/new h/new new a; do save 65534 "$A/m/npy/$file.npy"; done
    as 65534 mv "$A/m/npy/g/new.npy" "$A/m/npy/g/moved.npy" && ls "$W/s/g"
    as 65534 sh -c "cat $A/m/npy/g/moved.npy | wc -c"
    as 65534 rm "$A/m/npy/g/moved.npy" && ls "$W/s/g"
    as 65534 zarrfs umount "$A/m" 2> /dev/null || echo "code $?"
    grep -c 'zmetadata: consolidated copy outdated from here on, as it is not writable' "$A/log"
    chown -R 2 "$W/s/a" "$W/s/g" && chmod -R go-w "$W/s" && as 65534 zarrfs mount "$W/s" "$A/m"
    save 65534 "$A/m/npy/g/other.npy"
    as 65534 zarrfs umount "$A/m"
    """)
    # Of the arrays that were not saved, the close said so; their data was lost.
    assert said == [
        *("saved", "Permission denied", "Permission denied", "Permission denied"),
        *("moved", "152", "code 7", "1", "Read-only file system"),
    ]


def test_an_array_whose_folder_may_not_be_removed_is_not_emptied() -> None:
    """There is no room apart either: it was erased in its place, and the error came after that."""
    said = lines("""
    mkdir -m 0777 "$W/s/g" && echo '{"zarr_format": 2}' > "$W/s/g/.zgroup"
    head -c 16 /dev/zero > "$W/s/a/0" && chmod 0755 "$W/s"
    as 65534 zarrfs mount "$W/s" "$A/m"
    as 65534 rm "$A/m/npy/a.npy" 2>&1 | grep -o 'Permission denied'
    as 65534 cat "$A/m/npy/a.npy" | wc -c
    as 65534 zarrfs umount "$A/m"
    ls -A "$W/s/a"
    """)
    assert said == ["Permission denied", "144", ".zarray", "0"]


_REMOVE_AND_WRITE = script_of_python(
    """
import os, sys
file = os.open(sys.argv[1], os.O_RDWR)
try:
    os.unlink(sys.argv[1])
except OSError as error:
    print(error.strerror)
os.pwrite(file, bytes([1] * 8), os.fstat(file).st_size - 8)
os.fsync(file)
"""
)


def test_an_array_whose_chunks_may_not_be_removed_keeps_its_document() -> None:
    """It was erased before the chunks, which are elsewhere, and these in their place, with the error after that."""
    said = lines(f"""
    rm -r "$W/s/a" "$W/s/.zgroup"
    as 65534 zarrfs mount "$W/s" "$A/m" --new-dialect v3_2022
    save 65534 "$A/m/npy/a.npy"
    as 65534 zarrfs umount "$A/m"
    chown 2 "$W/s/data/root" "$W/s/data/root/a" && chmod 1777 "$W/s/data/root" && chmod 0777 "$W/s/data/root/a"
    as 65534 zarrfs mount "$W/s" "$A/m"
    as 65534 {_REMOVE_AND_WRITE} "$A/m/npy/a.npy"
    as 65534 tail -c 16 "$A/m/npy/a.npy" | od -An -td1
    as 65534 zarrfs umount "$A/m"
    (cd "$W/s" && find . -type f | sort)
    """)
    assert said[:2] == ["saved", "Permission denied"]
    assert said[2].split() == ["1"] + ["0"] * 7 + ["1"] * 8
    assert said[3:] == ["./data/root/a/c0", "./meta/root/a.array.json", "./zarr.json"]


def test_an_array_of_another_file_system_whose_folder_may_not_be_removed_is_not_emptied() -> None:
    """There, too, it is erased in its place. Whether it may be is checked only after that it could not be moved."""
    said = lines("""
    mkdir "$W/s/g" && mount -t tmpfs -o mode=1777 g "$W/s/g" && mv "$W/s/a" "$W/s/g" && chown 2 "$W/s/g/a"
    echo '{"zarr_format": 2}' > "$W/s/g/.zgroup" && head -c 16 /dev/zero > "$W/s/g/a/0"
    as 65534 zarrfs mount "$W/s" "$A/m"
    as 65534 rm "$A/m/npy/g/a.npy" 2>&1 | grep -o 'Permission denied'
    as 65534 cat "$A/m/npy/g/a.npy" | wc -c
    as 65534 zarrfs umount "$A/m"
    ls -A "$W/s/g/a" "$W/s" && umount "$W/s/g"
    """)
    assert [each for each in said if "/" not in each] == ["Permission denied", "144", ".zgroup", "g", "", ".zarray", "0"]


@pytest.mark.parametrize(
    ("dialect", "folder", "hidden"),
    [
        ("v3_2019", "data/n", ""),
        ("v3_2022", "data/root/n", ""),
        ("v3_2022", "data/root/n", 'touch "$W/s/.zarrfs"'),
        ("v3", "n/c", 'touch "$W/s/.zarrfs"'),
    ],
)
def test_an_array_whose_chunks_belong_to_another_user_keeps_its_document(dialect: str, folder: str, hidden: str) -> None:
    """It was erased first: the chunks of another user belonged to no array then, and rm had failed."""
    said = lines(f"""
    rm -r "$W/s/a" "$W/s/.zgroup" && as 2 zarrfs mount --new-dialect {dialect} "$W/s" "$B/m"
    save 2 "$B/m/npy/n.npy"
    as 2 zarrfs umount "$B/m"
    chmod -R a+rwX,-t "$W/s" && chmod 0755 "$W/s/{folder}"
    {hidden}
    as 65534 zarrfs mount "$W/s" "$A/m"
    as 65534 rm "$A/m/npy/n.npy" 2>&1 | grep -o 'Permission denied'
    as 65534 od -A n -t d8 -j 128 "$A/m/npy/n.npy"
    as 65534 zarrfs umount "$A/m"
    """)
    assert said[0] == "saved" and said[-3] == "Permission denied"
    assert " ".join(said[-2:]).split() == ["0", "1", "2"]


def test_an_array_at_the_root_whose_chunks_belong_to_another_user_keeps_its_document() -> None:
    document = '{"zarr_format": 3, "node_type": "array", "shape": [8], "data_type": "uint8", "fill_value": 0, '
    document += '"codecs": [{"name": "bytes"}], '
    document += (
        '"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [8]}}, "chunk_key_encoding": {"name": "default"}}'
    )
    said = lines(f"""
    rm -r "$W/s/a" "$W/s/.zgroup" && chmod 0777 "$W/s" && as 2 mkdir "$W/s/c" && echo 1234567 | as 2 tee "$W/s/c/0"
    echo '{document}' | as 2 tee "$W/s/zarr.json" > /dev/null
    as 65534 zarrfs mount "$W/s" "$A/m"
    as 65534 rm "$A/m/npy/s.npy" 2>&1 | grep -o 'Permission denied'
    as 65534 tail -c 8 "$A/m/npy/s.npy"
    as 65534 zarrfs umount "$A/m"
    """)
    assert said == ["1234567", "Permission denied", "1234567"]


@pytest.mark.parametrize("taken", ["install -m 0600 /dev/null", "ln -s /nowhere"])
def test_what_others_have_under_the_names_of_documents_that_do_not_count_hides_and_fails_nothing(taken: str) -> None:
    """Every access was EACCES with such a file at the root, and every fsync with one in the folder of an array or above it."""
    said = lines(f"""
    for each in "$W/s/meta" "$W/s/a/meta"; do {taken} "$each"; done
    code as 65534 zarrfs mount "$W/s" "$A/m"
    save 65534 "$A/m/npy/new.npy"
    code as 65534 bash -c 'cd "$1" && printf %016d > chunks/a/0 && sync chunks/a/0 npy/a.npy chunks/a chunks' bash "$A/m"
    code as 65534 zarrfs umount "$A/m"
    cat "$W/s/a/0"; echo
    """)
    assert said == ["code 0", "saved", "code 0", "code 0", "0" * 16]
