"""Stage 1 on mosec, as its documentation shows it: one `Worker` that reads the body itself, with dynamic batching."""

from __future__ import annotations

import math
import sys

import numpy as np
from mosec import Server, Worker
from numpy.typing import NDArray

from pipeline_ver2.config import load_config
from serving.bench.peers.stage1_model import PeerDetector, Reply, read_arguments


class Stage1Worker(Worker):
    """Requests of several clips; `forward` is given up to `max_batch_size` requests at once."""

    def __init__(self) -> None:
        super().__init__()
        arguments = read_arguments()  # a worker's process has the server's command line
        self._detector = PeerDetector(arguments.config, arguments.way)

    def deserialize(self, data: bytes) -> NDArray[np.uint8]:
        """Raw pixels to clips."""
        return self._detector.read(data)

    def forward(self, data: list[NDArray[np.uint8]]) -> list[Reply]:
        """One reply per request."""
        return self._detector.answer(data)


def main() -> int:
    """Serve until told to stop. Port, address, limits and log level are mosec's own arguments."""
    arguments = read_arguments()
    wait_ms = load_config(arguments.config, environ={}).stage1.max_wait_ms
    server = Server()
    server.append_worker(Stage1Worker, max_batch_size=arguments.together, max_wait_time=max(1, math.ceil(wait_ms)))
    server.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
