"""The detectors: real sessions on a file whose answers can be worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from pipeline_ver2.config import Config
from pipeline_ver2.errors import ConfigError, EngineFailed
from serving.workers.stage1_model import OnnxDetector, load_detector
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


FILES: dict[str, dict[str, Any]] = {
    "batch of 1": {"batch": 1},
    "batch of 3": {"batch": 3},
    "half": {"half": True},
    "half, batch of 1": {"half": True, "batch": 1},
    "upstream's names": {"batch": 1, "names": ("clip", "image")},
    "weights beside": {"weights_beside": True},
    "24 classes": {"classes": 24, "labels": [f"class {number}" for number in range(24)]},
    "80 classes": {"classes": 80, "labels": [f"class {number}" for number in range(80)]},
}


@pytest.mark.fault("A7")
@pytest.mark.parametrize("kind", FILES)
def test_any_export_gives_the_same_answers(stage1_config: MakeConfig, tmp_path: Path, kind: str) -> None:
    """Whatever batch, precision, names and classes a file has, five clips get the boxes and scores of the usual one."""
    path = write_detector(tmp_path / "model.onnx", **FILES[kind])
    detector = OnnxDetector(stage1_config(model_path=str(path)).stage1)
    colours = [tiny.RED, tiny.GREEN, tiny.BLUE, tiny.ORANGE, (40, 90, 200)]
    found = detector.detect(np.stack([clip_of(colour) for colour in colours]), 0.25, 0.45)
    for output, (red, green, blue) in zip(found, colours, strict=True):
        np.testing.assert_allclose(output.findings.boxes[0], tiny.MIDDLE_BOX, atol=1e-3)
        scores = output.findings.scores[0][[0, 1, -1]]
        np.testing.assert_allclose(scores, np.asarray([red, green, blue]) / 255, atol=5e-3)
        assert output.findings.scores.dtype == np.float32


@pytest.mark.fault("A7")
@pytest.mark.parametrize(
    ("changes", "batch", "precision", "warmed"),
    [
        ({}, "free", "float32", [1, 2]),
        ({"batch": 1}, 1, "float32", [1]),
        ({"batch": 3, "half": True}, 3, "float16", [3]),
    ],
)
def test_what_was_found_is_told(
    stage1_config: MakeConfig, tmp_path: Path, changes: dict[str, Any], batch: object, precision: str, warmed: list[int]
) -> None:
    """Shapes, precision, threads, warmed sizes and where the pixels are scaled can be read."""
    path = write_detector(tmp_path / "model.onnx", **changes)
    details = OnnxDetector(stage1_config(model_path=str(path)).stage1).info.details
    side = "batch" if batch == "free" else batch
    assert details == {
        "input": {"name": "frames", "precision": precision, "shape": [side, 3, 4, 32, 48]},
        "output": {"name": "found", "precision": precision, "shape": [side, 7, 3]},
        "batch": batch,
        "threads": 1,
        "warmed_batch_sizes": warmed,
        "pixels": "fused",
    }


@pytest.mark.fault("A7")
def test_what_fills_a_fixed_batch_up_is_counted_and_harmless(stage1_config: MakeConfig, tmp_path: Path) -> None:
    """Four clips in a file of three are two runs, two clips of them padding; a bad clip of before is not run again."""
    path = write_detector(tmp_path / "model.onnx", batch=3)
    detector = OnnxDetector(stage1_config(model_path=str(path)).stage1)
    bad = clip_of(tiny.RED, others=tiny.MAGENTA)
    spoilt = detector.run([bad, bad, bad])
    assert all(isinstance(raw, EngineFailed) for raw in spoilt.clips)
    batch = detector.run([clip_of(tiny.GREEN)] * 4)
    assert batch.padded == 2
    assert [isinstance(raw, EngineFailed) for raw in batch.clips] == [False] * 4


@pytest.mark.fault("A7")
@pytest.mark.parametrize("half", [False, True])
def test_a_file_that_cannot_be_fused_runs_all_the_same(
    stage1_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, half: bool
) -> None:
    """If scaling cannot be put into the file, numpy does it, with the same answers, and the reason is told."""

    def too_large(*_: object) -> bytes:
        raise ValueError("exceeds maximum protobuf size of 2GB")

    monkeypatch.setattr("serving.workers.stage1_session.fuse", too_large)
    path = write_detector(tmp_path / "model.onnx", half=half)
    detector = OnnxDetector(stage1_config(model_path=str(path)).stage1)
    assert "maximum protobuf size" in detector.info.details["pixels"]
    (output,) = detector.detect(clip_of(tiny.ORANGE)[None], 0.25, 0.45)
    np.testing.assert_allclose(output.findings.scores[0], [1, 128 / 255, 0], atol=5e-3)


def test_a_batch_that_is_free_in_name_only_is_refused(stage1_config: MakeConfig, tmp_path: Path) -> None:
    """A file that calls its batch free but breaks on two clips is found out at the start."""
    path = write_detector(tmp_path / "model.onnx", only_one=True)
    with pytest.raises(ConfigError, match=r"stage1\.model_path: model\.onnx: .* 2 clip"):
        OnnxDetector(stage1_config(model_path=str(path)).stage1)


@pytest.mark.fault("A7")
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"labels": None}, "stage1.labels_path: must be set"),
        ({"labels": ["a", 1, "c"]}, "list of names"),
    ],
)
def test_files_that_do_not_fit_are_refused(
    stage1_config: MakeConfig, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    """A file without usable labels is refused with the key."""
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
