"""Readiness of Stage 1: after a failure the detector has to prove that it still works, with one grey clip."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pipeline_ver2.errors import EngineFailed, StageUnreachable
from serving.workers.shared_task import SharedTask
from serving.workers.stage1_engine import Engine
from serving.workers.stage1_queue import BatchQueue

_DEADLINE_S = 15.0
_RETRY_AFTER_S = 1.0


class Readiness:
    """Trusts a detector until a request fails on all its clips. That may be the clips' fault, so it is asked then.

    An engine that has lost its GPU fails on everything from then on, behind a server that answers.
    """

    def __init__(self, queue: BatchQueue, detector: Callable[[], Engine]) -> None:
        self._queue = queue
        self._detector = detector
        self._is_doubtful = False
        self._proof = SharedTask(self._prove)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Around the work of a request: notes whether it failed."""
        try:
            yield
        except EngineFailed:
            self._is_doubtful = True
            raise
        self._is_doubtful = False

    async def check(self) -> None:
        """Return if the detector works; those who ask at the same time share one proof.

        Raises:
            StageUnreachable: It does not; the message says why.
        """
        if self._is_doubtful:
            await self._proof.join()

    async def close(self) -> None:
        """Wait for no proof any more."""
        await self._proof.close()

    async def _prove(self) -> None:
        detector = self._detector()
        try:
            async with asyncio.timeout(_DEADLINE_S):
                (raw,) = (await self._queue.call(lambda: detector.run([detector.info.grey_clip()]))).clips
            if isinstance(raw, EngineFailed):
                raise raw
        except TimeoutError as error:
            said = f"the detector has not answered within {_DEADLINE_S:g} s"
            raise StageUnreachable(said, retry_after_s=_RETRY_AFTER_S) from error
        except EngineFailed as error:
            raise StageUnreachable(f"the detector fails: {error}", retry_after_s=_RETRY_AFTER_S) from error
        self._is_doubtful = False
