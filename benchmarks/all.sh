#!/usr/bin/env bash
# Runs every benchmark one after the other, with the numbers of repetitions that fit in 15 minutes on two idle cores.
#
#   benchmarks/all.sh [PYTHON]
set -euo pipefail
cd "$(dirname "$0")"

python=${1:-python}
began=$SECONDS

run() {
    printf '\n== %s (after %d s)\n' "$*" $((SECONDS - began))
    "$python" "$@"
}

run start.py --repetitions 5
run read.py --repetitions 3
run write.py --repetitions 3 --keys 2000
run sharding.py --repetitions 2 --codecs zstd
run jumps.py --repetitions 3
run small_chunks.py --repetitions 1 --count 30000
run nodes.py --repetitions 1 --formats 3
run small.py --repetitions 3
run scale.py --repetitions 1 --largest 20000
printf '\nall in %d s\n' $((SECONDS - began))
