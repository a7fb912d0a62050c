"""Small damages to a JSON file, many of them, for readers that must answer with a typed error or a true reading."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator

CASES = 10_000
SLOW = 20.0  # seconds of this thread, to notice what does not end; a case takes a tenth of a millisecond
# Values that readers get wrong: sizes that overflow, types that look alike, names that lead out, deep nesting.
VALUES = ["0", "-1", "1e309", "true", "null", '""', '"../x"', '"/etc/passwd"', '"\\ud800"', "NaN", "9" * 5000, "[]"]
VALUES += [
    "{}",
    str(10**400),
    str(2**63),
    str(2**64),
    "[" * 3000,
    "[0,8]",
    "[8,0]",
    '"F32"',
    "4.0",
    '"a\\u0000b"',
    "[" * 99 + "]" * 99,
]


def mutants(text: bytes, count: int, seed: int) -> Iterator[bytes]:
    """Bytes flipped, cut, doubled and inserted; JSON values and keys exchanged for hostile ones."""
    rng = random.Random(seed)
    for _ in range(count):
        data = bytearray(text)
        for _ in range(rng.choice((1, 1, 2, 5))):
            start = rng.randrange(len(data) + 1)
            end = min(len(data), start + rng.choice((0, 1, 1, 4, 40)))
            kind = rng.randrange(6)
            if kind == 0 and data:
                data[min(start, len(data) - 1)] ^= 1 << rng.randrange(8)
            elif kind == 1:
                data[start:end] = b""
            elif kind == 2:
                data[start:start] = data[start:end]
            elif kind == 3:
                data[start:end] = rng.randbytes(rng.randrange(9))
            else:
                colon = data.find(b":", start)
                stop = min((place for c in b",}]" if (place := data.find(bytes([c]), colon)) > 0), default=len(data))
                data[colon + 1 : stop] = rng.choice(VALUES).encode()
        yield bytes(data)


def run(text: bytes, check: Callable[[bytes], bool], count: int = CASES) -> int:
    """How many mutants were accepted; each was quick."""
    accepted = 0
    for seed, data in enumerate(mutants(text, count, seed=18)):
        started = time.thread_time()
        accepted += check(data)
        assert time.thread_time() - started < SLOW, (seed, data)
    return accepted
