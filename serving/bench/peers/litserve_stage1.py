"""Stage 1 on LitServe, as its documentation shows it: a `LitAPI` with batching, the body taken as it is.

No `from __future__ import annotations` here: LitServe hands the annotations of `decode_request` to FastAPI as they are.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import litserve
import numpy as np
from fastapi import Body
from numpy.typing import NDArray

from pipeline_ver2.config import load_config
from serving.bench.peers.stage1_model import PeerDetector, Reply, Way, read_arguments

RawBody = Annotated[bytes, Body(media_type="application/octet-stream")]


class Stage1API(litserve.LitAPI):
    """Requests of several clips; the worker is given up to `together` requests at once."""

    def __init__(self, config_file: Path, way: Way, *, together: int, wait_s: float) -> None:
        super().__init__(max_batch_size=together, batch_timeout=wait_s)
        self._config_file, self._way = config_file, way

    def setup(self, device: str) -> None:
        """Load the detector, in the worker."""
        self._detector = PeerDetector(self._config_file, self._way)

    def decode_request(self, request: RawBody) -> NDArray[np.uint8]:
        """Raw pixels to clips."""
        return self._detector.read(request)

    def batch(self, inputs: Sequence[NDArray[np.uint8]]) -> Sequence[NDArray[np.uint8]]:
        """Requests stay apart: they may be of different length."""
        return inputs

    def predict(self, requests: Sequence[NDArray[np.uint8]]) -> list[Reply]:
        """One reply per request."""
        return self._detector.answer(requests)

    def unbatch(self, output: list[Reply]) -> list[Reply]:
        """They are apart already."""
        return output


def main() -> int:
    """Serve until told to stop."""
    arguments = read_arguments()
    wait_s = load_config(arguments.config, environ={}).stage1.max_wait_ms / 1e3
    api = Stage1API(arguments.config, arguments.way, together=arguments.together, wait_s=wait_s)
    server = litserve.LitServer(api, accelerator="cpu", timeout=60, fast_queue=True)
    server.run(host="127.0.0.1", port=arguments.port, generate_client_file=False, log_level="warning")
    return 0


if __name__ == "__main__":
    sys.exit(main())
