"""Mounts of ordinary users, whose only right is to run fusermount3."""

from __future__ import annotations

import re

import pytest

from tests.support.users import REPOSITORY, run_as_users

pytestmark = pytest.mark.fuse

# Each user has a store, s.zarr, and a folder to mount on, m.
STORES = f"""
for user in 65534 2; do cp -r {REPOSITORY}/demo/example.zarr "$W/$user/s.zarr" && chown -R $user:$user "$W/$user"; done
A="$W/65534" B="$W/2"
"""


def lines(script: str) -> list[str]:
    """Return the output of a script of users, with short names for the folders in it."""
    text = run_as_users(STORES + script)
    return re.sub(r"/\S*/zarrfs-namespace-[^/\s`]*/w", "W", text).splitlines()


def test_a_user_mounts_reads_writes_and_unmounts() -> None:
    said = lines("""
    code as 65534 zarrfs mount "$A/s.zarr" "$A/m"
    as 65534 ls "$A/m"
    as 65534 bash -c 'echo hello > "$1/m/raw/x"; head -c 288 /dev/zero > "$1/m/chunks/lat/0"' bash "$A"
    stat -c '%U %a' "$A/s.zarr/x"; cat "$A/s.zarr/x"
    as 65534 stat -c '%U %G %a' "$A/m/raw/x" "$A/m/raw"
    code as 65534 zarrfs mount "$A/s.zarr" "$A/m"
    code as 65534 zarrfs umount "$A/m"
    code as 65534 zarrfs umount "$A/m"
    """)
    assert said == [
        "code 0",
        *("README.txt", "chunks", "npy", "raw", "zarr3"),
        *("nobody 644", "hello"),
        *("nobody nogroup 644", "nobody nogroup 755"),
        "zarrfs: mountpoint W/65534/m: already mounted by zarrfs: `zarrfs umount W/65534/m` first, or choose another",
        "code 5",
        "code 0",
        "zarrfs: W/65534/m: not mounted (see: findmnt -t fuse.zarrfs)",
        "code 5",
    ]


def test_a_full_disk_has_no_temporary_folder() -> None:
    said = lines("""
    for place in /tmp /var/tmp; do mount --rbind "$place" "$place" && mount -o remount,bind,ro "$place"; done
    chmod 0755 "$W/tmp" && mkdir "$A/.cache"
    code as 65534 zarrfs mount "$A/s.zarr" "$A/m"
    as 65534 bash -c 'echo hello > "$1/m/raw/x"' bash "$A"
    code as 65534 zarrfs umount "$A/m"
    code as 65534 zarrfs mount "$A/s.zarr" "$A/m"
    pid=$(pid_of "$A/m" as 65534) && kill "$pid" && tail --pid="$pid" -f /dev/null
    findmnt "$A/m" || cat "$A/s.zarr/x"
    """)
    no_report = "could not create an exit report (full disk?): data that could not be stored is named in its log only"
    assert said == ["code 0", f"zarrfs: W/65534/m: unmounted, but its daemon {no_report}", "code 1", "code 0", "hello"]


@pytest.mark.full_length
def test_what_could_not_be_stored_is_told_the_user_at_the_end() -> None:
    said = lines("""
    mkdir "$A/full" && mount -t tmpfs -o size=64k,mode=0777 full "$A/full"
    code as 65534 zarrfs mount "$A/full" "$A/m"
    as 65534 bash -c 'head -c 200000 /dev/zero > "$1/m/raw/big"' bash "$A" 2> /dev/null || true
    code as 65534 zarrfs umount "$A/m"
    code as 65534 zarrfs mount "$A/full" "$A/m"
    as 65534 bash -c 'head -c 200000 /dev/zero > "$1/m/raw/big"' bash "$A" 2> /dev/null || true
    code zarrfs umount "$A/m"
    find "$W/tmp" -name '*last-words*'
    umount "$A/full"
    """)
    assert [line.partition(":")[0] for line in said] == ["code 0", "zarrfs", "code 7", "code 0", "zarrfs", "code 7"]
    assert all("raw/big" in said[number] and "not stored" in said[number] for number in (1, 4))


@pytest.mark.full_length
def test_log_cache_and_last_words_are_in_the_users_places() -> None:
    said = lines("""
    as 65534 zarrfs mount "$A/s.zarr" "$A/m"
    as 65534 find "$A" "$W/tmp" -path "$A/m" -prune -o -path "$A/s.zarr" -prune -o -type f -printf '%p %U %m\\n' > "$W/found"
    sort "$W/found" | sed 's|-[^-/]*/[0-9]*[.]last|-OWN/PID.last|'
    as 65534 zarrfs umount "$A/m"
    find "$W/tmp" -type f
    # What was brought along from another user is not used.
    mkdir -m 700 "$W/of-root"; as 65534 env XDG_RUNTIME_DIR="$W/of-root" zarrfs mount "$A/s.zarr" "$A/m"
    find "$W/tmp" -type f | sed 's|-[^-/]*/[0-9]*[.]last|-OWN/PID.last|'
    as 65534 zarrfs umount "$A/m"
    as 65534 env HOME=/root zarrfs mount "$A/s.zarr" "$A/m" 2>&1 || echo "code $?"
    """)
    log = r"W/65534/.local/state/zarrfs/tmp-zarrfs\x2dnamespace\x2d"
    assert len(said) == 5, said
    assert said[0].startswith(log) and said[0].endswith("-w-65534-m.log 65534 600")
    assert said[1] == "W/tmp/zarrfs-65534-OWN/PID.last-words.json 65534 600"
    assert said[2] == "W/tmp/zarrfs-65534-OWN/PID.last-words.json"
    assert "zarrfs: log file /root/.local/state/zarrfs/" in said[3] and "choose another with --log-file" in said[3]
    assert said[4] == "code 2"


def test_an_archive_that_a_user_may_not_read_is_one_all_the_same() -> None:
    """It was said to be no store, with the exit code of a missing one."""
    said = run_as_users("""
    echo '{"zarr_format": 2}' > "$W/.zgroup" && (cd "$W" && "$SCRIPTS/python" -m zipfile -c s.zip .zgroup) && chmod 0600 "$W/s.zip"
    code as 65534 zarrfs info "$W/s.zip"
    code as 65534 zarrfs mount "$W/s.zip" "$W/65534/m"
    """).splitlines()
    assert [line for line in said if line.startswith("code ")] == ["code 4"] * 2, said
    assert sum("s.zip may not be read" in line for line in said) == 2


@pytest.mark.full_length
def test_two_users_at_once() -> None:
    said = lines("""
    code as 65534 zarrfs mount "$A/s.zarr" "$A/m"
    code as 2 zarrfs mount "$B/s.zarr" "$B/m"
    as 65534 bash -c 'echo mine > "$1/m/raw/x"' bash "$A"
    as 2 bash -c 'echo theirs > "$1/m/raw/x"' bash "$B"
    cat "$A/s.zarr/x" "$B/s.zarr/x"
    code as 2 ls "$A/m"
    code as 2 zarrfs mount "$B/s.zarr" "$A/m"
    code as 2 zarrfs umount "$A/m"
    code as 2 zarrfs umount --lazy "$A/m"
    code as 2 zarrfs umount "$B/m"
    as 65534 cat "$A/m/raw/x"
    code as 65534 zarrfs umount "$A/m"
    """)
    assert said == [
        *("code 0", "code 0", "mine", "theirs"),
        *("ls: cannot access 'W/65534/m': Permission denied", "code 2"),
        *(
            "zarrfs: mountpoint W/65534/m: already mounted by zarrfs: `zarrfs umount W/65534/m` first, or choose another",
            "code 5",
        ),
        *("zarrfs: W/65534/m: mounted by nobody: only they and root may unmount it", "code 1") * 2,
        *("code 0", "mine", "code 0"),
    ]


def test_mountpoints_that_are_not_the_users() -> None:
    said = lines("""
    code as 2 zarrfs mount "$B/s.zarr" "$A/m"
    mkdir -m 1777 "$W/sticky"; code as 2 zarrfs mount "$B/s.zarr" "$W/sticky"
    chmod 700 "$A"; code as 2 zarrfs mount "$B/s.zarr" "$A/m"
    mkdir -m 711 "$W/list"; code as 2 zarrfs mount "$B/s.zarr" "$W/list"
    mkdir "$W/ro" && mount -t tmpfs -o ro ro "$W/ro"
    code zarrfs mount "$B/s.zarr" "$W/ro"  # root may, since nobody has to write there
    code zarrfs umount "$W/ro"; umount "$W/ro"
    """)
    assert said == [
        *("zarrfs: mountpoint W/65534/m: not writable: choose a folder of your own", "code 5"),
        *("zarrfs: mountpoint W/sticky: sticky folder of another user: choose a folder of your own", "code 5"),
        *("zarrfs: mountpoint W/65534/m: not accessible (permission denied): choose a folder of your own", "code 5"),
        *("zarrfs: mountpoint W/list: not accessible (permission denied): choose a folder of your own", "code 5"),
        *("code 0", "code 0"),
    ]


@pytest.mark.full_length
def test_without_fuse() -> None:
    said = lines("""
    chmod 600 /dev/fuse; code as 65534 zarrfs mount "$A/none" "$A/m"; chmod 666 /dev/fuse
    code as 65534 env PATH= "$SCRIPTS/zarrfs" mount "$A/s.zarr" "$A/m"
    as 65534 ls "$A/m" | head -n 1
    code as 65534 env PATH= "$SCRIPTS/zarrfs" umount "$A/m"
    code as 65534 env -u PATH "$SCRIPTS/zarrfs" mount "$A/s.zarr" "$A/m"
    fusermount3=$(command -v fusermount3); mount --bind /dev/null "$fusermount3"; [ ! -x /bin/fusermount3 ]
    code as 2 zarrfs mount "$B/none" "$B/m"
    code as 65534 zarrfs umount "$A/m"
    umount "$fusermount3"
    code as 65534 env -u PATH "$SCRIPTS/zarrfs" umount "$A/m"
    """)
    missing = "zarrfs: fusermount3 not found: install fuse3"
    assert said == [
        "zarrfs: /dev/fuse: not accessible (permission denied): run as root, or `chmod 0666` it; "
        "a container needs `--device /dev/fuse --cap-add SYS_ADMIN`",
        "code 6",
        *("code 0", "README.txt", "code 0"),
        "code 0",
        *(f"{missing} (Debian and Ubuntu: `sudo apt install fuse3`)", "code 6"),
        *(missing, "code 6"),
        "code 0",
    ]


def test_what_a_service_or_container_withholds_is_named() -> None:
    said = lines("""
    code as 65534 setpriv --no-new-privs zarrfs mount "$A/s.zarr" "$A/m"
    code as 65534 setpriv --no-new-privs zarrfs mount -f "$A/s.zarr" "$A/m"
    code setpriv --bounding-set=-sys_admin --inh-caps=-sys_admin "$SCRIPTS/zarrfs" mount "$A/s.zarr" "$A/m"
    """)
    kernel = "fusermount3: mount failed: Operation not permitted"
    failed = "zarrfs: W/65534/m: mount failed: fuse_session_mount failed"
    privileges = f"{failed}: fusermount3 cannot mount with no_new_privs: do without `NoNewPrivileges=` of a service, "
    assert said == [
        *(f"{privileges}`no-new-privileges` of a container", f"  {kernel}", "code 6"),
        *(kernel, f"{privileges}`no-new-privileges` of a container", "code 6"),
        f"{failed}: no process may mount here, for want of CAP_SYS_ADMIN: a container needs `--cap-add SYS_ADMIN`",
        *(f"  {kernel}", "code 6"),
    ]


@pytest.mark.full_length
def test_allow_other_of_a_user_is_roots_choice() -> None:
    said = lines("""
    conf() { printf "$1" > "$W/fuse.conf" && mount --bind "$W/fuse.conf" /etc/fuse.conf; }
    conf '#user_allow_other\\n'; code as 65534 zarrfs mount -o allow_other "$A/none" "$A/m"; umount /etc/fuse.conf
    conf ' user_allow_other # all of them\\n'; code as 65534 zarrfs mount -o allow_other "$A/s.zarr" "$A/m"
    as 2 head -c 1 "$A/m/raw/zarr.json"; echo
    code as 2 bash -c 'echo x > "$1/m/raw/zarr.json"' bash "$A" | sed 's/.*: //'
    as 2 bash -c 'head -c 1 "$1/m/.zarrfs/config.json"; echo' bash "$A"
    cat "$A/m/raw/zarr.json" > /dev/null && code zarrfs umount "$A/m"
    code as 65534 zarrfs mount -o allow_other,umask=077 "$A/s.zarr" "$A/m"
    code as 2 ls "$A/m" | sed 's/.*: //'
    code as 65534 zarrfs umount "$A/m"
    umount /etc/fuse.conf
    """)
    assert said == [
        *("zarrfs: allow_other: not permitted: root must add a line `user_allow_other` to /etc/fuse.conf", "code 6"),
        *("code 0", "{", "Permission denied", "code 1", "{", "code 0"),
        *("code 0", "Permission denied", "code 2", "code 0"),
    ]


@pytest.mark.full_length
def test_always_nosuid_nodev_noatime_and_default_permissions() -> None:
    said = lines("""
    code as 65534 zarrfs mount -o suid,dev,noexec,uid=0,umask=027 "$A/s.zarr" "$A/m"
    findmnt -n -o FSTYPE,OPTIONS "$A/m"
    as 65534 stat -c '%u %g %a' "$A/m/raw"
    code as 65534 zarrfs umount "$A/m"
    """)
    assert said == [
        "code 0",
        "fuse.zarrfs rw,nosuid,nodev,noexec,noatime,user_id=65534,group_id=65534,default_permissions",
        "0 65534 750",
        "code 0",
    ]


@pytest.mark.full_length
def test_a_user_whose_own_modes_keep_them_out() -> None:
    said = lines("""
    code as 65534 zarrfs mount -o uid=0,umask=077 "$A/s.zarr" "$A/m"
    code as 65534 ls "$A/m" | sed 's/.*: //'
    pid=$(basename "$W"/tmp/zarrfs-65534-*/*.last-words.json .last-words.json)
    code as 65534 zarrfs umount "$A/m"
    tail --pid=$pid -f /dev/null
    """)
    assert said == [
        *("code 0", "Permission denied", "code 2"),
        *("zarrfs: W/65534/m: unmounted, but its daemon gives no information on when everything is stored", "code 1"),
    ]


def test_a_mount_below_a_renamed_folder_ends_by_a_signal_as_any_other() -> None:
    said = lines("""
    as 65534 mkdir -p "$A/a/m"
    code as 65534 zarrfs mount "$A/s.zarr" "$A/a/m"
    pid=$(pid_of "$A/a/m" as 65534)
    as 65534 mv "$A/a" "$A/b"
    kill $pid
    tail --pid=$pid -f /dev/null
    findmnt -no FSTYPE "$A/b/m" || echo "nothing is mounted"
    """)
    assert said == ["code 0", "nothing is mounted"]


@pytest.mark.full_length
def test_root_unmounts_what_a_user_has_mounted_and_waits_for_the_daemon() -> None:
    said = lines("""
    code as 65534 zarrfs mount "$A/s.zarr" "$A/m"
    pid=$(pid_of "$A/m" as 65534)
    ls "$A/m" 2>&1 | sed 's/.*: //'
    code zarrfs umount "$A/m"
    [ "$(sed -n 's/^State:[[:space:]]*\\(.\\).*/\\1/p' /proc/$pid/status 2>&1)" != S ] && echo "it has ended"
    code as 65534 zarrfs mount "$A/s.zarr" "$A/m"
    as 65534 bash -c 'cd "$1/m/raw" && echo $$ > "$1/pid" && exec sleep 100' bash "$A" > /dev/null &
    until [ -s "$A/pid" ]; do :; done; sleeper=$(cat "$A/pid")
    code zarrfs umount "$A/m" | sed "s/($sleeper:/(PID:/"
    code zarrfs umount --lazy "$A/m" | sed "s/(pid [0-9]*)/(PID)/; s/($sleeper:/(PID:/"
    pid=$(basename "$W"/tmp/zarrfs-65534-*/*.last-words.json .last-words.json)
    kill $sleeper; tail --pid=$pid -f /dev/null
    """)
    assert said == [
        *("code 0", "Permission denied", "code 0", "it has ended"),
        "code 0",
        *("zarrfs: W/65534/m: in use by sleep (PID: raw): close it there, or use --lazy", "code 1"),
        *("zarrfs: W/65534/m: detached; its daemon (PID) continues until it is closed by sleep (PID: raw)", "code 0"),
    ]


@pytest.mark.full_length
def test_dead_mounts_are_replaced_by_who_made_them_and_by_root() -> None:
    said = lines("""
    replaced() { code "$@" | sed 's/died, its .*/died/'; }
    as 65534 zarrfs mount "$A/s.zarr" "$A/m"; killed $(pid_of "$A/m" as 65534)
    replaced as 65534 zarrfs mount "$A/s.zarr" "$A/m"
    killed $(pid_of "$A/m" as 65534)
    code as 2 zarrfs mount "$B/s.zarr" "$A/m" | head -c 60; echo
    code as 2 zarrfs umount "$A/m"
    chmod 700 "$A"
    replaced zarrfs mount -o allow_other "$A/s.zarr" "$A/m"
    chmod 755 "$A"
    killed $(pid_of "$A/m")
    replaced as 65534 zarrfs mount "$A/s.zarr" "$A/m"
    code as 65534 zarrfs umount "$A/m"
    replaced zarrfs mount "$A/s.zarr" "$A/m"
    code zarrfs umount "$A/m"
    as 65534 zarrfs mount "$A/s.zarr" "$A/m"; as 65534 ls "$A/m" > /dev/null; killed $(pid_of "$A/m" as 65534)
    code zarrfs umount "$A/m" | sed 's/: its unstored .*//'
    grep -c "$A/m" /proc/self/mountinfo || true
    """)
    dead = "zarrfs: W/65534/m: removed a zarrfs mount whose daemon died"
    assert said[:2] == [dead, "code 0"]
    assert said[2].startswith("zarrfs: mountpoint")
    assert said[3:] == [
        *("zarrfs: W/65534/m: mounted by nobody: only they and root may unmount it", "code 1"),
        *(dead, "code 0"),
        "zarrfs: mountpoint W/65534/m: mount by root whose daemon died: they or root may remove it with `zarrfs umount W/65534/m`",
        "code 5",
        *("zarrfs: W/65534/m: mounted by root: only they and root may unmount it", "code 1"),
        *(dead, "code 0", "code 0"),
        *("zarrfs: W/65534/m: unmounted, but its daemon had died before", "code 0", "0"),
    ]


def test_a_user_whom_fusermount3_refuses_is_told_why() -> None:
    said = lines("""
    printf 'mount_max = 0\\n' > "$W/fuse.conf" && mount --bind "$W/fuse.conf" /etc/fuse.conf
    code as 65534 zarrfs mount "$A/s.zarr" "$A/m"
    umount /etc/fuse.conf
    """)
    assert said[-1] == "code 6"
    assert any("too many FUSE filesystems mounted" in line for line in said)
