"""What the command line says of a live source."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from pipeline_ver2.config import load_config
from pipeline_ver2.errors import ConfigError
from pipeline_ver2.live_options import LiveOptions, moment_of, policy_of, stream_id

CONFIG = load_config(None, {"live.policy": "DROP_LATEST", "live.deadline_s": 7}, environ={})


def test_a_file_is_no_live_source() -> None:
    """It has no deadline and drops nothing."""
    job = LiveOptions().job("films/a.mp4", None, CONFIG, resume=True, keep_failed=True)
    assert (job.source, job.out, job.live, job.resume, job.keep_failed) == (
        Path("films/a.mp4"),
        Path("out/a"),
        None,
        True,
        True,
    )


def test_a_camera_is_as_the_configuration_has_it() -> None:
    """Its folder and its stream are named after it, without what is secret."""
    job = LiveOptions().job("rtsp://me:secret@cam:554/yard?k=1", None, CONFIG, resume=False, keep_failed=False)
    assert job.live is not None
    assert (job.live.policy, job.live.deadline_s) == ("DROP_LATEST", 7)
    assert (job.out, job.stream, job.name) == (
        Path("out/rtsp-cam-554-yard"),
        "rtsp-cam-554-yard",
        "rtsp://cam:554/yard",
    )


def test_options_come_before_the_configuration() -> None:
    """A deadline of 0 is none."""
    live = LiveOptions(paced=True, policy="wait", deadline_s=0, duration_s=9, until="2999-01-31T18:00:00+00:00").source(
        "a.mp4", CONFIG
    )
    assert live is not None
    assert live.is_paced
    assert (live.policy, live.deadline_s, live.duration_s) == ("WAIT", None, 9)
    assert live.until == datetime(2999, 1, 31, 18, tzinfo=UTC)


@pytest.mark.parametrize(
    ("options", "address", "said"),
    [
        (LiveOptions(policy="WAIT"), "a.mp4", "for live sources"),
        (LiveOptions(duration_s=3), "a.mp4", "for live sources"),
        (LiveOptions(policy="DROP"), "rtsp://cam", "--policy: 'DROP' is none of WAIT, DROP_OLDEST, DROP_LATEST"),
        (LiveOptions(until="tomorrow"), "rtsp://cam", "--until: 'tomorrow'"),
        (LiveOptions(until="2020-01-01T00:00"), "rtsp://cam", "--until: '2020-01-01T00:00' is past"),
        (LiveOptions(deadline_s=float("inf")), "rtsp://cam", "--deadline: inf"),
        *(
            (LiveOptions(), address, "no host")
            for address in ("http://", "http://[::1", "rtsp://cam:99999/a", "rtsp://:5/")
        ),
    ],
)
def test_what_cannot_be_is_said(options: LiveOptions, address: str, said: str) -> None:
    """The message names the option."""
    with pytest.raises(ConfigError, match=said):
        options.source(address, CONFIG)


def test_a_live_run_has_no_second_try() -> None:
    """`--keep-failed` means nothing there."""
    with pytest.raises(ConfigError, match="--keep-failed"):
        LiveOptions().job("rtsp://cam", None, CONFIG, resume=True, keep_failed=True)


@pytest.mark.parametrize(
    ("address", "name"), [("-", "stdin"), ("/dev/video0", "dev-video0"), ("http://[::1]/ä/b", "http-1-b")]
)
def test_a_stream_is_named_after_its_address(address: str, name: str) -> None:
    """So that it can be a folder and a header."""
    assert stream_id(address) == name


def test_a_time_without_a_zone_is_the_local_one() -> None:
    """As people write it."""
    assert moment_of("2999-01-31T18:00") == datetime(2999, 1, 31, 18).astimezone()
    assert policy_of(None, "WAIT") == "WAIT"
