"""What crosses a wire: JSON models, timings, tensor framing."""

from __future__ import annotations

import json
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from pydantic import ValidationError

from pipeline_ver2 import wire
from pipeline_ver2.errors import AnswerError, EngineFailed, QueueFull, RequestError, ZroactError
from pipeline_ver2.wire import (
    Detection,
    DetectRequest,
    DetectResult,
    EvaluateRequest,
    LabelScore,
    error_body,
    oip_datatype,
    oip_error_body,
    pack_tensors,
    parse_server_timing,
    server_timing,
    unpack_tensors,
)

KINDS: tuple[Literal["inputs"], Literal["outputs"]] = ("inputs", "outputs")


def _round_trip(
    tensors: dict[str, NDArray[Any]], kind: Literal["inputs", "outputs"], as_json: tuple[str, ...] = ()
) -> dict[str, NDArray[Any]]:
    parts, head_length = pack_tensors(tensors, kind=kind, as_json=as_json)
    body = b"".join(parts)
    read, _ = unpack_tensors(body, head_length if len(as_json) < len(tensors) else None, kind=kind)
    return read


_ARRAYS = st.sampled_from(list(wire.OIP_DTYPES.values())).flatmap(
    lambda dtype: hnp.arrays(
        dtype,
        hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4),
        elements=None if dtype.kind != "f" else {"allow_nan": False, "allow_infinity": False},
    )
)


@given(
    st.dictionaries(st.text(max_size=8), _ARRAYS, max_size=4),
    st.sampled_from(KINDS),
    st.sets(st.integers(min_value=0, max_value=3)),
)
def test_tensors_survive_the_wire(
    tensors: dict[str, NDArray[Any]], kind: Literal["inputs", "outputs"], chosen: set[int]
) -> None:
    """Any names, dtypes and shapes, empty ones too, come back as they went, as bytes, as JSON or mixed."""
    as_json = tuple(name for number, name in enumerate(tensors) if number in chosen)
    read = _round_trip(tensors, kind, as_json)
    assert list(read) == list(tensors)
    for name, array in tensors.items():
        assert read[name].dtype == array.dtype
        np.testing.assert_array_equal(read[name], array, strict=True)


def test_binary_tensors_are_views_of_the_body() -> None:
    """Megabytes of pixels are not copied while they are read."""
    parts, head_length = pack_tensors({"clips": np.arange(12, dtype=np.uint8).reshape(3, 4)}, kind="inputs")
    body = b"".join(parts)
    read, _ = unpack_tensors(body, head_length, kind="inputs")
    assert np.shares_memory(read["clips"], np.frombuffer(body, np.uint8))
    assert not read["clips"].flags.writeable


def test_the_head_is_as_the_protocol_says() -> None:
    """Head members, parameters and the wish for a binary reply stand where KServe and Triton look for them."""
    tensors: dict[str, NDArray[Any]] = {"clips": np.zeros((1, 2), np.uint8), "mask": np.ones(2, np.int32)}
    parts, length = pack_tensors(
        tensors, kind="inputs", parameters={"threshold": 0.5}, head={"id": "7"}, as_json=["mask"]
    )
    body = b"".join(parts)
    assert json.loads(body[:length]) == {
        "id": "7",
        "inputs": [
            {"name": "clips", "shape": [1, 2], "datatype": "UINT8", "parameters": {"binary_data_size": 2}},
            {"name": "mask", "shape": [2], "datatype": "INT32", "data": [1, 1]},
        ],
        "parameters": {"threshold": 0.5, "binary_data_output": True},
    }
    assert body[length:] == b"\0\0"


@pytest.mark.fault("A5")
def test_nan_cannot_be_written_as_json() -> None:
    """JSON stays valid: a NaN is an error of the writer, not a word in the text."""
    with pytest.raises(ValueError, match="JSON"):
        pack_tensors({"boxes": np.asarray([np.nan], np.float32)}, kind="outputs", as_json=["boxes"])


def _entry(**changes: object) -> dict[str, object]:
    return {"name": "clips", "datatype": "UINT8", "shape": [2], "data": [1, 2]} | changes


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (_entry(name=None), "no name"),
        (_entry(datatype="BYTES"), "BYTES"),
        (_entry(datatype=["UINT8"]), "datatype"),
        (_entry(shape=[3]), "shape"),
        (_entry(shape=[-2]), "whole numbers"),
        (_entry(shape=[True, 2]), "whole numbers"),
        (_entry(shape="2"), "whole numbers"),
        (_entry(shape=[2.0]), "whole numbers"),
        (_entry(shape=[2**40], data=[]), "data does not fit"),
        (_entry(shape=[2**63]), "whole numbers"),
        (_entry(shape=[10**4000]), "whole numbers"),
        (_entry(shape=[2**62] * 100_000), "at most 32 whole numbers"),
        (_entry(name="x" * 10**6), "no name of at most 200"),
        (_entry(data=None), "data does not fit"),
        (_entry(data=[1, 300]), "data does not fit"),
        (_entry(data=[1, -1]), "data does not fit"),
        (_entry(data=[1, 1.5]), "data does not fit"),
        (_entry(data=[1, float("nan")]), "data does not fit"),
        (_entry(data=["1", "2"]), "data does not fit"),
        (_entry(data=[[1], [2, 3]]), "data does not fit"),
        (_entry(data=[1, 10**400]), "data does not fit"),
        (_entry(parameters=[1]), "parameters"),
        (_entry(parameters={"binary_data_size": 2}), "ends 2 bytes early"),
        (_entry(parameters={"binary_data_size": 2.0}), "binary_data_size"),
        (_entry(parameters={"binary_data_size": -1}), "binary_data_size"),
        (_entry(parameters={"binary_data_size": 10**12}, shape=[10**12]), "early"),
    ],
)
def test_a_malformed_tensor_is_refused(entry: dict[str, object], said: str) -> None:
    """Whatever does not fit is refused with the tensor's name and the reason, never bent to fit."""
    body = json.dumps({"inputs": [entry]}).encode()
    with pytest.raises(RequestError, match=said) as caught:
        unpack_tensors(body, len(body), kind="inputs")
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("body", "length", "said"),
    [
        (b"", None, "JSON"),
        (b"[]", None, "object"),
        (b"{}", None, "list of tensors"),
        (b'{"inputs": {}}', None, "list of tensors"),
        (b'{"inputs": [3]}', None, "list of tensors"),
        (b'{"inputs": []}', 0, "Inference-Header-Content-Length"),
        (b'{"inputs": []}', 99, "Inference-Header-Content-Length"),
        (b'{"inputs": []}xx', 14, "2 bytes follow"),
        (b'{"inputs": []}', 5, "JSON"),
        (b"\xff\xfe", None, "JSON"),
        (b"[" * 100_000, None, "JSON"),
        (json.dumps({"inputs": [_entry(), _entry()]}).encode(), None, "twice"),
    ],
)
def test_a_malformed_body_is_refused(body: bytes, length: int | None, said: str) -> None:
    """Heads that are none, lengths that lie and bytes left over are refused."""
    with pytest.raises(RequestError, match=said):
        unpack_tensors(body, length, kind="inputs")


@given(st.binary(max_size=64), st.one_of(st.none(), st.integers(-2, 70)))
def test_noise_is_refused_not_crashed_on(body: bytes, length: int | None) -> None:
    """Arbitrary bytes raise nothing but a RequestError."""
    with pytest.raises(RequestError):
        unpack_tensors(body, length, kind="inputs")


_JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=8,
)


@given(
    st.fixed_dictionaries(
        {"name": st.just("x"), "datatype": st.sampled_from(list(wire.OIP_DTYPES))},
        optional={
            "shape": st.one_of(st.lists(st.integers(0, 3), max_size=3), _JSON),
            "data": _JSON,
            "parameters": _JSON,
        },
    )
)
def test_odd_tensors_are_read_or_refused(entry: dict[str, Any]) -> None:
    """Any JSON in a tensor's place is either read in the shape and type it claims, or a RequestError."""
    body = json.dumps({"inputs": [entry]}).encode()
    try:
        tensors, _ = unpack_tensors(body, None, kind="inputs")
    except RequestError:
        return
    assert tensors["x"].shape == tuple(entry["shape"])
    assert tensors["x"].dtype == wire.OIP_DTYPES[entry["datatype"]]


def test_unknown_dtypes_have_no_name() -> None:
    """A dtype the protocol does not carry here is refused."""
    assert oip_datatype(np.dtype(np.float32)) == "FP32"
    with pytest.raises(RequestError, match="complex128"):
        oip_datatype(np.dtype(complex))


def test_server_timing_is_read_back() -> None:
    """Both durations come back in seconds."""
    assert parse_server_timing(server_timing(0.25, 1.5)) == (0.25, 1.5)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, (None, None)),
        ("", (None, None)),
        ("run;dur=5", (None, 0.005)),
        ('cache;desc="a, b";dur=1, queue;dur=2', (0.002, None)),
        ("queue;dur=soon, run;dur=inf", (None, None)),
        ("queue", (None, None)),
    ],
)
def test_foreign_server_timing_is_tolerated(value: str | None, expected: tuple[float | None, float | None]) -> None:
    """What is absent or malformed is None, never an error: a stand-in may send anything."""
    assert parse_server_timing(value) == expected


def test_errors_have_one_shape() -> None:
    """Code, message, whether to retry, and OpenAI's type; an invalid answer brings its text."""
    assert error_body(QueueFull("full"))["error"] == {
        "code": "queue_full",
        "message": "full",
        "retryable": True,
        "type": "server_error",
        "param": None,
    }
    assert error_body(RequestError("no"))["error"]["type"] == "invalid_request_error"
    assert error_body(AnswerError("cut", "raw"))["error"]["raw_text"] == "raw"


@pytest.mark.parametrize(
    ("error", "param"),
    [
        (RequestError("messages.0.content.1: needs text"), "messages.0.content.1"),
        (RequestError("the body is not valid JSON: line 1"), None),
        (RequestError("image 1: damaged"), None),
        (RequestError("no: colon later"), "no"),
        (EngineFailed("vllm: it died"), None),
    ],
)
def test_a_refused_field_is_openais_param(error: ZroactError, param: str | None) -> None:
    """What the message begins with, if that is a field; errors of the server name none."""
    assert error_body(error)["error"]["param"] == param


def test_errors_of_the_inference_protocol_are_a_text() -> None:
    """There `error` is the message, as Triton's clients expect; what ours need stands beside it."""
    assert oip_error_body(QueueFull("full")) == {
        "error": "full",
        "code": "queue_full",
        "retryable": True,
        "type": "server_error",
    }


def test_json_bodies_refuse_what_they_do_not_know() -> None:
    """A misspelt field is an error, not a silent default."""
    with pytest.raises(ValidationError, match="treshold"):
        DetectRequest.model_validate({"clips": [{"clip_id": "a"}], "treshold": 0.5})


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_json_bodies_hold_finite_numbers(number: float) -> None:
    """NaN and infinity do not pass, in either direction."""
    with pytest.raises(ValidationError):
        LabelScore(name="run", score=number)
    with pytest.raises(ValidationError):
        Detection(box=(0, 0, number, 1), labels=())


def test_a_request_holds_at_least_one_clip_and_image() -> None:
    """Empty requests are refused."""
    with pytest.raises(ValidationError, match="clips"):
        DetectRequest.model_validate({"clips": []})
    with pytest.raises(ValidationError, match="images"):
        EvaluateRequest.model_validate({"slot_id": "a", "images": []})


def test_results_survive_json() -> None:
    """What is dumped can be read again, unchanged."""
    result = DetectResult(
        clip_id="a",
        key_index=11,
        state="ok",
        detections=(Detection(box=(1, 2, 3, 4), labels=(LabelScore(name="run", score=0.5),)),),
        inference_ms=3.5,
    )
    assert DetectResult.model_validate_json(result.model_dump_json()) == result
