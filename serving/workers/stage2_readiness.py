"""Readiness of Stage 2 is a real answer: one image, one token, within a deadline."""

from __future__ import annotations

import asyncio
import base64
import io
import time

from PIL import Image

from pipeline_ver2.errors import RequestError, StageError, StageUnreachable
from serving.workers.chat import Chat, parse_chat
from serving.workers.shared_task import SharedTask
from serving.workers.stage2_engine import Engine

_SIDE_PX = 64


class Readiness:
    """Asks the engine for a token, unless a real answer or token of the last `fresh_s` proves that it works.

    The proof by recent work keeps a check from waiting behind long work: an engine that is at it is ready.
    """

    def __init__(self, engine: Engine, *, deadline_s: float = 15, fresh_s: float = 5) -> None:
        self._engine = engine
        self._deadline_s = deadline_s
        self._fresh_s = fresh_s
        self._probe = SharedTask(self._ask)

    async def check(self) -> None:
        """Return if the engine answers; those who ask at the same time share one probe.

        Raises:
            StageUnreachable: It does not; the message says why.
        """
        if not self._is_fresh():
            await self._probe.join()

    async def close(self) -> None:
        """Stop the probe at work."""
        await self._probe.close()

    def _is_fresh(self) -> bool:
        alive_at = self._engine.alive_at
        return alive_at is not None and time.monotonic() - alive_at < self._fresh_s

    async def _ask(self) -> None:
        try:
            async with asyncio.timeout(self._deadline_s):
                chat = await asyncio.to_thread(probe_chat, await self._engine.served_model())
                await self._engine.probe(chat)
        except TimeoutError as error:
            if not self._is_fresh():  # tokens came meanwhile: busy, not dead
                raise StageUnreachable(f"no answer within {self._deadline_s:g} s", retry_after_s=1) from error
        except StageError as error:
            after_s = 1.0 if error.retry_after_s is None else error.retry_after_s
            raise StageUnreachable(f"not ready: {error}", retry_after_s=after_s) from error
        except RequestError as error:
            raise StageUnreachable(f"the engine refuses a plain image: {error}", retry_after_s=10) from error


def probe_chat(model: str) -> Chat:
    """One grey image, one token."""
    encoded = io.BytesIO()
    Image.new("RGB", (_SIDE_PX, _SIDE_PX), (128, 128, 128)).save(encoded, "JPEG")
    url = f"data:image/jpeg;base64,{base64.b64encode(encoded.getvalue()).decode()}"
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What is this?"}]
    body = {
        "model": model,
        "messages": [{"role": "user", "content": content}],
        "max_tokens": 1,
        "temperature": 0,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    return parse_chat(body, default_max_tokens=1)
