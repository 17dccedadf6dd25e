"""A folder in which `zroact up` is run, and its API."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp

from pipeline_ver2.results import JOURNAL_NAME, SlotRecord

ZROACT = Path(sys.executable).with_name("zroact")
PATIENCE_S = 240


def process_of(stage: str, port: int) -> int:
    """The id of the daemon that was started for this port."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                command = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:  # it has just ended
                continue
            if f"serving.workers.{stage}_server".encode() in command and str(port).encode() in command:
                return int(folder.name)
    raise LookupError(f"no daemon of {stage} on port {port}")


class Server:
    """A folder in which `zroact up` is run, and its API."""

    def __init__(
        self, folder: Path, ports: tuple[int, int, int], stage2_s: float = 0.2, **sections: Mapping[str, Any]
    ) -> None:
        self.folder = folder
        self.url = f"http://127.0.0.1:{ports[2]}"
        content: dict[str, dict[str, Any]] = {
            "stage1": {"port": ports[0], "engine": "emulated", "emulated": {"service_s": 0.05}},
            "stage2": {"port": ports[1], "engine": "emulated", "emulated": {"service_s": stage2_s}},
            "serving": {"port": ports[2]},
        }
        for name, settings in sections.items():
            content.setdefault(name, {}).update(settings)
        (folder / "config.json").write_text(json.dumps(content))

    @contextmanager
    def run(self, command: str = "up", *options: str) -> Iterator[subprocess.Popen[str]]:
        """`zroact up`, or another command; given when it is ready."""
        with (self.folder / f"{command}.log").open("a") as log:
            process = subprocess.Popen(
                [ZROACT, command, *options], cwd=self.folder, stdout=subprocess.PIPE, stderr=log, text=True
            )
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("ready: "), (self.folder / f"{command}.log").read_text()
            yield process
        finally:
            process.terminate()
            try:
                process.wait(PATIENCE_S)
            finally:
                process.kill()
                process.communicate()

    async def post(self, video: Path, **options: Any) -> str:  # noqa: ANN401 - values of any option
        """Send a video; the id of its job."""
        form = aiohttp.FormData({"options": json.dumps({"annotate": False, **options})})
        form.add_field("video", video.read_bytes(), filename=video.name)  # noqa: ASYNC240 - a small file
        async with aiohttp.ClientSession() as session, session.post(f"{self.url}/jobs", data=form) as reply:
            assert reply.status == 202, await reply.text()
            return str((await reply.json())["id"])

    async def get(self, path: str, method: str = "GET") -> Any:  # noqa: ANN401 - any JSON
        """The JSON of a path."""
        async with aiohttp.ClientSession() as session, session.request(method, self.url + path) as reply:
            assert reply.status == 200, await reply.text()
            return await reply.json()

    async def events(self, job_id: str, after: int = 0) -> AsyncIterator[tuple[str, Any, int]]:
        """Kind, data and id of each event, 0 for events without one, until the end or the cut."""
        headers = {"Last-Event-ID": str(after)}
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{self.url}/jobs/{job_id}/events", headers=headers) as reply,
        ):
            fields: dict[str, str] = {}
            async for line in reply.content:
                name, _, value = line.decode().rstrip("\n").partition(": ")
                if name not in {"", ":"}:
                    fields[name] = value
                elif fields:
                    yield fields["event"], json.loads(fields["data"]), int(fields.get("id", 0))
                    fields = {}

    async def until(self, job_id: str, kind: str, *states: str) -> Any:  # noqa: ANN401 - any JSON
        """The data of the first event of a kind, with one of these states where given."""
        async with asyncio.timeout(PATIENCE_S):
            async for found, data, _ in self.events(job_id):
                if found == kind and (not states or data["state"] in states):
                    return data
        raise AssertionError(f"the events of {job_id} ended without {kind} {states}")

    def slots(self, job_id: str) -> Counter[int]:
        """How many records each slot has in the journal of a job."""
        lines = (self.folder / "data/jobs" / job_id / JOURNAL_NAME).read_text().splitlines()
        return Counter(SlotRecord.model_validate_json(line).index for line in lines if '"type":"slot"' in line)
