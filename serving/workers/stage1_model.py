"""The detector behind Stage 1: any YOWOv3 export in ONNX Runtime."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline_ver2.config import Stage1Config
from pipeline_ver2.errors import ConfigError, EngineFailed
from serving import demo
from serving.workers.postprocess import BOX_SIDES, ClipOutput, postprocess
from serving.workers.stage1_contract import Contract, metadata_of, read_contract, read_model
from serving.workers.stage1_emulated import EmulatedDetector
from serving.workers.stage1_engine import GREY, Detector, ModelInfo, RawBatch, RawClips, findings
from serving.workers.stage1_labels import read_labels
from serving.workers.stage1_pixels import normalise_into, planes_into, preprocess
from serving.workers.stage1_session import CPU, Loaded, one_line, open_session
from serving.workers.stage1_sizes import BatchSizes, batch_sizes

__all__ = ["EMBEDDED_MODEL", "Detector", "ModelInfo", "OnnxDetector", "load_detector", "preprocess"]

logger = logging.getLogger(__name__)

EMBEDDED_MODEL = Path(__file__).parent.parent / "demo" / "models" / "detector.onnx"


def load_detector(config: Stage1Config) -> OnnxDetector | EmulatedDetector:
    """Load the configured detector and run clips through it.

    Raises:
        ConfigError: The model, its labels or the provider do not fit; the message names the key.
    """
    return EmulatedDetector(config) if config.engine == "emulated" else OnnxDetector(config)


class OnnxDetector:
    """A YOWOv3 export of any precision, batch, clip length, size and number of classes."""

    def __init__(self, config: Stage1Config) -> None:
        path = config.model_path or EMBEDDED_MODEL
        model = read_model(path)
        contract = read_contract(model, config)
        labels = read_labels(config.labels_path, metadata_of(model))
        if contract.classes not in {None, len(labels)}:
            found = f"{len(labels)} labels, but {path.name} has {contract.classes} classes"
            raise ConfigError(f"stage1.labels_path: {found}")
        loaded = open_session(path, model, contract, config)
        self._loaded = loaded
        self._sizes = batch_sizes(contract.batch, config.max_batch, on_cpu=loaded.provider == CPU)
        kind = np.dtype(np.uint8) if loaded.unfused is None else contract.input.dtype
        sides = (3, contract.clip_length, *contract.image_size)
        self._batch: NDArray[Any] = np.full((self._sizes.largest, *sides), GREY, kind)
        self._write = planes_into if loaded.unfused is None else normalise_into
        self.info = ModelInfo(
            platform="onnxruntime_onnx",
            provider=loaded.provider,
            source=path.name,
            labels=labels,
            clip_length=contract.clip_length,
            image_size=contract.image_size,
            note=demo.NOTE if config.model_path is None else None,
            chunk=contract.batch,
            details=_details(contract, loaded, self._sizes),
        )
        self._warm_up(config)

    def run(self, clips: Sequence[NDArray[np.uint8]]) -> RawBatch:
        """See `Engine.run`."""
        spans = list(self._sizes.spans(len(clips)))
        parts = [self._run_each(clips[start:end]) for start, end in spans]
        padded = sum(self._sizes.padded(end - start) - (end - start) for start, end in spans)
        return RawBatch(parts[0] if len(parts) == 1 else [raw for part in parts for raw in part], padded)

    def detect(self, clips: NDArray[np.uint8], threshold: float, nms_iou: float) -> list[ClipOutput]:
        """See `Detector.detect`. If a batch breaks the engine, each clip is tried alone."""
        return findings(self.run(list(clips)).clips, self.info, threshold, nms_iou)

    def close(self) -> None:
        """A run cannot be cut short; it ends within its own time."""

    def _run_each(self, clips: Sequence[NDArray[np.uint8]]) -> RawClips:
        """Run clips together; if that fails, each alone, to find out whose fault it was."""
        try:
            return self._run(clips, self._sizes.padded(len(clips)))
        except EngineFailed as error:
            if len(clips) == 1:
                return [error]
            logger.warning("a batch of %d failed, its clips are tried one by one: %s", len(clips), error)
        return [raw for clip in clips for raw in self._run_each([clip])]

    def _run(self, clips: Sequence[NDArray[np.uint8]], size: int) -> NDArray[np.floating]:
        """The output `(B, 4 + C, N)` of clips, in a run of `size`; what fills it up is grey, as at the start."""
        for clip, place in zip(clips, self._batch, strict=False):
            self._write(clip, place)
        self._batch[len(clips) : size] = GREY if self._loaded.unfused is None else 0
        try:
            output = self._loaded.run(self._batch[:size])
        except Exception as error:  # ONNX Runtime's errors have no base of their own
            raise EngineFailed(f"the model failed on {len(clips)} clip(s): {one_line(error)}") from error
        rows = BOX_SIDES + len(self.info.labels)
        if output.ndim != 3 or output.shape[:2] != (size, rows):
            raise EngineFailed(f"the model's output has shape {output.shape}, expected ({size}, {rows}, N)")
        return output[: len(clips)]

    def _warm_up(self, config: Stage1Config) -> None:
        """Run grey clips in every size: first runs allocate and search, and show whether output and labels fit."""
        source = f"stage1.model_path: {self.info.source}"
        grey = self.info.grey_clip()
        for size in self._sizes.warmed:
            try:
                outputs = postprocess(
                    self._run([grey] * size, size), self.info.image_size, config.threshold, config.nms_iou
                )
            except EngineFailed as error:
                raise ConfigError(f"{source}: {error}") from error
            if outputs[0].problem is not None:
                raise ConfigError(f"{source}: {outputs[0].problem}")


def _details(contract: Contract, loaded: Loaded, sizes: BatchSizes) -> dict[str, Any]:
    return {
        "input": contract.input.told(),
        "output": contract.output.told(),
        "batch": "free" if contract.batch is None else contract.batch,
        "threads": loaded.threads,
        "warmed_batch_sizes": list(sizes.warmed),
        "pixels": "fused" if loaded.unfused is None else f"numpy: {loaded.unfused}",
    }
