#!/usr/bin/env bash
# Installs the requirements for building and testing zarrfs: missing system packages (Debian, Ubuntu), and a virtual environment in
# the clone with zarrfs and the dependency groups named as arguments (default: test). Does nothing if everything is installed.
#
#   PYTHON=python3.13 VENV=.venv-3.13 scripts/setup.sh test
set -euo pipefail
cd "$(dirname "$0")/.."

venv=${VENV:-.venv}
groups=("${@:-test}")

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# --- system packages

recent() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }
# A venv needs ensurepip; pyfuse3, which is compiled, needs Python.h.
complete() {
    "$1" -c 'import ensurepip, os, sysconfig, venv; os.stat(os.path.join(sysconfig.get_path("include"), "Python.h"))' 2>/dev/null
}

# Prints the first complete Python. Each candidate is run, since a shim may exist without its Python.
find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 /usr/bin/python3 python3.14 python3.13 python3.12 python3.11}; do
        if recent "$candidate" && complete "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    return 1
}

missing=()
command -v fusermount3 >/dev/null || missing+=(fuse3)
command -v pkg-config >/dev/null || missing+=(pkg-config)
pkg-config --exists fuse3 2>/dev/null || missing+=(libfuse3-dev)
echo '#include <stdio.h>' | gcc -E - >/dev/null 2>&1 || missing+=(gcc libc6-dev)
find_python >/dev/null || missing+=(python3 python3-dev python3-venv)
# Programs that tests run on a mount. Without them these tests are skipped, or fail with ZARRFS_REQUIRE_FUSE=1.
if [ "${ZARRFS_REQUIRE_FUSE:-}" = 1 ]; then
    for program in fio git nano octave rsync sqlite3 strace tar vim; do
        command -v "$program" >/dev/null || missing+=("$program")
    done
    command -v Rscript >/dev/null || missing+=(r-base-core)
    command -v gdalinfo >/dev/null || missing+=(gdal-bin)
    command -v ncdump >/dev/null || missing+=(netcdf-bin)
    command -v getfattr >/dev/null || missing+=(attr)
    PATH=$PATH:/usr/sbin command -v mkfs.btrfs >/dev/null || missing+=(btrfs-progs)
    command -v systemd-analyze >/dev/null || missing+=(systemd)
fi

if [ ${#missing[@]} -gt 0 ]; then
    if ! command -v apt-get >/dev/null; then
        die "missing: ${missing[*]} (names of Debian packages). No apt-get found: install the equivalent packages, then retry."
    fi
    as_root=()
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null || die "missing: ${missing[*]}. Install them as root (apt-get install ${missing[*]}), then retry."
        as_root=(sudo)
    fi
    say "installing ${missing[*]}"
    apt_install() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}" >&2; }
    # Package lists are updated only if the installation fails: on a fresh machine they are empty or old.
    apt_install || { "${as_root[@]}" apt-get update -q >&2 && apt_install; } || die "apt-get install ${missing[*]} failed"
fi

python=$(find_python) || die "no Python 3.11 or newer with ensurepip, venv and headers found. \
Install one (Debian 12, Ubuntu 24.04: python3 python3-dev python3-venv) or name one: PYTHON=/path/to/python3 make ..."

# --- the virtual environments

# as_wanted VENV GROUPS: true if VENV exists, and was created for this path, these groups and this Python; otherwise it is recreated.
as_wanted() {
    wanted="$PWD/$1 $("$python" -V) $2 $(sha256sum <pyproject.toml)"
    [ -x "$1/bin/python" ] && "$1/bin/python" -c '' && [ "$(cat "$1/.wanted" 2>/dev/null)" = "$wanted" ]
}

if ! as_wanted "$venv" "${groups[*]}"; then
    say "installing zarrfs and its dependencies into $venv ($("$python" -V))"
    rm -f "$venv/.wanted"
    "$python" -m venv --clear "$venv"
    pip=("$venv/bin/python" -m pip --disable-pip-version-check)
    # pip supports dependency groups since 25.1; Debian 12 has 23.
    "${pip[@]}" install --quiet --upgrade 'pip >= 25.1'
    "${pip[@]}" install --quiet --editable . "${groups[@]/#/--group=}"
    echo "$wanted" >"$venv/.wanted"
fi

# Libraries for Zarr 2, which tests run on a mount (tests/mount/test_judges.py). Without a pip of its own it takes ten seconds.
if [ "${ZARRFS_REQUIRE_FUSE:-}" = 1 ] && [ "$venv" = .venv ] && ! as_wanted .venv-zarr2 zarr2; then
    say "installing libraries for Zarr 2 into .venv-zarr2"
    rm -f .venv-zarr2/.wanted
    "$python" -m venv --clear --without-pip .venv-zarr2
    .venv/bin/python -m pip --disable-pip-version-check --python .venv-zarr2/bin/python install --quiet --no-compile --group=zarr2
    echo "$wanted" >.venv-zarr2/.wanted
fi
