"""Stand-in stages of the demo world that were told the truth, or that see nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import numpy as np
from aiohttp import web

from pipeline_ver2 import wire
from serving.demo.answerer_slots import Truth
from serving.demo.scene import Person
from serving.demo.skeleton import LABELS
from tests.stand_ins import Rule, completion


def infer_reply(clips: Sequence[Sequence[Person]], *, status: int = 0) -> web.Response:
    """An infer reply that finds these people in each clip, sure of their actions."""
    most = max((len(persons) for persons in clips), default=0)
    boxes, scores = np.zeros((len(clips), most, 4), np.float32), np.zeros((len(clips), most, len(LABELS)), np.float32)
    for number, persons in enumerate(clips):
        for place, person in enumerate(persons):
            boxes[number, place] = person.box
            scores[number, place, LABELS.index(person.action)] = 0.9
    parts, head_length = wire.pack_tensors(
        {
            "status": np.full((len(clips), 1), status, np.int32),
            "num_detections": np.array([[len(persons)] for persons in clips], np.int32).reshape(-1, 1),
            "boxes": boxes,
            "scores": scores,
        },
        kind="outputs",
    )
    return web.Response(body=b"".join(parts), headers={wire.OIP_HEAD_LENGTH_HEADER: str(head_length)})


def blind(*, status: int = 0) -> Rule:
    """A detector that finds nobody; with another status, one that fails on every clip."""

    async def rule(request: web.Request, _key: str, _time: int) -> web.StreamResponse:
        head = json.loads((await request.read())[: int(request.headers[wire.OIP_HEAD_LENGTH_HEADER])])
        return infer_reply([()] * head["inputs"][0]["shape"][0], status=status)

    return rule


def knowing_clips(persons_of: Callable[[int, int], Sequence[Person]]) -> Rule:
    """A detector that is told who is in clip `number`, asked for the `time`-th time from 0."""

    async def rule(_request: web.Request, key: str, time: int) -> web.StreamResponse:
        return infer_reply([persons_of(int(key.removeprefix("clip-")), time - 1)])

    return rule


def knowing_slots(truth_of: Callable[[int, int], Truth]) -> Rule:
    """An answerer that is told what is true of slot `number`, asked for the `time`-th time from 0."""

    async def rule(_request: web.Request, key: str, time: int) -> web.StreamResponse:
        return completion(truth_of(int(key.split("-")[1]), time - 1).answer)

    return rule
