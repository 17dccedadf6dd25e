"""The detectors behind Stage 1: a YOWOv3 file in ONNX Runtime, and an emulation with a fixed service time."""

from __future__ import annotations

import json
import logging
import math
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from pipeline_ver2.config import Stage1Config
from pipeline_ver2.errors import ConfigError, EngineFailed
from serving import demo
from serving.workers.postprocess import BOX_SIDES, ClipOutput, failed, postprocess

logger = logging.getLogger(__name__)

EMBEDDED_MODEL = Path(__file__).parent.parent / "demo" / "models" / "detector.onnx"
EMULATED_LABELS = ("stand", "walk", "run", "jump", "wave", "fall")
EMULATED_SIZE = (224, 224)
EMULATED_NOTE = "emulated: a fixed service time and made-up detections, no model"

_MEAN = np.asarray([0.485, 0.456, 0.406], np.float32)  # of ImageNet, RGB
_STD = np.asarray([0.229, 0.224, 0.225], np.float32)
_PROVIDERS: Mapping[str, tuple[str, ...]] = {
    "cpu": ("CPUExecutionProvider",),
    "cuda": ("CUDAExecutionProvider", "CPUExecutionProvider"),
    "tensorrt": ("TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"),
}
_INPUT_SHAPE = "[B,3,T,H,W] float32 with B dynamic"
_OUTPUT_SHAPE = "[B,4+C,N] float32"


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a detector is. `image_size` is (height, width) of its input in pixels, `note` a caution for readers."""

    platform: str
    provider: str
    source: str
    labels: tuple[str, ...]
    clip_length: int
    image_size: tuple[int, int]
    note: str | None = None


class Detector(Protocol):
    """Finds persons and actions in clips. Not thread-safe: one call at a time."""

    @property
    def info(self) -> ModelInfo:
        """What it is."""

    def detect(self, clips: NDArray[np.uint8], threshold: float, nms_iou: float) -> list[ClipOutput]:
        """One output per clip of `(B, T, H, W, 3)` uint8 RGB at the model's size; boxes belong to the last frame.

        Raises:
            EngineFailed: No clip could be worked on.
        """

    def close(self) -> None:
        """Let a call that is running end soon."""


def load_detector(config: Stage1Config) -> Detector:
    """Load the configured detector and run one clip through it.

    Raises:
        ConfigError: The model, its labels or the provider do not fit; the message names the key.
    """
    return EmulatedDetector(config) if config.engine == "emulated" else OnnxDetector(config)


def preprocess(clips: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Scale to 0..1, then by ImageNet's mean and deviation.

    Args:
        clips: `(B, T, H, W, 3)` uint8 RGB.

    Returns:
        `(B, 3, T, H, W)` float32, channels in the order R, G, B.
    """
    levels = np.arange(256, dtype=np.float32)[:, None] / 255
    table = (levels - _MEAN) / _STD
    count, length, height, width, _ = clips.shape
    batch = np.empty((count, 3, length, height, width), np.float32)
    for channel in range(3):
        # mode="clip" lets numpy write straight into `out`; uint8 cannot be out of range
        np.take(table[:, channel].copy(), clips[..., channel], out=batch[:, channel], mode="clip")
    return batch


class OnnxDetector:
    """A YOWOv3 export with a dynamic batch."""

    def __init__(self, config: Stage1Config) -> None:
        path = config.model_path or EMBEDDED_MODEL
        self._session = _open_session(path, config)
        metadata = self._session.get_modelmeta().custom_metadata_map
        length, image_size = _read_input(self._session, metadata, config)
        self.info = ModelInfo(
            platform="onnxruntime_onnx",
            provider=self._session.get_providers()[0],
            source=path.name,
            labels=_read_labels(config, metadata),
            clip_length=length,
            image_size=image_size,
            note=demo.NOTE if config.model_path is None else None,
        )
        self._input = self._session.get_inputs()[0].name
        self._output = self._session.get_outputs()[0].name
        self._warm_up(config)

    def detect(self, clips: NDArray[np.uint8], threshold: float, nms_iou: float) -> list[ClipOutput]:
        """See `Detector.detect`. If the batch breaks the engine, each clip is tried alone."""
        try:
            return self._run(clips, threshold, nms_iou)
        except EngineFailed as error:
            if len(clips) == 1:
                raise
            logger.warning("a batch of %d failed, its clips are tried one by one: %s", len(clips), error)
        outputs, errors = [], []
        for number in range(len(clips)):
            try:
                outputs += self._run(clips[number : number + 1], threshold, nms_iou)
            except EngineFailed as error:
                outputs.append(failed(str(error), labels=len(self.info.labels)))
                errors.append(error)
        if len(errors) == len(clips):
            raise errors[0]
        return outputs

    def close(self) -> None:
        """A run cannot be cut short; it ends within its own time."""

    def _run(self, clips: NDArray[np.uint8], threshold: float, nms_iou: float) -> list[ClipOutput]:
        return postprocess(self._raw(preprocess(clips)), self.info.image_size, threshold, nms_iou)

    def _raw(self, batch: NDArray[np.float32]) -> NDArray[np.float32]:
        try:
            output = np.asarray(self._session.run([self._output], {self._input: batch})[0])
        except Exception as error:  # ONNX Runtime's errors have no base of their own
            raise EngineFailed(f"the model failed on {len(batch)} clip(s): {_one_line(error)}") from error
        rows = BOX_SIDES + len(self.info.labels)
        if output.ndim != 3 or output.shape[:2] != (len(batch), rows):
            raise EngineFailed(f"the model's output has shape {output.shape}, expected ({len(batch)}, {rows}, N)")
        return output

    def _warm_up(self, config: Stage1Config) -> None:
        """Run a grey clip: the first run allocates, and shows whether output and labels fit."""
        source, labels = f"stage1.model_path: {self.info.source}", self.info.labels
        shape = self._session.get_outputs()[0].shape
        if len(shape) == 3 and isinstance(shape[1], int) and shape[1] - BOX_SIDES != len(labels):
            found = shape[1] - BOX_SIDES
            raise ConfigError(f"stage1.labels_path: {len(labels)} labels, but {self.info.source} has {found} classes")
        grey = np.full((1, self.info.clip_length, *self.info.image_size, 3), 128, np.uint8)
        try:
            (output,) = self._run(grey, config.threshold, config.nms_iou)
        except EngineFailed as error:
            raise ConfigError(f"{source}: {error}") from error
        if output.problem is not None:
            raise ConfigError(f"{source}: {output.problem}")


class EmulatedDetector:
    """Sleeps like a detector would work, up to `batch_size` clips in one go; detections depend on the pixels only."""

    def __init__(self, config: Stage1Config) -> None:
        self.info = ModelInfo(
            platform="emulated",
            provider="emulated",
            source="emulated",
            labels=_labels_of_file(config.labels_path) if config.labels_path else EMULATED_LABELS,
            clip_length=config.clip_length,
            image_size=EMULATED_SIZE,
            note=EMULATED_NOTE,
        )
        self._batch_size = config.batch_size
        self._service_s = config.emulated.service_s
        self._closed = threading.Event()

    def detect(self, clips: NDArray[np.uint8], threshold: float, nms_iou: float) -> list[ClipOutput]:
        """See `Detector.detect`."""
        due = time.monotonic() + self._service_s * math.ceil(len(clips) / self._batch_size)
        outputs = postprocess(np.stack([self._raw(clip) for clip in clips]), EMULATED_SIZE, threshold, nms_iou)
        self._closed.wait(max(0.0, due - time.monotonic()))
        return outputs

    def close(self) -> None:
        """Wake a sleeping call."""
        self._closed.set()

    def _raw(self, clip: NDArray[np.uint8]) -> NDArray[np.float32]:
        """One box in the middle, `(4 + C, 1)`; its label depends on the brightness of the last frame."""
        height, width = EMULATED_SIZE
        raw = np.full((BOX_SIDES + len(self.info.labels), 1), 0.05, np.float32)
        raw[:BOX_SIDES, 0] = width / 2, height / 2, width / 4, height / 2
        raw[BOX_SIDES + int(clip[-1].mean()) % len(self.info.labels)] = 0.9
        return raw


def _open_session(path: Path, config: Stage1Config) -> ort.InferenceSession:
    if not path.is_file():
        raise ConfigError(f"stage1.model_path: {path} is no file")
    options = ort.SessionOptions()
    options.intra_op_num_threads = config.threads or len(os.sched_getaffinity(0))
    options.inter_op_num_threads = 1
    # Waiting threads sleep instead of spinning: the cores are shared with decoding and perhaps with Stage 2.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    providers = _providers(config)
    if providers[0] != "CPUExecutionProvider":
        ort.preload_dlls()  # CUDA's libraries may lie in Python packages, where the loader does not look
    try:
        session = ort.InferenceSession(path, options, providers=[(name, _options(name, config)) for name in providers])
    except Exception as error:  # ONNX Runtime's errors have no base of their own
        raise ConfigError(f"stage1.model_path: {path} cannot be loaded: {_one_line(error)}") from error
    got = session.get_providers()[0]
    if got != providers[0]:
        if config.provider != "auto":
            raise ConfigError(f"stage1.provider: {config.provider} was asked for, but only {got} could be started")
        logger.warning("stage1.provider: auto wanted %s, but only %s could be started", providers[0], got)
    return session


def _providers(config: Stage1Config) -> tuple[str, ...]:
    available = ort.get_available_providers()
    if config.provider == "auto":
        return _PROVIDERS["cuda" if "CUDAExecutionProvider" in available else "cpu"]
    wanted = _PROVIDERS[config.provider]
    if wanted[0] not in available:
        raise ConfigError(
            f"stage1.provider: {config.provider} needs {wanted[0]}, this ONNX Runtime has {', '.join(available)}"
        )
    return tuple(name for name in wanted if name in available)


def _options(provider: str, config: Stage1Config) -> dict[str, Any]:
    if provider != "CUDAExecutionProvider" or config.gpu_mem_limit_gb is None:
        return {}
    limit = int(config.gpu_mem_limit_gb * 2**30)
    return {"gpu_mem_limit": limit, "arena_extend_strategy": "kSameAsRequested"}


def _read_input(
    session: ort.InferenceSession, metadata: Mapping[str, str], config: Stage1Config
) -> tuple[int, tuple[int, int]]:
    """`(clip_length, (height, width))` of a file this daemon can run; free sides are named in its metadata."""
    inputs, output = session.get_inputs(), session.get_outputs()[0]
    given = inputs[0]
    expected = f"stage1.model_path: expected one input {_INPUT_SHAPE}"
    if len(inputs) != 1 or given.type != "tensor(float)" or len(given.shape) != 5 or given.shape[1] != 3:
        raise ConfigError(f"{expected}, found {len(inputs)}, the first {given.shape} {given.type}")
    if isinstance(given.shape[0], int):
        raise ConfigError(f"{expected}, found a fixed batch of {given.shape[0]}: {given.shape}")
    if output.type != "tensor(float)" or len(output.shape) != 3:
        raise ConfigError(f"stage1.model_path: expected an output {_OUTPUT_SHAPE}, found {output.shape} {output.type}")
    told = [_metadata_json(metadata, "clip_length"), *_pair(_metadata_json(metadata, "image_size"))]
    sides = [side if isinstance(side, int) else known for side, known in zip(given.shape[2:], told, strict=True)]
    whole = [side for side in sides if isinstance(side, int) and side > 0]
    if len(whole) != len(sides):
        raise ConfigError(
            f"stage1.model_path: the input {given.shape} leaves sides open that the metadata "
            "(clip_length, image_size) does not name"
        )
    length, height, width = whole
    if length != config.clip_length:
        raise ConfigError(f"stage1.clip_length: {config.clip_length}, but the model takes clips of {length} frames")
    return length, (height, width)


def _pair(value: object) -> tuple[object, object]:
    return (value[0], value[1]) if isinstance(value, list) and len(value) == 2 else (None, None)


def _metadata_json(metadata: Mapping[str, str], key: str) -> object:
    try:
        value: object = json.loads(metadata.get(key, "null"))
    except ValueError as error:
        raise ConfigError(f"stage1.model_path: the `{key}` of its metadata is not valid JSON: {error}") from error
    return value


def _read_labels(config: Stage1Config, metadata: Mapping[str, str]) -> tuple[str, ...]:
    if config.labels_path is not None:
        return _labels_of_file(config.labels_path)
    if "labels" not in metadata:
        raise ConfigError("stage1.labels_path: must be set, since the model file names no labels")
    return _checked(_metadata_json(metadata, "labels"), "stage1.model_path: the `labels` of its metadata")


def _labels_of_file(path: Path) -> tuple[str, ...]:
    said = f"stage1.labels_path: {path}"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{said} cannot be read: {error}") from error
    if not text.lstrip().startswith("["):
        return _checked([line.strip() for line in text.splitlines() if line.strip()], said)
    try:
        return _checked(json.loads(text), said)
    except ValueError as error:
        raise ConfigError(f"{said} is not valid JSON: {error}") from error


def _checked(names: object, said: str) -> tuple[str, ...]:
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise ConfigError(f"{said} must be a list of names")
    if not names or len(set(names)) != len(names):
        raise ConfigError(f"{said} must hold at least one name and none twice")
    return tuple(names)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
