"""What the command line says of a live source."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import get_args

from pipeline_ver2.config import Config
from pipeline_ver2.config_live import Policy
from pipeline_ver2.errors import ConfigError
from pipeline_ver2.job import Job
from pipeline_ver2.live_address import LiveSource, has_host, is_live, public_name


@dataclass(frozen=True, slots=True)
class LiveOptions:
    """Options as given; None where they were not. `paced` reads a file as fast as it plays."""

    paced: bool = False
    policy: str | None = None
    deadline_s: float | None = None
    duration_s: float | None = None
    until: str | None = None

    def source(self, address: str, config: Config) -> LiveSource | None:
        """The live source at an address; None if it is a file that is run as one.

        Raises:
            ConfigError: An option cannot be, or is for live sources and this is none.
        """
        if not (self.paced or is_live(address)):
            if self != LiveOptions():
                raise ConfigError("--policy, --deadline, --duration and --until are for live sources; see --live")
            return None
        if not has_host(address):
            raise ConfigError("the source's URL names no host and port that could be")
        if self.deadline_s is not None and not math.isfinite(self.deadline_s):
            raise ConfigError(f"--deadline: {self.deadline_s} is no number of seconds; 0 is for ever")
        deadline_s = config.live.deadline_s if self.deadline_s is None else self.deadline_s
        return LiveSource(
            address,
            policy=policy_of(self.policy, config.live.policy),
            deadline_s=deadline_s or None,
            duration_s=self.duration_s,
            until=None if self.until is None else moment_of(self.until),
        )

    def job(self, address: str, out: Path | None, config: Config, *, resume: bool, keep_failed: bool) -> Job:
        """The job of an address, in `out` or a folder named after it.

        Raises:
            ConfigError: As `source`.
        """
        live = self.source(address, config)
        if live is None:
            clip = Path(address)
            return Job(clip, out or Path("out") / clip.stem, resume=resume, keep_failed=keep_failed)
        if keep_failed:
            raise ConfigError("--keep-failed is for files: a live run has no second try")
        stream = stream_id(address)
        path = Path(address) if live.is_paced else Path(live.name)
        return Job(path, out or Path("out") / stream, resume=resume, stream=stream, live=live)


def stream_id(address: str) -> str:
    """A name for a stream made of its address: letters, digits, points and dashes."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", public_name(address)).strip("-.") or "stdin"


def policy_of(text: str | None, default: Policy) -> Policy:
    """A policy by its name, in any case.

    Raises:
        ConfigError: It is none.
    """
    if text is None:
        return default
    known: dict[str, Policy] = {name: name for name in get_args(Policy)}
    if text.upper() not in known:
        raise ConfigError(f"--policy: {text!r} is none of {', '.join(known)}")
    return known[text.upper()]


def moment_of(text: str) -> datetime:
    """A time to come as ISO 8601 has it, in the local time zone if it names none.

    Raises:
        ConfigError: It is none, or past.
    """
    try:
        moment = datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError) as error:
        raise ConfigError(f"--until: {text!r} is no time such as 2030-01-31T18:00") from error
    if moment <= datetime.now(UTC):
        raise ConfigError(f"--until: {text!r} is past")
    return moment
