"""Several live streams at once, through the same two stages."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError, model_validator

from pipeline_ver2.config import Config
from pipeline_ver2.config_live import Policy
from pipeline_ver2.config_section import Section, read_json_file
from pipeline_ver2.errors import ConfigError, SourceLost, ZroactError
from pipeline_ver2.job import Job
from pipeline_ver2.live_address import STANDARD_INPUT, LiveSource, has_host, is_live
from pipeline_ver2.main import TimingRecorder
from pipeline_ver2.realtime_pipeline import run_pipeline
from pipeline_ver2.results import Results

log = logging.getLogger(__name__)

_SPANS_KEPT = 20_000


class Stream(Section):
    """One stream. What is left out is as the configuration has it; `live` reads a file as fast as it plays."""

    id: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    source: str = Field(min_length=1)
    live: bool = False
    policy: Policy | None = None
    deadline_s: Annotated[float, Field(gt=0)] | None = None
    prompt: str | None = None

    @model_validator(mode="after")
    def _must_be_live(self) -> Stream:
        if not self.live and not is_live(self.source):
            raise ValueError(f'{self.source} is a file; "live": true reads it as fast as it plays')
        if not has_host(self.source):
            raise ValueError("source: its URL names no host and port that could be")
        return self

    def job(self, config: Config, out: Path, times: LiveSource) -> Job:
        """The stream's run in its own folder of `out`; it ends when `times` says."""
        live = replace(
            times,
            address=self.source,
            policy=self.policy or config.live.policy,
            deadline_s=self.deadline_s or config.live.deadline_s,
        )
        path = Path(self.source) if live.is_paced else Path(live.name)
        return Job(path, out / self.id, resume=True, stream=self.id, live=live)

    def settings(self, config: Config) -> Config:
        """The configuration with the stream's own prompt."""
        if self.prompt is None:
            return config
        return config.model_copy(update={"pipeline": config.pipeline.model_copy(update={"prompt": self.prompt})})


class Streams(Section):
    """The file that `zroact streams` reads."""

    streams: tuple[Stream, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _differ(self) -> Streams:
        twice = [id_ for id_, number in Counter(stream.id for stream in self.streams).items() if number > 1]
        if twice:
            raise ValueError(f"id {twice[0]} is there twice")
        if sum(stream.source == STANDARD_INPUT for stream in self.streams) > 1:
            raise ValueError('"-", standard input, can be the source of one stream only')
        return self


@dataclass(frozen=True, slots=True)
class Ended:
    """How a stream ended: its results, or why there are none."""

    results: Results | None
    error: ZroactError | None


def read_streams(file: Path) -> Sequence[Stream]:
    """The streams of a file.

    Raises:
        ConfigError: It cannot be read or does not fit; the message names the key.
    """
    try:
        return Streams.model_validate(read_json_file(file, "streams file")).streams
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ConfigError(f"streams file {file}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error


async def run_streams(streams: Sequence[Stream], config: Config, out: Path, times: LiveSource) -> Mapping[str, Ended]:
    """Follow all of them until each has ended; what ends one does not end the others.

    Args:
        streams: What is followed.
        config: The configuration; both stages must be up.
        out: Each stream writes into a folder of its own in it.
        times: Says when all of them end; the rest of it does not matter.
    """
    async with asyncio.TaskGroup() as group:
        tasks = {
            stream.id: group.create_task(_follow(stream, config, out, times), name=stream.id) for stream in streams
        }
    return {id_: task.result() for id_, task in tasks.items()}


async def _follow(stream: Stream, config: Config, out: Path, times: LiveSource) -> Ended:
    """Run a stream; one that was never there yet is waited for."""
    clock = asyncio.get_running_loop().time
    begun = clock()
    while True:
        left_s = None if times.duration_s is None else times.duration_s - (clock() - begun)
        job = stream.job(config, out, replace(times, duration_s=left_s))
        try:
            recorder = TimingRecorder(_SPANS_KEPT, keep_last=True)
            return Ended(await run_pipeline(job, stream.settings(config), recorder=recorder), None)
        except ZroactError as error:
            over = left_s is not None and left_s <= config.live.reconnect.max_wait_s
            if over or not isinstance(error, SourceLost) or job.live is None or not job.live.reconnects:
                log.error("stream %s ended: %s", stream.id, error)  # noqa: TRY400 - the message is for the user
                return Ended(None, error)
            log.warning("stream %s is not there yet: %s", stream.id, error)
        await asyncio.sleep(config.live.reconnect.max_wait_s)
