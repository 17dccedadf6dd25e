"""Several live streams at once."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from pipeline_ver2.errors import ConfigError
from pipeline_ver2.live_address import LiveSource
from pipeline_ver2.results import read_results
from pipeline_ver2.streams import Stream, read_streams, run_streams
from tests.live_camera import Camera, served, transport_stream
from tests.pipeline_ver2.conftest import settings_for
from tests.pipeline_ver2.fake_stage import until
from tests.stand_ins import Stages


def written(folder: Path, content: Any) -> Path:  # noqa: ANN401 - any JSON
    """A streams file."""
    file = folder / "streams.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


def test_a_streams_file_is_read(tmp_path: Path) -> None:
    """What is left out is as the configuration has it."""
    first = {"id": "gate", "source": "rtsp://cam", "policy": "WAIT", "deadline_s": 2, "prompt": "Who?"}
    gate, yard = read_streams(written(tmp_path, {"streams": [first, {"id": "yard", "source": "0"}]}))
    assert (gate.id, gate.policy, gate.deadline_s, gate.prompt) == ("gate", "WAIT", 2, "Who?")
    assert (yard.policy, yard.deadline_s, yard.prompt) == (None, None, None)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "not valid JSON"),
        ({}, "streams"),
        ({"streams": []}, "streams"),
        ({"streams": [{"id": "a b", "source": "-"}]}, r"streams\.0\.id"),
        ({"streams": [{"id": "../a", "source": "-"}]}, r"streams\.0\.id"),
        ({"streams": [{"id": "a", "source": "-", "polcy": "WAIT"}]}, r"streams\.0\.polcy"),
        ({"streams": [{"id": "a", "source": "-", "deadline_s": 0}]}, r"streams\.0\.deadline_s"),
        ({"streams": [{"id": "a", "source": "a.mp4"}]}, '"live": true'),
        ({"streams": [{"id": "a", "source": "-"}, {"id": "a", "source": "rtsp://b"}]}, "id a is there twice"),
        ({"streams": [{"id": "a", "source": "-"}, {"id": "b", "source": "-"}]}, "one stream only"),
        ({"streams": [{"id": "a", "source": "http://[::1"}]}, "streams.0: .*no host"),
    ],
)
def test_a_wrong_streams_file_is_refused(tmp_path: Path, content: Any, said: str) -> None:  # noqa: ANN401 - any JSON
    """The message names the key."""
    with pytest.raises(ConfigError, match=said):
        read_streams(written(tmp_path, content))


def test_a_missing_streams_file_is_refused(tmp_path: Path) -> None:
    """By its name."""
    with pytest.raises(ConfigError, match=r"nothing\.json"):
        read_streams(tmp_path / "nothing.json")


async def test_streams_share_the_stages(stages: Stages, clip: Path, tmp_path: Path) -> None:
    """Each has its folder, its name at Stage 2 and its prompt; one that has no source does not end the others."""
    streams = [
        Stream(id="one", source=str(clip), live=True, prompt="Who is {labels}?"),
        Stream(id="two", source=str(clip), live=True, deadline_s=3, policy="WAIT"),
        Stream(id="none", source=str(tmp_path / "nothing.mp4"), live=True),
    ]
    ended = await run_streams(streams, settings_for(stages), tmp_path, LiveSource("", duration_s=1.3))

    assert stages.stage2.clients == {"one", "two"}
    assert list(ended) == ["one", "two", "none"]
    assert ended["none"].results is None
    assert "no such file" in str(ended["none"].error)
    for name in ("one", "two"):
        results = ended[name].results
        assert results == read_results(tmp_path / name)
        assert results is not None
        assert results.counts.ok == results.counts.slots >= 1


@pytest.mark.slow
async def test_a_stream_that_is_not_there_yet_is_waited_for(stages: Stages, tmp_path: Path) -> None:
    """Until it is, or until the end."""
    camera = Camera([transport_stream(60)], rate=100, open=False)
    overrides = {
        "pipeline__retry_for_s": 0.1,
        "live__reconnect__first_wait_s": 0.02,
        "live__reconnect__max_wait_s": 0.1,
    }
    async with served(camera):
        streams = [Stream(id="late", source=camera.url)]
        times = LiveSource("", duration_s=1.5)
        run = asyncio.create_task(run_streams(streams, settings_for(stages, **overrides), tmp_path, times))
        await until(lambda: len(camera.headers) > 4)
        camera.open = True
        ended = await asyncio.wait_for(run, 20)
    results = ended["late"].results
    assert results is not None
    assert results.counts.keyframes > 0


async def test_cancelled_all_keep_what_they_have(stages: Stages, clip: Path, tmp_path: Path) -> None:
    """Within limits."""
    streams = [Stream(id=name, source=str(clip), live=True) for name in ("one", "two")]
    run = asyncio.create_task(run_streams(streams, settings_for(stages), tmp_path, LiveSource("")))
    await until(lambda: len(stages.stage1.clients) == 2)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(run, 10)
    assert [read_results(tmp_path / name).state for name in ("one", "two")] == ["cancelled"] * 2
