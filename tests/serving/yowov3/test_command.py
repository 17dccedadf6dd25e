"""`zroact export-yowov3` from checkout to daemon: the file answers as the network does, and Stage 1 runs it."""

from __future__ import annotations

import importlib
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from numpy.typing import NDArray
from typer.testing import CliRunner, Result

import serving.yowov3
from pipeline_ver2.config import load_config
from pipeline_ver2.errors import ConfigError
from serving import cli
from serving.workers.postprocess import postprocess
from serving.workers.stage1_model import OnnxDetector, preprocess
from serving.yowov3 import export
from serving.yowov3.checkout import MODULE, importable
from serving.yowov3.command import app
from tests.yowov3_repo import LABELS, SIDE, Checkout, write_checkout

CLIPS = np.random.default_rng(7).integers(0, 256, (3, 16, SIDE, SIDE, 3), np.uint8)


def call(*arguments: str) -> Result:
    """Run the command in this process."""
    return CliRunner().invoke(app, arguments)


@dataclass(frozen=True)
class Exported:
    """A file the command has written, and what it said."""

    file: Path
    output: str
    half: bool

    def answers(self, clips: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Its raw output, `(B, 4 + C, N)`."""
        session = ort.InferenceSession(self.file, _one_thread(), providers=["CPUExecutionProvider"])
        batch = preprocess(clips).astype(np.float16 if self.half else np.float32)
        return np.asarray(session.run(None, {session.get_inputs()[0].name: batch})[0], np.float32)

    def metadata(self) -> dict[str, str]:
        """What the file says of itself."""
        session = ort.InferenceSession(self.file, _one_thread(), providers=["CPUExecutionProvider"])
        found: dict[str, str] = session.get_modelmeta().custom_metadata_map
        return found


def _one_thread() -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return options


@pytest.fixture(scope="module", params=["float32", "float16"])
def exported(request: pytest.FixtureRequest, checkout: Checkout, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """The checkout's network as a file, in both precisions."""
    half = request.param == "float16"
    file = tmp_path_factory.mktemp("exported") / "new" / "yowov3.onnx"
    told = call(*checkout.options(file), *(["--fp16"] if half else []))
    assert told.exit_code == 0, told.output
    return Exported(file, told.output, half)


def answers_of(checkout: Checkout, clips: NDArray[np.uint8]) -> NDArray[np.float32]:
    """What the network itself says, loaded without the exporter's code."""
    with importable(checkout.repo):
        network = importlib.import_module(MODULE).Network(len(LABELS), SIDE)
        network.load_state_dict(checkout.state())
        with torch.no_grad():
            output: NDArray[np.float32] = network.eval()(torch.from_numpy(preprocess(clips))).numpy()
    return output


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.fault("A7")
@pytest.mark.parametrize("batch", [1, 2, 3])
def test_the_file_answers_as_the_network_does(checkout: Checkout, exported: Exported, batch: int) -> None:
    """At any batch, a single clip too: to 1e-4 in float32 and 1e-2 in float16, boxes in parts of the frame."""
    expected, found = answers_of(checkout, CLIPS[:batch]), exported.answers(CLIPS[:batch])
    assert found.shape == expected.shape
    apart = np.abs(found - expected)
    apart[:, :4] /= SIDE
    assert apart.max() <= (1e-2 if exported.half else 1e-4)
    assert np.ptp(expected[:, 4:], axis=0).max() > 1e-4 or batch == 1  # else any clip's answer would do


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_file_tells_what_stage_1_must_know(exported: Exported) -> None:
    """Labels, clip length, image size, and where the keyframe is; the command says how far apart the two were."""
    metadata = exported.metadata()
    assert json.loads(metadata["labels"]) == list(LABELS)
    assert (json.loads(metadata["clip_length"]), json.loads(metadata["image_size"])) == (16, [SIDE, SIDE])
    assert metadata["keyframe"] == "last"
    lines = exported.output.splitlines()
    assert [line.split(":")[0] for line in lines] == ["batch 1", "batch 3", str(exported.file)]
    assert ("float16" if exported.half else "float32") in lines[-1]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_path_of_the_user_is_in_the_file(checkout: Checkout, exported: Exported) -> None:
    """Exporters note where each node is from."""
    assert os.fsencode(checkout.repo) not in exported.file.read_bytes()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_daemon_runs_the_file_as_it_is(checkout: Checkout, exported: Exported) -> None:
    """Nothing but its path is set; the detections are those of the network."""
    overrides: dict[str, Any] = {
        "stage1.model_path": str(exported.file),
        "stage1.threads": 1,
        "stage1.provider": "cpu",
    }
    detector = OnnxDetector(load_config(None, overrides, environ={}).stage1)
    assert (detector.info.labels, detector.info.clip_length, detector.info.image_size) == (LABELS, 16, (SIDE, SIDE))
    found = detector.detect(CLIPS, 0.01, 1.0)
    expected = postprocess(answers_of(checkout, CLIPS), (SIDE, SIDE), 0.01, 1.0)
    for clip, wanted in zip(found, expected, strict=True):
        boxes, others = clip.findings.boxes, wanted.findings.boxes
        assert len(boxes) == len(others) > 0
        # equally good boxes may change places
        apart = np.abs(boxes[:, None] - others[None]).max(axis=2)
        nearest = apart.argmin(axis=1)
        assert sorted(nearest) == list(range(len(others)))
        assert apart.min(axis=1).max() <= (1e-2 if exported.half else 1e-4)
        tolerance = 1e-2 if exported.half else 1e-4
        np.testing.assert_allclose(clip.findings.scores, wanted.findings.scores[nearest], atol=tolerance)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--repo", "is no checkout of YOWOv3"),
        ("--config", "cannot be read"),
        ("--weights", "cannot be read"),
        ("--labels", "cannot be read"),
    ],
)
def test_what_is_missing_is_told_in_one_line(checkout: Checkout, tmp_path: Path, option: str, said: str) -> None:
    """It names the option and the path, and ends with 2."""
    told = call(*checkout.options(tmp_path / "out.onnx"), option, str(tmp_path / "missing"))
    assert told.exit_code == 2
    assert told.stderr.startswith(f"error: {option}")
    assert said in told.stderr
    assert str(tmp_path / "missing") in told.stderr
    assert told.stderr.count("\n") == 1
    assert not (tmp_path / "out.onnx").exists()


@pytest.fixture
def traced_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goes to the second exporter at once, which takes a moment instead of half a minute."""

    def refuse(_network: torch.nn.Module, _example: torch.Tensor) -> onnx.ModelProto:
        raise ConfigError("not now")

    monkeypatch.setattr(export, "_by_torch_export", refuse)


@pytest.mark.usefixtures("traced_only")
def test_relative_paths_are_those_of_the_user(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the checkout's code runs in its own folder; other labels count, and without a check none is told."""
    folder = checkout.config.parent
    monkeypatch.chdir(folder)
    (folder / "labels.txt").write_text("a\nb\nc\n")
    relative = Checkout(Path("YOWOv3"), Path("config.yaml"), Path("weights.pth"))
    told = call(*relative.options(Path("out/relative.onnx")), "--no-check", "--labels", "labels.txt")
    assert told.exit_code == 0, told.output
    assert told.stdout == (
        f"{folder}/out/relative.onnx: 3 labels, clips of 16 frames, 32 x 32 px, float32; name it in stage1.model_path\n"
    )
    written = Exported(folder / "out/relative.onnx", told.output, half=False)
    assert json.loads(written.metadata()["labels"]) == ["a", "b", "c"]


@pytest.mark.usefixtures("traced_only")
@pytest.mark.fault("A2")
def test_a_file_that_would_be_wrong_is_not_written(tmp_path: Path) -> None:
    """A step that tracing freezes shows up in the comparison."""
    deceiving = write_checkout(tmp_path, extra="deep = deep + 1.0 if clips.abs().sum() > 0 else deep")
    told = call(*deceiving.options(tmp_path / "out.onnx"))
    assert told.exit_code == 2
    assert "error: the file differs from the network at batch 1" in told.stderr
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.usefixtures("traced_only")
def test_a_place_that_cannot_be_written_is_told(checkout: Checkout, tmp_path: Path) -> None:
    """With the option and the reason."""
    (tmp_path / "file").write_text("")
    told = call(*checkout.options(tmp_path / "file" / "out.onnx"))
    assert told.exit_code == 2
    assert f"error: --out {tmp_path}/file/out.onnx cannot be written" in told.stderr


def test_without_its_extras_it_says_which_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line, as of any mistake in usage."""
    monkeypatch.setitem(sys.modules, "onnx", None)
    monkeypatch.delitem(sys.modules, "serving.yowov3.command")
    monkeypatch.delattr(serving.yowov3, "command")
    told = CliRunner().invoke(cli.app, ["export-yowov3", "--help"])
    assert told.exit_code == 2
    assert told.stderr == "error: export-yowov3 needs onnx; install the extras cpu and bench\n"


def test_an_option_too_few_is_a_mistake_in_usage() -> None:
    """The rest of the command line tells which."""
    told = call("--repo", ".")
    assert told.exit_code == 2
    assert "--config" in told.stderr
