"""Rounds in a process of their own, since a fault may end it: prints a line of JSON before each round and one for each finding.

python -m tests.fuzz.worker SEED FIRST COUNT [lmdb]
"""

from __future__ import annotations

import json
import logging
import resource
import sys

from tests.fuzz.rounds import lmdb_round, play

_ADDRESSES = 8 << 30
"""Limit of the address space, so that a fault cannot take the machine's memory."""


def main(seed: str, first: str, count: str, what: str = "") -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESSES, _ADDRESSES))
    logging.getLogger("zarrfs").propagate = False
    for number in range(int(first), int(first) + int(count)):
        print(json.dumps({"round": number}), flush=True)
        for finding in lmdb_round(seed, number) if what == "lmdb" else play(seed, number):
            print(json.dumps({"mutant": finding.mutant, "what": finding.what}), flush=True)
    print(json.dumps({"round": None}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
