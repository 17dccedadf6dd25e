"""What both peers put behind their server: one detector in one worker, requests of raw pixels, replies in JSON.

Each peer is measured in two ways. `numpy`: the exported file in a session of ONNX Runtime, frames normalised with numpy
before it, as its users would write it. `session`: the daemon's own session with the daemon's own preparation. Threads,
thresholds, suppression of doubles and the form of the replies are the same in both, and the daemon's.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from pipeline_ver2.config import Stage1Config, load_config
from pipeline_ver2.findings import ClipFindings
from serving.workers.cpus import usable_cpus
from serving.workers.postprocess import ClipOutput, postprocess
from serving.workers.stage1_model import EMBEDDED_MODEL, OnnxDetector

Way = Literal["numpy", "session"]
Reply = dict[str, list[dict[str, Any]]]

_MEAN = np.array([0.485, 0.456, 0.406], dtype=np.float32)
_STD = np.array([0.229, 0.224, 0.225], dtype=np.float32)
_PROVIDERS = ("CUDAExecutionProvider", "CPUExecutionProvider")


@dataclass(frozen=True, slots=True)
class PeerArguments:
    """The command line of a peer. `together` is how many requests its worker may be given at once, 2 at least."""

    config: Path
    port: int
    way: Way
    together: int

    def as_list(self) -> list[str]:
        """As arguments."""
        return [
            *("--config", str(self.config), "--port", str(self.port)),
            *("--way", self.way, "--together", str(self.together)),
        ]


def read_arguments(argv: Sequence[str] | None = None) -> PeerArguments:
    """Read the command line; what the server's own library wants of it is left to that."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--way", choices=get_args(Way), required=True)
    parser.add_argument("--together", type=int, required=True)
    known, _ = parser.parse_known_args(argv)
    return PeerArguments(known.config, known.port, known.way, known.together)


class NumpyDetector:
    """The export as it is: a session of ONNX Runtime, and numpy before it."""

    def __init__(self, config: Stage1Config) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = thread_count(config)
        options.inter_op_num_threads = 1
        # The daemon's setting. ONNX Runtime's own, to spin, costs these servers a tenth: it takes the cores from them.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        providers = [name for name in _PROVIDERS if name in ort.get_available_providers()]
        self._session = ort.InferenceSession(config.model_path or EMBEDDED_MODEL, options, providers=providers)
        self._input = self._session.get_inputs()[0]
        self.image_size: tuple[int, int] = tuple(self._input.shape[3:])

    def detect(self, clips: NDArray[np.uint8], threshold: float, nms_iou: float) -> list[ClipOutput]:
        """One output per clip of `(B, T, H, W, 3)` uint8 RGB."""
        normalised = (clips.astype(np.float32) / 255 - _MEAN) / _STD
        batch = np.ascontiguousarray(normalised.transpose(0, 4, 1, 2, 3))
        (output,) = self._session.run(None, {self._input.name: batch})
        return postprocess(output, self.image_size, threshold, nms_iou)


class PeerDetector:
    """The detector of a peer's worker, for several requests at once."""

    def __init__(self, config_file: Path, way: Way) -> None:
        self._config = load_config(config_file, environ={}).stage1
        if way == "session":
            detector = OnnxDetector(self._config)
            self._detect, self._image_size = detector.detect, detector.info.image_size
        else:
            plain = NumpyDetector(self._config)
            self._detect, self._image_size = plain.detect, plain.image_size

    def read(self, body: bytes) -> NDArray[np.uint8]:
        """`(B, T, H, W, 3)` uint8 RGB out of a request's body, which is nothing but its bytes."""
        return np.frombuffer(body, np.uint8).reshape(-1, self._config.clip_length, *self._image_size, 3)

    def answer(self, requests: Sequence[NDArray[np.uint8]]) -> list[Reply]:
        """The replies to requests of `(B, T, H, W, 3)` each, run as one batch."""
        clips = requests[0] if len(requests) == 1 else np.concatenate(requests)
        outputs = iter(self._detect(clips, self._config.threshold, self._config.nms_iou))
        return [{"clips": [_told(next(outputs)) for _ in request]} for request in requests]


def read_reply(body: bytes) -> list[ClipFindings]:
    """What a peer found, as the daemon's clients have it."""
    clips = json.loads(body)["clips"]
    return [
        ClipFindings(np.asarray(clip["boxes"], np.float32).reshape(-1, 4), np.asarray(clip["scores"], np.float32))
        for clip in clips
    ]


def thread_count(config: Stage1Config) -> int:
    """Threads of an engine: the daemon's rule."""
    return config.threads or usable_cpus()


def _told(output: ClipOutput) -> dict[str, Any]:
    return {"boxes": output.findings.boxes.tolist(), "scores": output.findings.scores.tolist()}
