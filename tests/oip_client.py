"""A small client of the Open Inference Protocol for tests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
import numpy as np
from numpy.typing import NDArray

from pipeline_ver2 import wire
from pipeline_ver2.findings import ClipFindings, read_findings

INFER = "/v2/models/yowov3/infer"


@dataclass(frozen=True)
class Reply:
    """An HTTP reply with its body."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:  # noqa: ANN401 - whatever the daemon sends
        """The body as JSON."""
        return json.loads(self.body)


async def send_clips(
    http: aiohttp.ClientSession,
    *clips: NDArray[np.uint8],
    headers: Mapping[str, str] | None = None,
    parameters: Mapping[str, Any] | None = None,
    head: Mapping[str, Any] | None = None,
) -> Reply:
    """Send clips as binary tensors."""
    tensors = {"clips": np.stack(clips)}
    parts, length = wire.pack_tensors(tensors, kind="inputs", parameters=parameters, head=head)
    sent = {wire.OIP_HEAD_LENGTH_HEADER: str(length), **(headers or {})}
    async with http.post(INFER, data=b"".join(parts), headers=sent) as reply:
        return Reply(reply.status, reply.headers, await reply.read())


def findings_of(reply: Reply, count: int) -> list[tuple[list[Any], list[Any]]]:
    """Boxes and scores of each clip; all must have been answered."""
    assert reply.status == 200, reply.body
    read = read_findings(reply.headers, reply.body, count)
    assert all(isinstance(clip, ClipFindings) for clip in read), read
    return [(clip.boxes.tolist(), clip.scores.tolist()) for clip in read if isinstance(clip, ClipFindings)]
