"""Labels of text of a fixed length: the declared length, which may be megabytes, costs memory for neither the table nor a large chunk."""

from __future__ import annotations

import numpy as np

from tests.support.traced import at_most
from zarrfs.codecs import lookup
from zarrfs.codecs.chain import CodecChain
from zarrfs.memory import spill
from zarrfs.model.codec_spec import CodecSpec
from zarrfs.model.data_type import from_numpy

LENGTH = 500_000


def chain_of(labels: list[str]) -> CodecChain:
    config = {"id": "categorize", "labels": labels, "dtype": f"<U{LENGTH}", "astype": "|u1"}
    specs = (CodecSpec("bytes", {"endian": "little"}), lookup.from_numcodecs(config))
    return CodecChain.build(specs, from_numpy(np.dtype(f"<U{LENGTH}")))


def test_a_chain_takes_no_memory_for_the_declared_length() -> None:
    chain_of(["imports"])
    with at_most(1 << 20):
        chains = [chain_of([f"label {number}", "b"]) for number in range(50)]
    assert len({chain.decode(b"\1", (1,))[0] for chain in chains}) == 50


def test_a_large_chunk_is_decoded_and_encoded_in_pieces() -> None:
    chain = chain_of(["a", "é"])
    codes = bytes([0, 1, 2] * 8)
    elements = np.array(["", "a", "é"] * 8, f"<U{LENGTH}")
    assert elements.nbytes > 4 * spill.large_nbytes()
    with at_most(spill.large_nbytes()):
        decoded = chain.decode(codes, elements.shape)
        again = bytes(chain.encode(decoded))
    np.testing.assert_array_equal(decoded, elements)
    assert again == codes
