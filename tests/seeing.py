"""Stages that see what they are shown in a drawn film, and the check that results belong to the frames they name."""

from __future__ import annotations

import base64
import json
from bisect import bisect_right
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
import pytest
from aiohttp import web
from numpy.typing import NDArray

from pipeline_ver2 import wire
from pipeline_ver2.results import KeyframeRecord, Results
from tests.scenes import Box, Film, box_of, number_in, person_in
from tests.stand_ins import Stages, completion, stand_ins

THRESHOLD = 0.0  # the number travels as a score, which may be small
WITHIN_PX = 3.0
_SCALE = 512
_IMAGE_SIZE = (112, 96)  # neither the source's size nor its shape


@asynccontextmanager
async def seeing_stages() -> AsyncIterator[Stages]:
    """A detector that finds the person in the last frame of a clip and reads its number, and one who reads images.

    The number is the score of "run", in units of 1/512; Stage 2 answers with the numbers on its images.
    """
    async with stand_ins(image_size=_IMAGE_SIZE) as stages:

        async def detect(_request: web.Request, _key: str, _time: int) -> web.Response:
            return _found(stages.stage1.bodies.pop())

        async def read(_request: web.Request, _key: str, _time: int) -> web.Response:
            parts = stages.stage2.bodies.pop()["messages"][1]["content"]
            numbers = [number_in(_picture(part["image_url"]["url"])) for part in parts if part["type"] == "image_url"]
            return completion(json.dumps({"action": "walk", "description": " ".join(map(str, numbers))}))

        stages.stage1.rule, stages.stage2.rule = detect, read
        yield stages


def _found(clips: NDArray[np.uint8]) -> web.Response:
    seen_in = [(number_in(clip[-1]), person_in(clip[-1])) for clip in clips]
    found = np.array([[number is not None and box is not None] for number, box in seen_in], np.int32)
    boxes = np.array([[box or (0, 0, 0, 0)] for _, box in seen_in], np.float32)
    scores = np.array([[[0.0, 0.9, (number or 0) / _SCALE]] for number, _ in seen_in], np.float32)
    tensors = {"status": np.zeros_like(found), "num_detections": found, "boxes": boxes, "scores": scores}
    parts, head_length = wire.pack_tensors(tensors, kind="outputs")
    return web.Response(body=b"".join(parts), headers={wire.OIP_HEAD_LENGTH_HEADER: str(head_length)})


def _picture(url: str) -> NDArray[np.uint8]:
    data = np.frombuffer(base64.b64decode(url.partition(",")[2]), np.uint8)
    picture = cv2.imdecode(data, cv2.IMREAD_COLOR_RGB)
    assert picture is not None
    return picture.astype(np.uint8)


def seen(record: KeyframeRecord) -> tuple[int, Box]:
    """The number the detector read in a keyframe, and the box it found, pixels of the upright source."""
    assert record.state == "ok", record.reason
    (detection,) = record.detections
    score = next(label.score for label in detection.labels if label.name == "run")
    return round(score * _SCALE), detection.box


def check_results(film: Film, results: Results, tick: Fraction = Fraction(1, 1000)) -> None:
    """Every keyframe shows what the grid says, names the time of the frame shown and the box of the person in it.

    `tick`: by how much the container may round a time.
    """
    expected = [*range(11, film.grid_length + 1, 11)] or [film.grid_length]
    assert [record.key_index for record in results.keyframes] == expected
    assert results.counts.frames_decoded == len(film.numbers)
    numbers = {}
    for record in results.keyframes:
        number, box = seen(record)
        numbers[record.key_index] = number
        assert number in film.on_grid(record.key_index - 1, tick)
        assert record.time_s == pytest.approx(float(film.time_of(number)), abs=1.1 * tick)
        assert box == pytest.approx(box_of(number, film.size), abs=WITHIN_PX)
    for slot in results.slots:
        assert slot.answer is not None
        assert slot.answer["description"] == " ".join(str(numbers[index]) for index in slot.key_indices)
        assert slot.start_s == pytest.approx(float(film.time_of(numbers[slot.key_indices[0]])), abs=1.1 * tick)
        assert slot.end_s == pytest.approx(float(film.time_of(numbers[slot.key_indices[-1]])), abs=1.1 * tick)


def check_video(
    film: Film, results: Results, video: Path, *, moved: bool = False, tick: Fraction = Fraction(1, 1000)
) -> None:
    """Every frame of the source is there at its time, and the box on it is the last keyframe's, or `moved` on."""
    keys = [(record.time_s, seen(record)[1]) for record in results.keyframes]
    numbers: list[int] = []
    with av.open(str(video)) as container:
        for frame in container.decode(video=0):
            picture = pixels_of(frame)
            number = number_in(picture)
            assert number is not None
            numbers.append(number)
            at = film.time_of(number)
            assert frame.time == pytest.approx(float(at), abs=1.1 * tick)
            check_box(picture, _box_at(float(at), keys, 1.1 * float(tick), moved=moved))
        assert numbers == list(film.numbers)
        lasts = film.time_of(numbers[-1]) + 1 / film.rate
        assert (container.duration or 0) / 1e6 == pytest.approx(float(lasts), abs=1.1 / film.rate)


def pixels_of(frame: av.VideoFrame) -> NDArray[np.uint8]:
    """A decoded frame, converted by the library and by nothing of ours: `(height, width, 3)` uint8 RGB."""
    return frame.to_ndarray(format="rgb24").astype(np.uint8)


def check_box(picture: NDArray[np.uint8], expected: Box | None) -> None:
    """The outline drawn on a picture is where it belongs, or there is none."""
    bright = picture.astype(float) @ (0.299, 0.587, 0.114) > 105
    bright[: round(picture.shape[0] * 0.6)] = False  # the number, and the label above the box
    if expected is None:
        assert not bright.any()
        return
    rows, columns = np.flatnonzero(bright.any(axis=1)), np.flatnonzero(bright.any(axis=0))
    found = (columns[0], columns[-1], rows[-1])
    assert found == pytest.approx((expected[0], expected[2], expected[3]), abs=WITHIN_PX)


def _box_at(time_s: float, keys: list[tuple[float, Box]], tick: float, *, moved: bool) -> Box | None:
    position = bisect_right([key_time - tick for key_time, _ in keys], time_s)
    if not position:
        return None
    begins, box = keys[position - 1]
    if not moved or position == len(keys):
        return box
    ends, following = keys[position]
    share = (time_s - begins) / (ends - begins)
    x1, y1, x2, y2 = (first + (second - first) * share for first, second in zip(box, following, strict=True))
    return (x1, y1, x2, y2)
