"""`/detect`: frames of people, as files under the media roots or as base64 pictures."""

from __future__ import annotations

import base64
import io
import os
import struct
import zlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
from PIL import Image

from pipeline_ver2.wire import SERVER_TIMING_HEADER
from serving.workers.stage1_frames import MAX_FRAME_PX
from tests import tiny_detector as tiny

WIDTH, HEIGHT = 640, 360
LENGTH = tiny.CLIP_LENGTH


@pytest.fixture
async def http(stage1_url: str) -> AsyncIterator[aiohttp.ClientSession]:
    """A client of the daemon with the tiny detector."""
    async with aiohttp.ClientSession(stage1_url, timeout=aiohttp.ClientTimeout(total=30)) as session:
        yield session


def _picture(colour: tuple[int, int, int], size: tuple[int, int] = (WIDTH, HEIGHT), kind: str = "PNG") -> bytes:
    encoded = io.BytesIO()
    Image.new("RGB", size, colour).save(encoded, kind, quality=95)
    return encoded.getvalue()


def _text(encoded: bytes) -> str:
    return base64.b64encode(encoded).decode()


def _clip(last: bytes, others: bytes | None = None, **more: object) -> dict[str, Any]:
    frames = [_text(last if others is None else others)] * (LENGTH - 1) + [_text(last)]
    return {"clip_id": "a", "key_index": 11, "frames": frames} | more


async def _detect(http: aiohttp.ClientSession, *clips: dict[str, Any], **more: object) -> list[dict[str, Any]]:
    async with http.post("/detect", json={"clips": clips, **more}) as reply:
        assert reply.status == 200, await reply.text()
        results: list[dict[str, Any]] = (await reply.json())["results"]
    assert [result["clip_id"] for result in results] == [clip["clip_id"] for clip in clips]
    return results


def _pixels(box: Sequence[float]) -> list[float]:
    return [box[0] * WIDTH, box[1] * HEIGHT, box[2] * WIDTH, box[3] * HEIGHT]


@pytest.mark.fault("A1")
@pytest.mark.fault("A3")
@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
async def test_boxes_are_in_pixels_of_the_frames(http: aiohttp.ClientSession, kind: str) -> None:
    """A red last frame after blue ones: red, with boxes in pixels of the frames that were sent."""
    clip = _clip(_picture(tiny.RED, kind=kind), _picture(tiny.BLUE, kind=kind))
    (result,) = await _detect(http, clip)
    assert (result["state"], result["key_index"], result["error"]) == ("ok", 11, None)
    assert result["inference_ms"] > 0
    first, second = result["detections"]
    assert first["box"] == pytest.approx(_pixels(tiny.MIDDLE_BOX), abs=1e-3)
    assert second["box"] == pytest.approx(_pixels(tiny.CORNER_BOX), abs=1e-3)
    assert [label["name"] for label in first["labels"]] == ["red"]
    assert first["labels"][0]["score"] == pytest.approx(1, abs=0.02)


@pytest.mark.fault("A4")
async def test_several_labels_of_one_person(http: aiohttp.ClientSession) -> None:
    """Every label over the threshold is listed, best first; the request's threshold counts."""
    orange = _clip(_picture(tiny.ORANGE))
    (result,) = await _detect(http, orange)
    assert [label["name"] for label in result["detections"][0]["labels"]] == ["red", "green"]
    (result,) = await _detect(http, orange, threshold=0.7)
    assert [[label["name"] for label in found["labels"]] for found in result["detections"]] == [["red"]]


async def test_an_upright_frame_is_what_counts(http: aiohttp.ClientSession) -> None:
    """A picture turned by its EXIF data is turned upright; boxes are in pixels of the upright picture."""
    encoded, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (HEIGHT, WIDTH), tiny.RED).save(encoded, "JPEG", exif=exif)
    (result,) = await _detect(http, _clip(encoded.getvalue()))
    assert result["detections"][0]["box"] == pytest.approx(_pixels(tiny.MIDDLE_BOX), abs=1e-3)


async def test_files_under_the_media_roots(http: aiohttp.ClientSession, media_root: Path) -> None:
    """Paths work, odd names and links inside the root too."""
    path = media_root / "frame é #%05d 'x'.png"
    path.write_bytes(_picture(tiny.GREEN))
    link = media_root / "link.png"
    link.unlink(missing_ok=True)
    link.symlink_to(path)
    clip = {"clip_id": "files", "frame_paths": [str(path)] * (LENGTH - 1) + [str(link)]}
    (result,) = await _detect(http, clip)
    assert result["state"] == "ok"
    assert result["key_index"] is None
    assert result["detections"][0]["labels"][0]["name"] == "green"


@pytest.fixture
def bad_paths(media_root: Path, tmp_path: Path) -> dict[str, Path]:
    """Paths nobody may or can read, by what is wrong with them."""
    outside = tmp_path / "outside.png"
    outside.write_bytes(_picture(tiny.RED))
    link, pipe = media_root / "escape.png", media_root / "pipe.png"
    link.unlink(missing_ok=True)
    link.symlink_to(outside)
    if not pipe.exists():
        os.mkfifo(pipe)
    circle = media_root / "circle.png"
    circle.unlink(missing_ok=True)
    circle.symlink_to(circle)
    return {
        "outside": outside,
        "dots": media_root / ".." / outside.relative_to("/"),
        "link": link,
        "missing": media_root / "gone.png",
        "folder": media_root,
        "pipe": pipe,
        "circle": circle,
        "long": media_root / ("x" * 300 + ".png"),
        "zero": media_root / "a\0b.png",
    }


@pytest.mark.fault("O8")
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("outside", "outside the media roots"),
        ("dots", "outside the media roots"),
        ("link", "outside the media roots"),
        ("missing", "No such file"),
        ("folder", "no regular file"),
        ("pipe", "no regular file"),
        ("circle", "circle.png"),
        ("long", "File name too long"),
        ("zero", "null"),
    ],
)
async def test_paths_nobody_may_read(
    http: aiohttp.ClientSession, bad_paths: dict[str, Path], kind: str, said: str
) -> None:
    """Outside the roots, in whatever disguise, or no plain file: that clip fails with the reason, and nothing hangs."""
    bad = {"clip_id": "bad", "frame_paths": [str(bad_paths[kind])] * LENGTH}
    failed, fine = await _detect(http, bad, _clip(_picture(tiny.RED)))
    assert failed["state"] == "failed"
    assert said in failed["error"]
    assert failed["detections"] == []
    assert fine["state"] == "ok"


def _bomb() -> bytes:
    """A valid start of a PNG that claims more pixels than allowed."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    side = int(MAX_FRAME_PX**0.5) + 1
    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def _gif() -> bytes:
    encoded = io.BytesIO()
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(encoded, "GIF")
    return encoded.getvalue()


PNG = _picture(tiny.RED)
BAD_CLIPS: dict[str, tuple[dict[str, Any], str]] = {
    "no frames": ({"clip_id": "b"}, "either frames or frame_paths"),
    "both": (_clip(PNG, clip_id="b", frame_paths=["x"] * LENGTH), "either frames or frame_paths"),
    "empty": ({"clip_id": "b", "frames": []}, "expected 4 frames, found 0"),
    "too few": ({"clip_id": "b", "frames": [_text(PNG)]}, "expected 4 frames, found 1"),
    "too many": ({"clip_id": "b", "frames": [_text(PNG)] * 5}, "expected 4 frames, found 5"),
    "no base64": ({"clip_id": "b", "frames": ["?!"] * LENGTH}, "frame 1 is no valid base64"),
    "no picture": (_clip(b"hello", clip_id="b"), "frame 1 is no JPEG or PNG"),
    "nothing": (_clip(b"", clip_id="b"), "frame 1 is no JPEG or PNG"),
    "gif": (_clip(_gif(), clip_id="b"), "frame 1 is no JPEG or PNG"),
    "torn": (_clip(_picture(tiny.RED, kind="JPEG")[:-400], clip_id="b"), "frame 1 is no JPEG or PNG"),
    "bomb": (_clip(_bomb(), clip_id="b"), f"allowed are {MAX_FRAME_PX}"),
    "sizes": (_clip(_picture(tiny.RED, (32, 32)), PNG, clip_id="b"), "frame 4 is 32x32, frame 1 is 640x360"),
    "breaks the run": (_clip(PNG, _picture(tiny.MAGENTA), clip_id="b"), "the model failed"),
    "nan": (_clip(_picture(tiny.BLACK), clip_id="b"), "no finite number"),
}


@pytest.mark.fault("A5")
@pytest.mark.parametrize("kind", BAD_CLIPS)
async def test_a_bad_clip_fails_alone(http: aiohttp.ClientSession, kind: str) -> None:
    """Whatever is wrong with a clip, it gets its own reason and its siblings their usual answer."""
    clip, said = BAD_CLIPS[kind]
    good = _clip(PNG)
    (alone,) = await _detect(http, good)
    before, bad, after = await _detect(http, good, clip, good)
    assert bad["state"] == "failed"
    assert said in bad["error"]
    assert before["detections"] == after["detections"] == alone["detections"]


async def test_nothing_to_run_is_an_answer_too(http: aiohttp.ClientSession) -> None:
    """If every clip is bad, each says why; the detector is not asked, and no time is made up."""
    async with http.post("/detect", json={"clips": [{"clip_id": "a"}, {"clip_id": "a"}]}) as reply:
        assert reply.status == 200
        results = (await reply.json())["results"]
        assert SERVER_TIMING_HEADER not in reply.headers
    assert [result["state"] for result in results] == ["failed", "failed"]
    assert [result["inference_ms"] for result in results] == [None, None]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"clips": []}, "clips"),
        ({}, "clips"),
        ({"clips": [{"clip_id": "a"}], "threshold": 2}, "threshold"),
        ({"clips": [{"clip": "a"}]}, "clips.0.clip_id"),
        ({"clips": [{"clip_id": "a"}] * 9}, "stage1.max_batch"),
    ],
)
async def test_a_malformed_request_names_the_field(
    http: aiohttp.ClientSession, body: dict[str, object], said: str
) -> None:
    """422 in the shape for people, with the field."""
    async with http.post("/detect", json=body) as reply:
        assert reply.status == 422
        assert said in (await reply.json())["error"]["message"]
