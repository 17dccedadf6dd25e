"""What was answered before is not worked out again: requests are the same if their key and their bodies are."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import secrets
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Hashable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from serving.workers.daemon import IdempotencyCache

T = TypeVar("T")

_BLOCK_BYTES = 65_536
_HEAD_START_S = 0.005  # for the detector's thread, which would have to share the interpreter's lock with this one's
_WORD = np.dtype("<u4")
_FACTORS = np.frombuffer(secrets.token_bytes(_BLOCK_BYTES // _WORD.itemsize * 8), np.uint64)


@dataclass(frozen=True, slots=True)
class _First:
    """The first body that came with a key: a number of its own, and its fingerprint as soon as that is there."""

    number: int
    fingerprint: asyncio.Task[bytes]


class Replays(Generic[T]):
    """Joins requests of the same key and body that run, and replays the last `size` results.

    The body counts because a key names a batch of a job, and a job that is resumed cuts its batches anew. Its
    fingerprint is taken while the detector works; only a key that comes again waits for it.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._answered = IdempotencyCache[T](size)
        self._first: OrderedDict[str, _First] = OrderedDict()
        self._numbers = itertools.count()

    async def run(self, key: str | None, body: bytes | memoryview, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result: replayed, joined, or worked out now. No key, no memory."""
        return await self._answered.run(None if key is None else await self._identity(key, body), work)

    async def _identity(self, key: str, body: bytes | memoryview) -> Hashable:
        fingerprint = asyncio.create_task(_fingerprint(body))
        first = self._first.get(key)
        if first is None:
            # A number, not the key alone: once it is forgotten here, another body must not get this one's answer.
            self._first[key] = first = _First(next(self._numbers), fingerprint)
            while len(self._first) > self._size:
                self._first.popitem(last=False)
            return key, first.number
        mine = await fingerprint
        return (key, first.number) if mine == await asyncio.shield(first.fingerprint) else (key, mine)


async def _fingerprint(body: bytes | memoryview) -> bytes:
    await asyncio.sleep(_HEAD_START_S)
    return await asyncio.to_thread(fingerprint_of, body)


def fingerprint_of(body: bytes | memoryview) -> bytes:
    """A fingerprint of a body, valid in this process.

    Each block of 64 KiB is multiplied with random factors and summed up: universal hashing, which takes a tenth of the
    time of a cryptographic hash. Who does not know the factors finds no two bodies that agree; by chance, two different
    blocks do with a probability below 2**-32.
    """
    view = memoryview(body)
    whole = len(view) - len(view) % _BLOCK_BYTES
    rest = hashlib.blake2b(view[whole:], digest_size=16)
    rest.update(len(view).to_bytes(8, "little"))
    if whole:
        words = np.frombuffer(view[:whole], _WORD).reshape(-1, len(_FACTORS))
        rest.update(np.einsum("ij,j->i", words, _FACTORS).tobytes())
    return rest.digest()
