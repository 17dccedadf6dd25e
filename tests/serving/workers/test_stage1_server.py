"""The Stage 1 daemon over HTTP: the Open Inference Protocol, refusals, and the queue behind it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from pipeline_ver2 import wire
from pipeline_ver2.config import Config, Stage1Config
from pipeline_ver2.errors import BadReply, EngineFailed, RequestError, StageUnreachable
from pipeline_ver2.findings import ClipFindings
from pipeline_ver2.stage_clients import Stage1Client
from serving.workers.stage1_server import build_app
from serving.workers.stage1_service import Stage1Service
from tests import tiny_detector as tiny
from tests.oip_client import INFER, Reply, findings_of, send_clips
from tests.servers import served
from tests.tiny_detector import clip_of

MakeConfig = Callable[..., Config]
Change = dict[str, Any]


@pytest.fixture
async def http(stage1_url: str) -> AsyncIterator[aiohttp.ClientSession]:
    """A client of the daemon with the tiny detector."""
    async with aiohttp.ClientSession(stage1_url, timeout=aiohttp.ClientTimeout(total=30)) as session:
        yield session


@pytest.mark.fault("A1")
@pytest.mark.fault("A3")
async def test_binary_tensors_both_ways(http: aiohttp.ClientSession) -> None:
    """A red clip that was blue before is red, its boxes are in 0..1, and the times are told."""
    reply = await send_clips(http, clip_of(tiny.RED, others=tiny.BLUE), head={"id": "batch-3"})
    ((boxes, scores),) = findings_of(reply, 1)
    assert boxes == [pytest.approx(tiny.MIDDLE_BOX), pytest.approx(tiny.CORNER_BOX)]
    assert [np.argmax(row) for row in scores] == [0, 0]
    queue_s, run_s = wire.parse_server_timing(reply.headers[wire.SERVER_TIMING_HEADER])
    assert queue_s is not None
    assert run_s is not None
    assert run_s > 0
    head = json.loads(reply.body[: int(reply.headers[wire.OIP_HEAD_LENGTH_HEADER])])
    assert (head["id"], head["model_name"], head["model_version"]) == ("batch-3", "yowov3", "1")
    assert [(entry["name"], entry["datatype"], entry["shape"]) for entry in head["outputs"]] == [
        ("status", "INT32", [1, 1]),
        ("num_detections", "INT32", [1, 1]),
        ("boxes", "FP32", [1, 2, 4]),
        ("scores", "FP32", [1, 2, 3]),
    ]


async def test_json_both_ways(http: aiohttp.ClientSession) -> None:
    """A client without the binary extension gets plain JSON, with the same numbers."""
    clip = clip_of(tiny.GREEN)
    tensor = {"name": "clips", "datatype": "UINT8", "shape": [1, *clip.shape], "data": clip.ravel().tolist()}
    async with http.post(INFER, json={"inputs": [tensor]}) as reply:
        assert reply.status == 200
        assert reply.content_type == "application/json"
        assert wire.OIP_HEAD_LENGTH_HEADER not in reply.headers
        plain = Reply(reply.status, reply.headers, await reply.read())
    assert findings_of(plain, 1) == findings_of(await send_clips(http, clip), 1)


async def test_parameters_of_the_request_count(http: aiohttp.ClientSession) -> None:
    """Threshold and overlap of a request go before the configured ones; no findings are a valid answer."""
    clip = clip_of(tiny.RED)
    ((boxes, _),) = findings_of(await send_clips(http, clip, parameters={"threshold": 0.7}), 1)
    assert boxes == [pytest.approx(tiny.MIDDLE_BOX)]
    ((boxes, _),) = findings_of(await send_clips(http, clip, parameters={"nms_iou": 1}), 1)
    assert len(boxes) == 3
    ((boxes, scores),) = findings_of(await send_clips(http, clip_of((30, 30, 30)), parameters={"threshold": 0.9}), 1)
    assert (boxes, scores) == ([], [])


@pytest.mark.fault("A6")
async def test_results_stay_with_their_clips(http: aiohttp.ClientSession) -> None:
    """Alone, in a batch, shuffled or in a partial batch: each clip gets its own answer."""
    colours = [(200, 10 * number, 255 - 30 * number) for number in range(8)]
    clips = [clip_of(colour) for colour in colours]
    alone = [findings_of(await send_clips(http, clip), 1)[0] for clip in clips]
    order = np.random.default_rng(5).permutation(8)
    shuffled = findings_of(await send_clips(http, *(clips[number] for number in order)), 8)
    assert shuffled == [alone[number] for number in order]
    assert findings_of(await send_clips(http, *clips[:3]), 3) == alone[:3]


@pytest.mark.fault("A10")
async def test_many_at_once_get_the_single_answer(http: aiohttp.ClientSession) -> None:
    """Sixteen equal requests at the same time all get what one alone gets."""
    clip = clip_of((120, 60, 200))
    expected = findings_of(await send_clips(http, clip), 1)
    replies = await asyncio.gather(*(send_clips(http, clip) for _ in range(16)))
    assert [findings_of(reply, 1) for reply in replies] == [expected] * 16


@pytest.mark.fault("A6")
@pytest.mark.fault("A10")
@pytest.mark.parametrize("batch", ["batch", 1, 3])
async def test_joined_requests_keep_their_own(stage1_config: MakeConfig, tmp_path: Path, batch: int | str) -> None:
    """Requests of any size and threshold that come at once get what they get alone, whatever batch the file has."""
    path = tiny.write_detector(tmp_path / "model.onnx", batch=batch)
    colours = [(200, 10 * number, 240 - 20 * number) for number in range(12)]
    asked = [(colours[start : start + 1 + start % 4], 0.25 + 0.02 * start) for start in range(12)]
    with served(build_app(stage1_config(model_path=str(path), max_wait_ms=50))) as url:
        async with aiohttp.ClientSession(url) as http:

            async def ask(colours: list[tuple[int, int, int]], threshold: float) -> list[Any]:
                reply = await send_clips(http, *map(clip_of, colours), parameters={"threshold": threshold})
                return findings_of(reply, len(colours))

            alone = [await ask(*each) for each in asked]
            assert await asyncio.gather(*(ask(*each) for each in asked)) == alone
            async with http.get("/metrics") as reply:
                lines = (await reply.text()).splitlines()
    clips = 2 * sum(len(each[0]) for each in asked)
    assert f"zroact_stage1_batch_clips_sum {clips}.0" in lines
    padded = next(float(line.split()[1]) for line in lines if line.startswith("zroact_stage1_padded_clips_total"))
    assert (padded > 0) == (batch == 3)


@pytest.mark.fault("A5")
async def test_bad_clips_fail_alone(http: aiohttp.ClientSession) -> None:
    """NaN and a clip that breaks the run give a status of their own with a reason; siblings are answered."""
    good = clip_of(tiny.RED)
    reply = await send_clips(http, good, clip_of(tiny.BLACK), clip_of(tiny.RED, others=tiny.MAGENTA), good)
    tensors, head = wire.unpack_tensors(reply.body, int(reply.headers[wire.OIP_HEAD_LENGTH_HEADER]), kind="outputs")
    assert tensors["status"].ravel().tolist() == [0, 1, 1, 0]
    assert tensors["num_detections"].ravel().tolist() == [2, 0, 0, 2]
    assert np.isfinite(tensors["boxes"]).all()
    np.testing.assert_array_equal(tensors["scores"][0], tensors["scores"][3])
    assert head["parameters"]["nonfinite_dropped"] == 3
    assert list(head["parameters"]["problems"]) == ["1", "2"]
    assert "no finite number" in head["parameters"]["problems"]["1"]


async def test_a_batch_of_nothing_but_bad_clips_is_an_engine_failure(http: aiohttp.ClientSession) -> None:
    """If the engine fails on everything the request does: 503, to be sent again."""
    reply = await send_clips(http, clip_of(tiny.RED, others=tiny.MAGENTA))
    assert reply.status == 503
    assert (reply.json()["code"], reply.json()["retryable"]) == ("engine_failed", True)


def _body(**changes: object) -> Change:
    clip = clip_of(tiny.RED)
    return {"name": "clips", "datatype": "UINT8", "shape": [1, *clip.shape], "data": clip.ravel().tolist()} | changes


NUMBER = 1 * tiny.CLIP_LENGTH * tiny.HEIGHT * tiny.WIDTH * 3


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"inputs": [_body(name="images")]}, "expected one tensor named clips, found images"),
        ({"inputs": []}, "found none"),
        ({"inputs": [_body(datatype="INT32")]}, "expected UINT8 [B,4,32,48,3], found int32"),
        ({"inputs": [_body(shape=[1, 4, 48, 32, 3])]}, "expected UINT8 [B,4,32,48,3], found uint8 [1, 4, 48, 32, 3]"),
        ({"inputs": [_body(shape=[NUMBER])]}, f"found uint8 [{NUMBER}]"),
        ({"inputs": [_body(shape=[0, 4, 32, 48, 3], data=[])]}, "0 in one request, allowed are 1 to 8"),
        ({"inputs": [_body()], "parameters": {"threshold": 1.5}}, "parameters.threshold"),
        ({"inputs": [_body()], "parameters": {"threshold": True}}, "parameters.threshold"),
        ({"inputs": [_body()], "parameters": {"nms_iou": "a"}}, "parameters.nms_iou"),
        ({"inputs": [_body()], "parameters": {"threshold": float("nan")}}, "parameters.threshold"),
        ({"inputs": [_body()], "parameters": [1]}, "parameters"),
        ({"inputs": [_body()], "outputs": [{"name": "labels"}]}, "'labels' must be one of status"),
        ({"inputs": [_body()], "outputs": [{"name": "boxes"}] * 2}, "each once"),
        ({"inputs": [_body()], "outputs": "boxes"}, "outputs"),
        ({"inputs": [_body()], "outputs": [{"name": "boxes", "parameters": 3}]}, "boxes"),
        ({"inputs": [_body()], "id": 7}, "id must be a string"),
        ([], "object"),
    ],
)
async def test_what_does_not_fit_is_refused(http: aiohttp.ClientSession, body: object, said: str) -> None:
    """400 with what was expected and what was found."""
    async with http.post(INFER, json=body) as reply:
        assert reply.status == 400
        error = await reply.json()
    assert error["code"] == "bad_request"
    assert said in error["error"]


async def test_too_many_clips_name_the_limit(http: aiohttp.ClientSession) -> None:
    """A batch over the limit is refused with the key that sets it."""
    reply = await send_clips(http, *[clip_of(tiny.RED)] * 9)
    assert reply.status == 400
    assert "9 in one request, allowed are 1 to 8 (stage1.max_batch)" in reply.json()["error"]


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({wire.OIP_HEAD_LENGTH_HEADER: "many"}, wire.OIP_HEAD_LENGTH_HEADER),
        ({wire.OIP_HEAD_LENGTH_HEADER: "99999999999"}, wire.OIP_HEAD_LENGTH_HEADER),
        ({"Content-Encoding": "gzip"}, "Content-Encoding"),
        ({wire.DEADLINE_HEADER: "now"}, wire.DEADLINE_HEADER),
    ],
)
async def test_headers_that_do_not_fit_are_refused(
    http: aiohttp.ClientSession, headers: dict[str, str], said: str
) -> None:
    """A header nobody can follow is named."""
    async with http.post(INFER, data=b"{}", headers=headers) as reply:
        assert reply.status == 400
        assert said in (await reply.json())["error"]


async def test_the_metadata_names_everything_a_client_needs(http: aiohttp.ClientSession) -> None:
    """Labels, clip length and size stand in the metadata; an unknown model is 404."""
    async with http.get("/v2/models/yowov3") as reply:
        model = await reply.json()
    assert model["inputs"] == [{"name": "clips", "datatype": "UINT8", "shape": [-1, 4, 32, 48, 3]}]
    parameters = model["parameters"]
    assert (parameters["labels"], parameters["clip_length"]) == (list(tiny.LABELS), 4)
    assert (parameters["image_size"], parameters["engine"]) == ([32, 48], "onnxruntime_onnx")
    assert "note" not in parameters
    assert (parameters["batch"], parameters["pixels"], parameters["warmed_batch_sizes"]) == ("free", "fused", [1, 2])
    assert parameters["input"] == {"name": "frames", "precision": "float32", "shape": ["batch", 3, 4, 32, 48]}
    async with http.get("/health") as reply:
        health = await reply.json()
    assert (health["status"], health["engine"], health["provider"]) == ("ready", "onnx", "CPUExecutionProvider")
    assert (health["threads"], health["batch"], health["input"]) == (1, "free", parameters["input"])
    assert health["queue"] == {"running": False, "waiting": 0, "max": 32}
    async with http.get("/v2/models/other") as reply:
        assert (reply.status, await reply.json()) == (
            404,
            {"error": "Not Found", "code": "http", "retryable": False, "type": "invalid_request_error"},
        )


async def test_metrics_count_clips_and_refusals(stage1_config: MakeConfig) -> None:
    """Requests, clips by outcome, refusals by reason, dropped candidates, waiting and working times."""
    with served(build_app(stage1_config())) as url:
        async with aiohttp.ClientSession(url) as http:
            await send_clips(http, clip_of(tiny.RED), clip_of(tiny.BLACK), clip_of(tiny.WHITE))
            await send_clips(http, *[clip_of(tiny.RED)] * 9)
            async with http.get("/metrics") as reply:
                lines = (await reply.text()).splitlines()
    assert {
        'zroact_stage1_clips_total{state="ok"} 2.0',
        'zroact_stage1_clips_total{state="failed"} 1.0',
        'zroact_stage1_rejected_total{reason="bad_request"} 1.0',
        "zroact_stage1_nonfinite_dropped_total 4.0",
        "zroact_stage1_queue_depth 0.0",
        'zroact_http_requests_total{route="/v2/models/yowov3/infer",status="200"} 1.0',
        'zroact_http_requests_total{route="/v2/models/yowov3/infer",status="400"} 1.0',
    } <= set(lines)
    assert {"zroact_stage1_run_seconds_count 1.0", "zroact_stage1_batch_clips_sum 3.0"} <= set(lines)
    assert {"zroact_stage1_padded_clips_total 0.0", "zroact_stage1_candidates_cut_total 0.0"} <= set(lines)


async def test_the_orchestrators_client_understands_us(stage1_url: str) -> None:
    """Our own client reads metadata, findings, failed clips and errors of the real daemon as they are meant."""
    async with Stage1Client(Stage1Config(url=stage1_url), retry_for_s=0) as client:
        info = await client.describe()
        assert (info.labels, info.clip_length, info.image_size) == (tiny.LABELS, tiny.CLIP_LENGTH, (32, 48))
        found = await client.detect([clip_of(tiny.RED), clip_of(tiny.BLACK)], key="job/0")
        assert isinstance(found.clips[0], ClipFindings)
        assert isinstance(found.clips[1], BadReply)
        with pytest.raises(EngineFailed, match="the model failed on 1 clip"):
            await client.detect([clip_of(tiny.RED, others=tiny.MAGENTA)], key="job/1")
        with pytest.raises(RequestError, match=r"stage1\.max_batch"):
            await client.detect([clip_of(tiny.RED)] * 9, key="job/2")


async def test_a_detector_that_loads_is_not_ready(stage1_config: MakeConfig) -> None:
    """Before the model is loaded and warm the daemon says so, with a hint when to ask again."""
    service = Stage1Service(stage1_config(), CollectorRegistry())
    assert service.loaded is None
    with pytest.raises(StageUnreachable, match="still loading") as caught:
        _ = service.detector
    assert caught.value.retry_after_s is not None
    service.queue.close()
