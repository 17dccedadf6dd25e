"""The section `live`: how cameras and other live sources are followed."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pipeline_ver2.config_section import Section

Policy = Literal["WAIT", "DROP_OLDEST", "DROP_LATEST"]
"""What gives way when a queue is full: whoever fills it, the oldest in it, or the newcomer."""


class Reconnect(Section):
    """The wait before a lost source is opened again: the first, twice as long each time, at most the longest."""

    first_wait_s: float = Field(default=0.5, gt=0)
    max_wait_s: float = Field(default=30, gt=0)


class Rotate(Section):
    """When a new results.jsonl begins, by size or age, and how many of the old ones are kept."""

    mb: float = Field(default=64, gt=0)
    minutes: float = Field(default=60, gt=0)
    files: int = Field(default=48, ge=1)


class LiveConfig(Section):
    """Live sources. `recent` is how many slots and warnings the summary of a live run tells."""

    policy: Policy = "DROP_OLDEST"
    deadline_s: float = Field(default=5, gt=0)
    buffer_frames: int = Field(default=32, ge=2)
    open_timeout_s: float = Field(default=10, gt=0)
    read_timeout_s: float = Field(default=10, gt=0)
    reconnect: Reconnect = Reconnect()
    rotate: Rotate = Rotate()
    recent: int = Field(default=100, ge=1)
