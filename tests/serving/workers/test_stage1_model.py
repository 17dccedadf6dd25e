"""The detectors: real sessions on a file whose answers can be worked out by hand."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from pipeline_ver2.config import Config
from pipeline_ver2.errors import ConfigError, EngineFailed
from serving.workers.stage1_model import (
    EMULATED_NOTE,
    EMULATED_SIZE,
    EmulatedDetector,
    OnnxDetector,
    load_detector,
    preprocess,
)
from tests import tiny_detector as tiny
from tests.tiny_detector import clip_of, write_detector

MakeConfig = Callable[..., Config]


@pytest.fixture(scope="module")
def detector(stage1_config: MakeConfig) -> OnnxDetector:
    """The tiny detector, warm."""
    return OnnxDetector(stage1_config().stage1)


def _found(detector: OnnxDetector, *clips: NDArray[np.uint8]) -> list[tuple[list[list[float]], list[list[float]]]]:
    outputs = detector.detect(np.stack(clips), 0.25, 0.45)
    assert [output.problem for output in outputs] == [None] * len(clips)
    return [(output.findings.boxes.round(4).tolist(), output.findings.scores.round(3).tolist()) for output in outputs]


@pytest.mark.fault("A3")
def test_pixels_are_normalised_as_in_training() -> None:
    """A fixed colour gives the numbers of the recipe: /255, ImageNet's mean and deviation, channels R, G, B."""
    clip = np.empty((1, 2, 3, 5, 3), np.uint8)
    clip[:] = (255, 128, 0)
    batch = preprocess(clip)
    assert batch.shape == (1, 3, 2, 3, 5)
    assert batch.dtype == np.float32
    expected = [(1 - 0.485) / 0.229, (128 / 255 - 0.456) / 0.224, (0 - 0.406) / 0.225]
    for channel in range(3):
        np.testing.assert_allclose(batch[0, channel], expected[channel], rtol=1e-5)


def test_pixels_keep_their_places() -> None:
    """Time, rows and columns are not mixed up while the channels move to the front."""
    clips = np.random.default_rng(1).integers(0, 256, (2, 3, 4, 5, 3), dtype=np.uint8)
    batch = preprocess(clips)
    expected = (clips / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    np.testing.assert_allclose(batch, expected.transpose(0, 4, 1, 2, 3), rtol=1e-4, atol=1e-5)


@pytest.mark.fault("A1")
@pytest.mark.fault("A2")
def test_the_golden_clip(detector: OnnxDetector) -> None:
    """The last frame decides, boxes are in 0..1 of it, scores are the model's own."""
    ((boxes, scores),) = _found(detector, clip_of(tiny.ORANGE, others=tiny.BLUE))
    assert boxes == [pytest.approx(tiny.MIDDLE_BOX), pytest.approx(tiny.CORNER_BOX)]
    assert scores == [pytest.approx([1, 0.502, 0], abs=1e-3), pytest.approx([0.6, 0.301, 0], abs=1e-3)]


@pytest.mark.fault("A3")
@pytest.mark.parametrize(("colour", "label"), [(tiny.RED, "red"), (tiny.GREEN, "green"), (tiny.BLUE, "blue")])
def test_red_is_red(detector: OnnxDetector, colour: tuple[int, int, int], label: str) -> None:
    """A solid colour is found under its own name."""
    ((_, scores),) = _found(detector, clip_of(colour))
    assert detector.info.labels[int(np.argmax(scores[0]))] == label


@pytest.mark.fault("A6")
def test_company_changes_nothing(detector: OnnxDetector) -> None:
    """A clip's answer is the same alone, in a batch, in another order and in a smaller batch."""
    clips = [clip_of(colour) for colour in (tiny.RED, tiny.GREEN, tiny.BLUE, tiny.ORANGE, (40, 90, 200))]
    alone = [_found(detector, clip)[0] for clip in clips]
    assert _found(detector, *clips) == alone
    assert _found(detector, *clips[::-1]) == alone[::-1]
    assert _found(detector, *clips[:2]) == alone[:2]


@pytest.mark.fault("A5")
def test_one_clip_that_breaks_the_run_fails_alone(detector: OnnxDetector) -> None:
    """A clip on which the engine fails gets its reason; its siblings get their answers."""
    red, bad, green = clip_of(tiny.RED), clip_of(tiny.RED, others=tiny.MAGENTA), clip_of(tiny.GREEN)
    outputs = detector.detect(np.stack([red, bad, green]), 0.25, 0.45)
    assert outputs[1].problem is not None
    assert "Gather" in outputs[1].problem
    assert outputs[1].findings.scores.shape == (0, 3)
    for number, clip in ((0, red), (2, green)):
        assert outputs[number].problem is None
        np.testing.assert_array_equal(
            outputs[number].findings.scores, detector.detect(clip[None], 0.25, 0.45)[0].findings.scores
        )


@pytest.mark.fault("A5")
@pytest.mark.parametrize("count", [1, 2])
def test_a_batch_that_fails_as_a_whole_is_an_engine_failure(detector: OnnxDetector, count: int) -> None:
    """If no clip can be run, the request fails as one."""
    bad = clip_of(tiny.RED, others=tiny.MAGENTA)
    with pytest.raises(EngineFailed, match="failed on 1 clip"):
        detector.detect(np.stack([bad] * count), 0.25, 0.45)


@pytest.mark.fault("A5")
def test_nan_stays_with_its_clip(detector: OnnxDetector) -> None:
    """A clip of nothing but NaN fails; one with a single NaN candidate loses only that."""
    black, white, red = detector.detect(
        np.stack([clip_of(tiny.BLACK), clip_of(tiny.WHITE), clip_of(tiny.RED)]), 0.25, 0.45
    )
    assert black.problem is not None
    assert (white.problem, white.nonfinite, len(white.findings.boxes)) == (None, 1, 1)
    assert (red.problem, red.nonfinite, len(red.findings.boxes)) == (None, 0, 2)


def test_the_model_says_what_it_is(detector: OnnxDetector, tiny_detector: Path) -> None:
    """Labels, clip length and size come from the file."""
    info = detector.info
    assert (info.labels, info.clip_length, info.image_size) == (
        tiny.LABELS,
        tiny.CLIP_LENGTH,
        (tiny.HEIGHT, tiny.WIDTH),
    )
    assert (info.platform, info.provider, info.source) == (
        "onnxruntime_onnx",
        "CPUExecutionProvider",
        tiny_detector.name,
    )
    assert info.note is None


def test_open_sides_are_named_by_the_metadata(stage1_config: MakeConfig, tmp_path: Path) -> None:
    """A file with dynamic sides runs at the size its metadata names."""
    path = write_detector(tmp_path / "free.onnx", free_sides=True)
    detector = OnnxDetector(stage1_config(model_path=str(path)).stage1)
    assert detector.info.image_size == (tiny.HEIGHT, tiny.WIDTH)
    ((boxes, _),) = _found(detector, clip_of(tiny.RED))
    assert boxes[0] == pytest.approx(tiny.MIDDLE_BOX)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a\n\n b \nc\n", ("a", "b", "c")), ('["x y", "b", "c"]', ("x y", "b", "c"))],
)
def test_a_label_file_goes_before_the_metadata(
    stage1_config: MakeConfig, tmp_path: Path, text: str, expected: tuple[str, ...]
) -> None:
    """Labels from a text or JSON file replace those of the model file."""
    (tmp_path / "labels").write_text(text, encoding="utf-8")
    detector = OnnxDetector(stage1_config(labels_path=str(tmp_path / "labels")).stage1)
    assert detector.info.labels == expected


@pytest.mark.fault("A2")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a\nb\n", "2 labels, but tiny.onnx has 3 classes"),
        ("a\nb\nc\nd", "4 labels"),
        ("a\nb\na", "none twice"),
        ("", "at least one"),
        ("[1, 2, 3]", "list of names"),
        ('["a", ', "not valid JSON"),
    ],
)
def test_labels_that_do_not_fit_stop_the_start(stage1_config: MakeConfig, tmp_path: Path, text: str, said: str) -> None:
    """A label list of another length, or none at all, is a refusal to start that names the key."""
    (tmp_path / "labels").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=said) as caught:
        OnnxDetector(stage1_config(labels_path=str(tmp_path / "labels")).stage1)
    assert "stage1.labels_path" in str(caught.value)


@pytest.mark.fault("A2")
def test_the_classes_are_counted_by_running_too(stage1_config: MakeConfig, tmp_path: Path) -> None:
    """If the file does not say its number of classes, the warm-up finds it out before the daemon is ready."""
    path = write_detector(tmp_path / "model.onnx", labels=("a", "b"), classes_hidden=True)
    with pytest.raises(ConfigError, match=r"output has shape \(1, 7, 3\), expected \(1, 6, N\)"):
        OnnxDetector(stage1_config(model_path=str(path)).stage1)


@pytest.mark.fault("A2")
def test_missing_sigmoids_stop_the_start(stage1_config: MakeConfig, tmp_path: Path) -> None:
    """A file that gives logits is found out by the warm-up clip."""
    path = write_detector(tmp_path / "logits.onnx", score_scale=20)
    with pytest.raises(ConfigError, match="scores reach from") as caught:
        OnnxDetector(stage1_config(model_path=str(path)).stage1)
    assert "stage1.model_path" in str(caught.value)


@pytest.mark.fault("A7")
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"batch": 1}, r"expected one input \[B,3,T,H,W\] float32 with B dynamic, found a fixed batch of 1"),
        ({"half": True}, r"float32 with B dynamic, found 1, the first \['batch', 3, 4, 32, 48\] tensor\(float16\)"),
        ({"labels": None}, "stage1.labels_path: must be set"),
        ({"labels": ["a", 1, "c"]}, "list of names"),
    ],
)
def test_files_that_do_not_fit_are_refused(
    stage1_config: MakeConfig, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    """A file this daemon cannot run is refused with what was expected and what was found."""
    path = write_detector(tmp_path / "model.onnx", **changes)
    with pytest.raises(ConfigError, match=said):
        OnnxDetector(stage1_config(model_path=str(path)).stage1)


def test_files_that_are_no_models_are_refused(stage1_config: MakeConfig, tmp_path: Path) -> None:
    """Missing files, folders and noise name the key and the path."""
    noise = tmp_path / "noise.onnx"
    noise.write_bytes(b"no model at all")
    for path in (tmp_path / "gone.onnx", tmp_path, noise):
        with pytest.raises(ConfigError, match=r"stage1\.model_path") as caught:
            OnnxDetector(stage1_config(model_path=str(path)).stage1)
        assert str(path) in str(caught.value)


def test_another_clip_length_is_refused(stage1_config: MakeConfig) -> None:
    """The configured clip length must be the model's."""
    with pytest.raises(ConfigError, match=r"stage1.clip_length: 16, but the model takes clips of 4 frames"):
        OnnxDetector(stage1_config(clip_length=16).stage1)


@pytest.mark.fault("A9")
@pytest.mark.parametrize("provider", ["cuda", "tensorrt"])
def test_a_missing_accelerator_stops_the_start(stage1_config: MakeConfig, provider: str) -> None:
    """CUDA asked for and not there is a refusal, never a silent run on the CPU."""
    wanted = {"cuda": "CUDAExecutionProvider", "tensorrt": "TensorrtExecutionProvider"}[provider]
    if wanted in ort.get_available_providers():
        pytest.skip(f"this ONNX Runtime has {wanted}")
    with pytest.raises(ConfigError, match=f"stage1.provider: {provider} needs {wanted}, this ONNX Runtime has"):
        OnnxDetector(stage1_config(provider=provider).stage1)


@pytest.mark.fault("A9")
@pytest.mark.parametrize("provider", ["auto", "cpu"])
def test_the_provider_is_told(stage1_config: MakeConfig, provider: str) -> None:
    """Where the choice is free, or the CPU was asked for, the metadata says what runs."""
    detector = load_detector(stage1_config(provider=provider).stage1)
    expected = "CUDA" if provider == "auto" and "CUDAExecutionProvider" in ort.get_available_providers() else "CPU"
    assert detector.info.provider == f"{expected}ExecutionProvider"


def _emulated(stage1_config: MakeConfig, **keys: object) -> EmulatedDetector:
    detector = load_detector(stage1_config(engine="emulated", **keys).stage1)
    assert isinstance(detector, EmulatedDetector)
    return detector


def test_the_emulation_says_so(stage1_config: MakeConfig, tmp_path: Path) -> None:
    """Nobody can take the emulation for a model, and it needs no model file; its labels can be set."""
    (tmp_path / "labels.json").write_text(json.dumps(["a", "b"]), encoding="utf-8")
    info = _emulated(stage1_config, model_path=None, labels_path=str(tmp_path / "labels.json")).info
    assert (info.platform, info.provider, info.note) == ("emulated", "emulated", EMULATED_NOTE)
    assert (info.labels, info.clip_length, info.image_size) == (("a", "b"), 4, EMULATED_SIZE)


@pytest.mark.parametrize(("clips", "sleeps"), [(1, 1), (4, 1), (5, 2)])
def test_the_emulation_takes_its_time(stage1_config: MakeConfig, clips: int, sleeps: int) -> None:
    """Up to `batch_size` clips take one service time, more take more."""
    detector = _emulated(stage1_config, emulated={"service_s": 0.3})
    batch = np.zeros((clips, 4, *EMULATED_SIZE, 3), np.uint8)
    started = time.monotonic()
    detector.detect(batch, 0.25, 0.45)
    assert 0.3 * sleeps <= time.monotonic() - started < 0.3 * (sleeps + 1)


def test_the_emulation_depends_on_the_pixels_only(stage1_config: MakeConfig) -> None:
    """Same clip, same answer, alone or in a batch; another picture, another label."""
    detector = _emulated(stage1_config, emulated={"service_s": 0})
    batch = np.zeros((2, 4, *EMULATED_SIZE, 3), np.uint8)
    batch[1] = 2
    together = detector.detect(batch, 0.25, 0.45)
    alone = detector.detect(batch[1:], 0.25, 0.45)
    np.testing.assert_array_equal(together[1].findings.scores, alone[0].findings.scores)
    assert [int(output.findings.scores[0].argmax()) for output in together] == [0, 2]


def test_a_closed_emulation_stops_sleeping(stage1_config: MakeConfig) -> None:
    """A daemon that stops does not wait for a long emulated call."""
    detector = _emulated(stage1_config, emulated={"service_s": 600})
    detector.close()
    assert len(detector.detect(np.zeros((1, 4, *EMULATED_SIZE, 3), np.uint8), 0.25, 0.45)) == 1
