"""The Stage 1 daemon as NVIDIA's own client sees it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from tests import tiny_detector as tiny
from tests.tiny_detector import clip_of


@pytest.fixture
def triton_client(stage1_url: str) -> Iterator[triton.InferenceServerClient]:
    """NVIDIA's own client."""
    with triton.InferenceServerClient(stage1_url.removeprefix("http://")) as client:
        yield client


@pytest.mark.parametrize("binary_in", [False, True])
@pytest.mark.parametrize("binary_out", [False, True, None])
def test_tritons_client_understands_us(
    triton_client: triton.InferenceServerClient, *, binary_in: bool, binary_out: bool | None
) -> None:
    """Health, metadata and inference work with Triton's client, every way it can ask."""
    assert triton_client.is_server_live()
    assert triton_client.is_server_ready()
    assert triton_client.is_model_ready("yowov3")
    assert not triton_client.is_model_ready("other")
    assert "binary_tensor_data" in triton_client.get_server_metadata()["extensions"]
    shape = triton_client.get_model_metadata("yowov3")["inputs"][0]["shape"]
    clips = np.stack([clip_of(tiny.RED), clip_of(tiny.GREEN)])
    assert shape[1:] == list(clips.shape[1:])
    given = triton.InferInput("clips", list(clips.shape), "UINT8")
    given.set_data_from_numpy(clips, binary_data=binary_in)
    names = ("boxes", "num_detections")
    outputs = (
        binary_out
        if binary_out is None
        else [triton.InferRequestedOutput(name, binary_data=binary_out) for name in names]
    )
    result = triton_client.infer("yowov3", [given], outputs=outputs, request_id="9", parameters={"threshold": 0.7})
    assert result.get_response()["id"] == "9"
    np.testing.assert_allclose(result.as_numpy("boxes"), [[tiny.MIDDLE_BOX], [tiny.MIDDLE_BOX]])
    assert result.as_numpy("num_detections").tolist() == [[1], [1]]
    assert (result.as_numpy("scores") is None) == (binary_out is not None)


def test_tritons_client_understands_refusals(triton_client: triton.InferenceServerClient) -> None:
    """A refusal arrives as Triton's exception with our message."""
    given = triton.InferInput("clips", [1, 2], "UINT8")
    given.set_data_from_numpy(np.zeros((1, 2), np.uint8))
    with pytest.raises(InferenceServerException, match="expected UINT8"):
        triton_client.infer("yowov3", [given])


def test_tritons_client_may_name_the_version(triton_client: triton.InferenceServerClient) -> None:
    """Version 1 is the only one, under its own paths; another does not exist."""
    assert triton_client.is_model_ready("yowov3", "1")
    assert not triton_client.is_model_ready("yowov3", "2")
    metadata = triton_client.get_model_metadata("yowov3", "1")
    assert metadata["versions"] == ["1"]
    assert metadata["parameters"]["labels"] == list(tiny.LABELS)
    given = triton.InferInput("clips", [1, *clip_of(tiny.RED).shape], "UINT8")
    given.set_data_from_numpy(clip_of(tiny.RED)[None])
    result = triton_client.infer("yowov3", [given], model_version="1")
    assert result.get_response()["model_version"] == "1"
    np.testing.assert_allclose(result.as_numpy("boxes")[0, 0], tiny.MIDDLE_BOX)
    with pytest.raises(InferenceServerException):
        triton_client.infer("yowov3", [given], model_version="2")


@pytest.mark.parametrize("version", ["", "1"])
def test_tritons_client_reads_the_configuration(triton_client: triton.InferenceServerClient, version: str) -> None:
    """Batch, tensors without their batch side, and the wait for company, as Triton's own configuration has them."""
    config = triton_client.get_model_config("yowov3", version)
    assert (config["name"], config["max_batch_size"]) == ("yowov3", 8)
    assert config["input"] == [{"name": "clips", "data_type": "TYPE_UINT8", "dims": [4, 32, 48, 3]}]
    assert [tensor["name"] for tensor in config["output"]] == ["status", "num_detections", "boxes", "scores"]
    assert config["dynamic_batching"] == {"max_queue_delay_microseconds": 2000}
