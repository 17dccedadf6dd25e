"""What is known of a foreign detector: from its metadata, from the configuration, and where they contradict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline_ver2.config import Stage1Config, load_config
from pipeline_ver2.detector_metadata import input_of, labels_of
from pipeline_ver2.errors import BadReply, ConfigError, EngineFailed, RequestError, ZroactError
from pipeline_ver2.job import Job
from pipeline_ver2.realtime_pipeline import run_pipeline
from pipeline_ver2.stage_clients import Stage1Client
from pipeline_ver2.supervisor import Supervisor
from tests.pipeline_ver2.conftest import settings_for, states
from tests.stand_ins import LABELS, Stages
from tests.triton import NOT_READY, Triton, triton


def metadata(
    shape: list[Any], parameters: object = None, *, name: str = "clips", classes: int | None = None
) -> dict[str, Any]:
    """The metadata of a model with one input."""
    content: dict[str, Any] = {"inputs": [{"name": name, "shape": shape}]}
    if classes is not None:
        content["outputs"] = [{"name": "scores", "shape": [-1, -1, classes]}]
    return content if parameters is None else {**content, "parameters": parameters}


def config(**values: Any) -> Stage1Config:  # noqa: ANN401
    """Settings of Stage 1."""
    return load_config(None, {f"stage1.{key}": value for key, value in values.items()}, environ={}).stage1


def labels_file(tmp_path: Path, *names: str) -> str:
    """A file of labels."""
    (tmp_path / "labels.txt").write_text("\n".join(names))
    return str(tmp_path / "labels.txt")


@pytest.mark.parametrize(
    ("content", "values", "expected"),
    [
        (metadata([-1, 16, 224, 320, 3]), {}, (16, (224, 320))),
        (metadata([-1, 8, 224, 320, 3]), {"clip_length": 16}, (8, (224, 320))),
        (metadata([-1, -1, -1, -1, 3]), {"image_size": (224, 320), "clip_length": 8}, (8, (224, 320))),
        (metadata([-1, -1, 224, 320, 3]), {"clip_length": 8}, (8, (224, 320))),
        (metadata(["-1", "16", "224", "320", "3"]), {"image_size": (224, 320)}, (16, (224, 320))),
        (metadata([-1, -1, -1, -1, 3], {"clip_length": 4, "image_size": [64, 96]}), {}, (4, (64, 96))),
        (metadata([-1, 4, 64, 96, 3], {"clip_length": 4, "image_size": [64, 96]}), {}, (4, (64, 96))),
        (metadata([-1, 4, 64, 96, 3], {"clip_length": "4", "image_size": "64"}), {}, (4, (64, 96))),
        (metadata([-1, 4, 64, 96, 3], {"image_size": [64]}), {}, (4, (64, 96))),
        (metadata([-1, 4, 64, 96, 3], "none"), {}, (4, (64, 96))),
    ],
)
def test_clip_length_and_size(
    content: dict[str, Any], values: dict[str, Any], expected: tuple[int, tuple[int, int]]
) -> None:
    """From the shape where it is fixed, else from the parameters, else from the configuration."""
    assert input_of(content, config(**values)) == expected


@pytest.mark.fault("A1")
@pytest.mark.parametrize(
    ("content", "values", "kind", "said"),
    [
        (metadata([-1, 16, -1, -1, 3]), {}, ConfigError, "stage1.image_size: must be set"),
        (metadata([-1, 16, 224, -1, 3]), {}, ConfigError, "stage1.image_size: must be set"),
        (metadata([-1, 16, 224, 320, 3]), {"image_size": (320, 224)}, ConfigError, "stage1.image_size: is (320, 224)"),
        (metadata([-1, 4, 64, 96, 3], {"image_size": [96, 64]}), {}, BadReply, "`image_size`"),
        (metadata([-1, 4, 64, 96, 3], {"clip_length": 8}), {}, BadReply, "`clip_length`"),
        (metadata([-1, 3, 16, 224], {}), {}, BadReply, "[B,T,H,W,3]"),
        (metadata([-1, "T", 224, 224, 3]), {}, BadReply, "no shape of `clips`"),
        (metadata([-1, 16, 224, 224, 3], name="images"), {}, BadReply, "no shape of `clips`"),
        ({"inputs": None}, {}, BadReply, "no shape of `clips`"),
        ({}, {}, BadReply, "no shape of `clips`"),
    ],
)
def test_what_is_open_or_contradicts_is_told(
    content: dict[str, Any], values: dict[str, Any], kind: type[ZroactError], said: str
) -> None:
    """A key that must be set is named; a size that both tell must be the same."""
    with pytest.raises(kind) as caught:
        input_of(content, config(**values))
    assert said in str(caught.value)


@pytest.mark.parametrize("classes", [None, -1, 2])
def test_labels_from_either(tmp_path: Path, classes: int | None) -> None:
    """From the server, from a file where it names none, from both where they agree."""
    file = labels_file(tmp_path, "sit", "stand up")
    named = metadata([], {"labels": ["sit", "stand up"]}, classes=classes)
    silent = metadata([], classes=classes)
    assert labels_of(named, config()) == ("sit", "stand up")
    assert labels_of(silent, config(labels_path=file)) == ("sit", "stand up")
    assert labels_of(named, config(labels_path=file)) == ("sit", "stand up")
    assert labels_of(named, config(labels_path=str(tmp_path / "only on the server"))) == ("sit", "stand up")


@pytest.mark.fault("A2")
def test_labels_that_are_missing_or_contradict(tmp_path: Path) -> None:
    """The key is named; names in another order, or another number of them, are no match."""
    file = labels_file(tmp_path, "sit", "stand up")
    with pytest.raises(ConfigError, match=r"stage1\.labels_path: must be set"):
        labels_of(metadata([]), config())
    with pytest.raises(ConfigError, match=r"stage1\.labels_path: .* other labels than the server"):
        labels_of(metadata([], {"labels": ["stand up", "sit"]}), config(labels_path=file))
    with pytest.raises(ConfigError, match=r"stage1\.labels_path: .* has 2 labels, but .* scores 3 classes"):
        labels_of(metadata([], classes=3), config(labels_path=file))
    with pytest.raises(BadReply, match="names 1 labels and scores 3 classes"):
        labels_of(metadata([], {"labels": ["sit"]}, classes=3), config())
    with pytest.raises(ConfigError, match=r"stage1\.labels_path: .* cannot be read"):
        labels_of(metadata([]), config(labels_path=str(tmp_path / "missing")))


async def test_a_clip_runs_through_a_triton_server(clip: Path, stages: Stages, tmp_path: Path) -> None:
    """Labels come from the configuration, tensors and parameters are the same as for our own daemon."""
    file = labels_file(tmp_path, *LABELS)
    async with triton() as server:
        settings = settings_for(stages, stage1__url=server.url, stage1__labels_path=file, stage1__threshold=0.5)
        async with Supervisor(settings, spawn=False, log_dir=tmp_path / "logs"):
            results = await run_pipeline(Job(clip, tmp_path / "out"), settings)

    assert (results.state, states(results)) == ("succeeded", ["ok"] * 5)
    assert results.keyframes[0].detections[0].box == (0, 0, 48, 64)
    assert [label.name for label in results.keyframes[0].detections[0].labels] == ["walk"]
    assert sum(server.clips) == 13
    assert server.parameters[0] == {"threshold": 0.5, "nms_iou": 0.45, "binary_data_output": True}


async def test_a_triton_server_that_leaves_its_sides_open(clip: Path, stages: Stages, tmp_path: Path) -> None:
    """Clip length and image size come from the configuration too."""
    file = labels_file(tmp_path, *LABELS)
    async with triton(shape=[-1, -1, -1, -1, 3]) as server:
        settings = settings_for(
            stages,
            stage1__url=server.url,
            stage1__labels_path=file,
            stage1__image_size=(32, 48),
            stage1__clip_length=16,
        )
        results = await run_pipeline(Job(clip, tmp_path / "out"), settings)
    assert states(results) == ["ok"] * 5


async def test_a_triton_server_that_still_loads_its_model_is_waited_for(stages: Stages, tmp_path: Path) -> None:
    """The server is ready before its model is; a question after metadata waits as well."""
    file = labels_file(tmp_path, *LABELS)
    async with triton(away=2) as server:
        settings = settings_for(stages, stage1__url=server.url, stage1__labels_path=file)
        async with Supervisor(settings, stages=("stage1",), spawn=False, log_dir=tmp_path / "logs"):
            assert server.away < 0
        server.away = 2
        async with Stage1Client(settings.stage1, retry_for_s=20) as client:
            assert (await client.describe()).labels == LABELS


async def infer(server: Triton, stages: Stages, tmp_path: Path) -> int:
    """Send two clips and count what comes back."""
    file = labels_file(tmp_path, *LABELS)
    settings = settings_for(stages, stage1__url=server.url, stage1__labels_path=file)
    async with Stage1Client(settings.stage1, retry_for_s=20) as client:
        found = await client.detect([np.zeros((16, *server.shape[2:]), np.uint8)] * 2, key="job/batch-0")
    return len(found.clips)


async def test_a_model_that_is_loaded_anew_in_the_middle_is_waited_for(stages: Stages, tmp_path: Path) -> None:
    """Triton refuses with 400, as it refuses a wrong request; its model's readiness tells them apart."""
    async with triton(refusals=[(400, NOT_READY)]) as server:
        assert await infer(server, stages, tmp_path) == 2


async def test_a_full_queue_of_tritons_is_waited_for(stages: Stages, tmp_path: Path) -> None:
    """It is 503 without a code."""
    async with triton(refusals=[(503, "Exceeds maximum queue size")]) as server:
        assert await infer(server, stages, tmp_path) == 2


async def test_a_failure_inside_a_triton_model_counts_as_a_send(stages: Stages, tmp_path: Path) -> None:
    """One is tried again once Triton is there, two are the end, and its own words are told."""
    async with triton(refusals=[(500, "out of memory")]) as server:
        assert await infer(server, stages, tmp_path) == 2
    async with triton(refusals=[(500, "out of memory")] * 2) as server:
        with pytest.raises(EngineFailed, match="answered 500: out of memory"):
            await infer(server, stages, tmp_path)


async def test_a_wrong_request_is_not_waited_for(stages: Stages, tmp_path: Path) -> None:
    """The model is ready, so a 400 is about the request; Triton's own words are told."""
    async with triton(shape=[-1, 16, 64, 96, 3]) as server:
        with pytest.raises(RequestError, match="answered 400: unexpected shape for input 'clips'"):
            await infer(server, stages, tmp_path)
