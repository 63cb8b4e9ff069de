"""Seeds: every stream of randomness is a hash of what it may depend on."""

import hashlib
import json


def seed_for(seed: int, *parts: str | int) -> int:
    """A seed for one stream, the same on every machine: `seed_for(0, "qk", layer, role, head)`.

    The name of an arm is never a part, so arms of one seed share every stream they have in common.
    """
    text = json.dumps([seed, *parts])
    digest = hashlib.sha256(text.encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1  # 63 bits: a positive int64
