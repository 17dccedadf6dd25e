"""The Stage 1 detector as a model of Triton's Python backend. Written from its documentation, never run in Triton.

The package must be installed in the Python of the backend. The model file, its labels and the provider are those of
the configuration, found as the daemon finds it: `ZROACT_CONFIG`, `ZROACT_STAGE1__MODEL_PATH` and so on.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import triton_python_backend_utils as pb_utils

from pipeline_ver2.config import load_config
from pipeline_ver2.errors import ZroactError
from serving.workers.stage1_model import load_detector
from serving.workers.stage1_oip import fraction, tensors_of


class TritonPythonModel:
    """What Triton calls."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the detector; refuse a config.pbtxt that does not fit it."""
        try:
            self._config = load_config().stage1
            self._detector = load_detector(self._config)
        except ZroactError as error:
            raise pb_utils.TritonModelException(str(error)) from error
        info = self._detector.info
        clips = next(entry for entry in json.loads(args["model_config"])["input"] if entry["name"] == "clips")
        told, fits = [int(side) for side in clips["dims"]], [info.clip_length, *info.image_size, 3]
        if any(side not in {-1, fit} for side, fit in zip(told, fits, strict=True)):
            raise pb_utils.TritonModelException(f"config.pbtxt: clips has dims {told}, {info.source} takes {fits}")

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """One response per request, in their order; one that fails fails alone."""
        return [self._respond(request) for request in requests]

    def finalize(self) -> None:
        """Let go of the detector."""
        self._detector.close()

    def _respond(self, request: Any) -> Any:  # noqa: ANN401 - Triton's own types exist only in its backend
        try:
            parameters = json.loads(request.parameters() or "{}")
            threshold = fraction(parameters, "threshold", self._config.threshold)
            nms_iou = fraction(parameters, "nms_iou", self._config.nms_iou)
            clips = pb_utils.get_input_tensor_by_name(request, "clips").as_numpy()
            outputs = self._detector.detect(clips, threshold, nms_iou)
        except ZroactError as error:
            return pb_utils.InferenceResponse(output_tensors=[], error=pb_utils.TritonError(str(error)))
        tensors = tensors_of(outputs, least=1)  # not every client takes a tensor without a value
        return pb_utils.InferenceResponse(
            output_tensors=[pb_utils.Tensor(name, array) for name, array in tensors.items()]
        )
