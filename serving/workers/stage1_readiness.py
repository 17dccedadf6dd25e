"""Readiness of Stage 1: after a failure the detector has to prove that it still works, with one grey clip."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from pipeline_ver2.errors import EngineFailed, StageUnreachable
from serving.workers.stage1_engine import Engine
from serving.workers.stage1_queue import BatchQueue

_DEADLINE_S = 15.0
_RETRY_AFTER_S = 1.0
_GREY = 128


class Readiness:
    """Trusts a detector until a request fails on all its clips. That may be the clips' fault, so it is asked then.

    An engine that has lost its GPU fails on everything from then on, behind a server that answers.
    """

    def __init__(self, queue: BatchQueue) -> None:
        self._queue = queue
        self._is_doubtful = False
        self._proof: asyncio.Task[None] | None = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Around the work of a request: notes whether it failed."""
        try:
            yield
        except EngineFailed:
            self._is_doubtful = True
            raise
        self._is_doubtful = False

    async def check(self, detector: Engine) -> None:
        """Return if the detector works; those who ask at the same time share one proof.

        Raises:
            StageUnreachable: It does not; the message says why.
        """
        if not self._is_doubtful:
            return
        if self._proof is None or self._proof.done():
            self._proof = asyncio.create_task(self._prove(detector))
            self._proof.add_done_callback(lambda proof: None if proof.cancelled() else proof.exception())
        await asyncio.shield(self._proof)

    async def close(self) -> None:
        """Wait for no proof any more."""
        if self._proof is not None:
            self._proof.cancel()
            await asyncio.gather(self._proof, return_exceptions=True)

    async def _prove(self, detector: Engine) -> None:
        grey = np.full((detector.info.clip_length, *detector.info.image_size, 3), _GREY, np.uint8)
        try:
            async with asyncio.timeout(_DEADLINE_S):
                (raw,) = (await self._queue.call(lambda: detector.run([grey]))).clips
            if isinstance(raw, EngineFailed):
                raise raw
        except TimeoutError as error:
            said = f"the detector has not answered within {_DEADLINE_S:g} s"
            raise StageUnreachable(said, retry_after_s=_RETRY_AFTER_S) from error
        except EngineFailed as error:
            raise StageUnreachable(f"the detector fails: {error}", retry_after_s=_RETRY_AFTER_S) from error
        self._is_doubtful = False
