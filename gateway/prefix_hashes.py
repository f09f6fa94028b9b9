"""Names for the full KV blocks of a prompt, so that the scheduler can share equal ones without seeing a token.

Each hash covers its block's tokens and, through the hash before it, all tokens ahead of them: equal hashes, equal
prefix. Blake2b at 128 bits: as good as never equal by chance, and not to be forced by a client. The tenant is hashed
along: otherwise the time to a first token would tell one tenant what another has sent.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

HASH_BYTES = 16


def block_hashes(token_ids: Sequence[int], *, block_size: int, tenant: str) -> tuple[bytes, ...]:
    """One hash of ``HASH_BYTES`` for each full block of ``block_size`` tokens. Ids are below 2**32, as on the wire."""
    packed = array("I", token_ids).tobytes()
    width = block_size * array("I").itemsize
    hashes: list[bytes] = []
    digest = hashlib.blake2b(tenant.encode(), digest_size=HASH_BYTES).digest()
    for end in range(width, len(packed) + 1, width):
        digest = hashlib.blake2b(packed[end - width : end], key=digest, digest_size=HASH_BYTES).digest()
        hashes.append(digest)
    return tuple(hashes)
