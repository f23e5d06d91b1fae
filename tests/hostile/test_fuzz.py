"""A few seconds of the fuzzer: once with a fixed seed, and once with a random one that a failure names.

``make fuzz`` runs it for longer. A finding is fixed and becomes a test of its own.
"""

from __future__ import annotations

import secrets

import pytest

from tests.fuzz import corpus, mounts, rounds
from tests.fuzz.__main__ import run
from tests.fuzz.mutate import Mutator
from tests.support.length import share

SECONDS = share(12)


@pytest.mark.parametrize("seed", ["zarrfs", pytest.param("random", marks=pytest.mark.full_length)])
def test_no_mutant_does_harm(seed: str) -> None:
    seed = secrets.token_hex(4) if seed == "random" else seed
    found = list(run(seed, SECONDS, with_mounts=False))
    assert not found, f"python -m tests.fuzz --seed {seed}\n" + "\n".join(found)


@pytest.mark.full_length
@pytest.mark.fuse
def test_no_mutant_does_harm_through_the_kernel() -> None:
    found = mounts.play("zarrfs", 0, together=20)
    assert not found, "\n".join(f"{each.mutant}: {each.what}" for each in found)


def test_a_round_is_made_again_by_its_seed() -> None:
    first, second = ([corpus.mutant(Mutator(f"a/{number}", corpus.donors())) for number in range(50)] for _ in range(2))
    assert first == second
    assert any(mutant.checked is not None for mutant in first)


def test_wrong_bytes_under_a_checksum_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The expected bytes are replaced, so that the store's own bytes count as wrong."""
    values = corpus.stores()["v2/compressors"]
    mutant = corpus.Mutant("v2/compressors", "gzip/0.0", values, "gzip")
    assert rounds.judge([mutant]) == []
    monkeypatch.setitem(rounds.SOUND, "v2/compressors", {"npy/gzip.npy": rounds.Found(1, b"x")})
    assert [finding.what for finding in rounds.judge([mutant])] == ["wrong bytes under a checksum: npy/gzip.npy"]
