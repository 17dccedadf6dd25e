"""The section `live` of the configuration."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline_ver2.config import load_config
from pipeline_ver2.errors import ConfigError


def test_as_shipped_the_oldest_gives_way() -> None:
    """And answers are of use for five seconds."""
    live = load_config(None, {}, environ={}).live
    assert (live.policy, live.deadline_s) == ("DROP_OLDEST", 5)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("live.policy", "DROP"),
        ("live.deadline_s", 0),
        ("live.buffer_frames", 1),
        ("live.read_timeout_s", 0),
        ("live.reconnect.first_wait_s", 0),
        ("live.rotate.files", 0),
        ("live.recent", 0),
        ("live.mqtt", "x"),
    ],
)
def test_impossible_values_stop_the_start(key: str, value: Any) -> None:  # noqa: ANN401 - values of any key
    """The message names the key."""
    with pytest.raises(ConfigError, match=key):
        load_config(None, {key: value}, environ={})
