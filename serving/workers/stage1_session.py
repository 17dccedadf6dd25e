"""A session of ONNX Runtime for a YOWOv3 export: provider and its options, threads, fused pixels, one call to run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

from pipeline_ver2.config import Stage1Config
from pipeline_ver2.errors import ConfigError
from serving.workers.cpus import usable_cpus
from serving.workers.stage1_contract import Contract
from serving.workers.stage1_pixels import PIXELS, fuse

logger = logging.getLogger(__name__)

CPU, CUDA, TENSORRT = "CPUExecutionProvider", "CUDAExecutionProvider", "TensorrtExecutionProvider"

_PROVIDERS: Mapping[str, tuple[str, ...]] = {
    "cpu": (CPU,),
    "cuda": (CUDA, CPU),
    "tensorrt": (TENSORRT, CUDA, CPU),
}
_WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"


@dataclass(frozen=True, slots=True)
class Loaded:
    """A session, ready to run.

    Attributes:
        run: Takes the input `(B, 3, T, H, W)`, uint8 planes if fused, else normalised floats of the model's precision;
            gives the output `(B, 4 + C, N)`, which stays the caller's.
        unfused: Why the pixels are not scaled inside the session; None if they are.
    """

    run: Callable[[NDArray[Any]], NDArray[np.floating]]
    provider: str
    threads: int
    unfused: str | None


def open_session(path: Path, model: onnx.ModelProto, contract: Contract, config: Stage1Config) -> Loaded:
    """Load a file that was read and checked.

    Raises:
        ConfigError: ONNX Runtime cannot load it, or the provider is not to be had; the message names the key.
    """
    providers = choose_providers(config)
    if providers[0] != CPU:
        ort.preload_dlls()  # CUDA's libraries may lie in Python packages, where the loader does not look
    session, unfused = _open_fused(path, model, contract, providers, config)
    if session is None:
        logger.warning("the pixels are scaled in numpy, which is slower: %s", unfused)
        session = _open(path, path, providers, config)
    got = session.get_providers()[0]
    if got != providers[0]:
        if config.provider != "auto":
            raise ConfigError(f"stage1.provider: {config.provider} was asked for, but only {got} could be started")
        logger.warning("stage1.provider: auto wanted %s, but only %s could be started", providers[0], got)
    names = (PIXELS if unfused is None else contract.input.name, contract.output.name)
    run = plain_run(session, *names) if got == CPU else BoundRun(session, *names, device="cuda")
    return Loaded(run, got, _threads(config), unfused)


def choose_providers(config: Stage1Config, available: Sequence[str] | None = None) -> tuple[str, ...]:
    """The providers to ask for, the wanted one first.

    Raises:
        ConfigError: This ONNX Runtime does not have the one that was asked for.
    """
    available = ort.get_available_providers() if available is None else available
    if config.provider == "auto":
        return _PROVIDERS["cuda" if CUDA in available else "cpu"]
    wanted = _PROVIDERS[config.provider]
    if wanted[0] not in available:
        raise ConfigError(
            f"stage1.provider: {config.provider} needs {wanted[0]}, this ONNX Runtime has {', '.join(available)}"
        )
    return tuple(name for name in wanted if name in available)


def provider_options(provider: str, config: Stage1Config) -> dict[str, Any]:
    """The options of a provider.

    CUDA's exhaustive search for algorithms would run for seconds at every size, and its arena would grow by doubling,
    beyond what a neighbour on the same card has left.
    """
    limit = None if config.gpu_mem_limit_gb is None else int(config.gpu_mem_limit_gb * 2**30)
    if provider == CUDA:
        options: dict[str, Any] = {
            "cudnn_conv_algo_search": "HEURISTIC",
            "arena_extend_strategy": "kSameAsRequested",
        }
        return options if limit is None else {**options, "gpu_mem_limit": limit}
    return {"trt_max_workspace_size": limit} if provider == TENSORRT and limit is not None else {}


def plain_run(session: ort.InferenceSession, given: str, output: str) -> Callable[[NDArray[Any]], NDArray[np.floating]]:
    """Run from and to the memory of the CPU."""
    return lambda batch: np.asarray(session.run([output], {given: batch})[0])


class BoundRun:
    """Run with one input on the device for every batch size, filled anew each time, so that nothing is allocated."""

    def __init__(self, session: ort.InferenceSession, given: str, output: str, *, device: str) -> None:
        self._session, self._given, self._output, self._device = session, given, output, device
        self._inputs: dict[int, ort.OrtValue] = {}

    def __call__(self, batch: NDArray[Any]) -> NDArray[np.floating]:
        """See `Loaded.run`."""
        value = self._inputs.get(len(batch))
        if value is None:
            value = ort.OrtValue.ortvalue_from_shape_and_type(batch.shape, batch.dtype.type, self._device, 0)
            self._inputs[len(batch)] = value
        value.update_inplace(batch)
        binding = self._session.io_binding()
        binding.bind_ortvalue_input(self._given, value)
        binding.bind_output(self._output)
        self._session.run_with_iobinding(binding)
        return np.asarray(binding.copy_outputs_to_cpu()[0])


def one_line(error: Exception) -> str:
    """The message of a foreign error, shortened to one line."""
    return " ".join(str(error).split())[:300]


def _open_fused(
    path: Path, model: onnx.ModelProto, contract: Contract, providers: Sequence[str], config: Stage1Config
) -> tuple[ort.InferenceSession | None, str | None]:
    """A session that takes pixels; or None and why there is none."""
    try:
        fused = fuse(model, contract)
    except ValueError as error:  # over protobuf's two gigabytes; larger files keep their weights beside them
        return None, f"the file cannot be rewritten: {one_line(error)}"
    try:
        return _open(path, fused, providers, config), None
    except ConfigError as error:
        return None, str(error)


def _open(path: Path, source: Path | bytes, providers: Sequence[str], config: Stage1Config) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = _threads(config)
    options.inter_op_num_threads = 1
    # Waiting threads sleep instead of spinning: the cores are shared with decoding and perhaps with Stage 2.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry(_WEIGHTS_FOLDER, str(path.parent))
    options.log_severity_level = 3
    chosen = [(name, provider_options(name, config)) for name in providers]
    try:
        return ort.InferenceSession(source, options, providers=chosen)
    except Exception as error:  # ONNX Runtime's errors have no base of their own
        raise ConfigError(f"stage1.model_path: {path} cannot be loaded: {one_line(error)}") from error


def _threads(config: Stage1Config) -> int:
    return config.threads or usable_cpus()
