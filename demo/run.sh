#!/usr/bin/env bash
# Mounts a store and reads it with ordinary programs. Each command is printed before its output.
# STORE=/data/x.zarr demo/run.sh shows that store, read-only; without STORE, a copy of the one beside this script.
set -euo pipefail

repository=$(cd "$(dirname "$0")/.." && pwd)
store=${STORE:-}
work=$(mktemp -d /tmp/zarrfs-demo.XXXX)
mnt=$work/mnt
mkdir "$mnt"
export PATH=$repository/.venv/bin:$PATH
# The log is in the temporary folder, too, and removed with it.
export ZARRFS_LOG_FILE=$work/zarrfs.log

finish() {
    local code=$?
    if mountpoint -q "$mnt"; then zarrfs umount --lazy "$mnt" || true; fi
    if [ $code -ne 0 ]; then
        printf '\nThe demo FAILED (exit code %s).\n' "$code" >&2
        if [ -s "$ZARRFS_LOG_FILE" ]; then printf 'The log:\n' >&2; cat "$ZARRFS_LOG_FILE" >&2; fi
    fi
    # Never deletes through a mount that could not be unmounted.
    rm -rf --one-file-system "$work"
}
trap finish EXIT

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
run() { printf '$ %s\n' "$1"; bash -euo pipefail -c "$1"; }

quoted() { printf '%q' "$1"; }

if [ -n "$store" ]; then
    # Printed commands work from any folder.
    if [ -e "$store" ]; then store=$(realpath -s "$store"); fi
    s=$(quoted "$store")
    say "Mounted read-only: the store is not changed."
    run "export PATH=$(quoted "$repository/.venv/bin"):\$PATH"
    run "zarrfs mount --read-only $s $mnt"
    say "Each folder is one view of the store."
    run "ls $mnt"
    for view in raw chunks npy; do
        # Names and documents may contain control sequences for the terminal. ls does not replace them in a pipe without -q.
        if [ -d "$mnt/$view" ]; then run "ls -lq $mnt/$view | awk 'NR <= 20'"; fi
    done
    for document in zarr.json .zgroup .zarray; do
        if [ -f "$mnt/raw/$document" ]; then
            run "head -c 2000 $mnt/raw/$document | cat -v"
            echo
            break
        fi
    done
    say "Content of the store:"
    run "zarrfs info $s | awk 'NR <= 60'"
    run "zarrfs umount $mnt"
    say "To keep it mounted:"
    printf '  mkdir -p /tmp/z && %s mount --read-only %s /tmp/z\n' "$(quoted "$repository/.venv/bin/zarrfs")" "$s"
    exit
fi

store=$work/example.zarr
cp -r "$repository/demo/example.zarr" "$store"

say "A Zarr store is mounted; the command returns when the mount is usable."
run "export PATH=$(quoted "$repository/.venv/bin"):\$PATH"
run "zarrfs info $store"
run "zarrfs mount $store $mnt"

say "Each folder is one view of the store."
run "ls $mnt"

say "raw/ is the store, byte for byte."
run "ls -l $mnt/raw $mnt/raw/air_temperature"
run "cat $mnt/raw/zarr.json"
echo
run "diff -r $store $mnt/raw && echo the same"

say "chunks/ holds decoded chunks: plain numbers, whatever the compressor, for programs without Zarr support."
run "ls -l $mnt/chunks/air_temperature"
run "cat $mnt/chunks/air_temperature/.zarray"
echo
run "od -A d -t f4 -N 48 $mnt/chunks/air_temperature/0.0.0"

say "npy/ holds each array as one NumPy file."
run "ls -l $mnt/npy"
run "python -c 'import numpy; a = numpy.load(\"$mnt/npy/air_temperature.npy\"); print(a.shape, a.dtype, a.mean())'"

say "A chunk is changed with ordinary tools: 1.0 is written over its first element..."
run "printf '\\000\\000\\200\\077' | dd of=$mnt/chunks/air_temperature/0.0.0 conv=notrunc status=none"
run "od -A d -t f4 -N 16 $mnt/chunks/air_temperature/0.0.0"

say "...and zarr-python reads the new value from the store, compressed as before."
run "python -c 'import zarr; row = zarr.open(\"$store\", mode=\"r\")[\"air_temperature\"][0, 0, :4]; print(row); assert row[0] == 1'"

say "Unmounting returns when everything is stored."
run "zarrfs umount $mnt"
run "ls -A $mnt"

say "Your own store:"
printf '  make demo STORE=/path/to/your.zarr       # mounts and shows it, read-only\n'
printf '  mkdir -p /tmp/z\n'
printf '  %s mount /path/to/your.zarr /tmp/z\n' "$(quoted "$repository/.venv/bin/zarrfs")"
printf '  %s umount /tmp/z\n' "$(quoted "$repository/.venv/bin/zarrfs")"
