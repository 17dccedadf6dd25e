"""`zroact up` with a watch on its event loop, for the benchmark of jobs: `python -m serving.bench.job_host CONFIG`.

One JSON object a line on standard output: `{"url": …}` when it is ready, and the loop's lag when it ends. A line on
standard input begins the watch, the next one or the end of the input ends the process.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from pathlib import Path
from typing import Any

from pipeline_ver2.command import LOG_FORMAT
from pipeline_ver2.config import Config, load_config
from pipeline_ver2.supervisor import Supervisor
from serving.bench.loop_lag import sampled_lag
from serving.server import job_server, reserved


async def host(config: Config) -> None:
    """Serve until the input says that it is enough."""
    with reserved(config) as (listener, url):
        async with Supervisor(config), job_server(config, listener):
            _say({"url": url})
            await asyncio.to_thread(sys.stdin.readline)
            async with sampled_lag() as lag:
                await asyncio.to_thread(sys.stdin.readline)
            _say({"loop_lag": lag.as_dict()})


def _say(content: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(content) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format=LOG_FORMAT)
    asyncio.run(host(load_config(Path(sys.argv[1]))))
