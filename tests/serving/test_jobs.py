"""Jobs, their files and folders."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from pipeline_ver2.config import Config
from pipeline_ver2.errors import FolderInUse, ResultsError
from pipeline_ver2.live_address import LiveSource
from serving.jobs import DataDir, JobFile, JobFolder, JobOptions, locked, new_job_id


@pytest.mark.parametrize(("gate", "expected"), [(None, "all"), ("detections", "detections")])
def test_options_stand_over_the_configuration(gate: str | None, expected: str) -> None:
    """What a client chooses counts, the rest stays."""
    config = Config()
    applied = JobOptions.model_validate({"gate": gate}).apply(config)
    assert applied.pipeline.gate == expected
    assert applied.stage1 == config.stage1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"policy": "WAIT"}, "live sources"),
        ({"live": False, "deadline_s": 0}, "live sources"),
        ({"duration_s": 5}, "live sources"),
        ({"live": True, "duration_s": 0}, "duration_s"),
        ({"live": True, "duration_s": float("inf")}, "duration_s"),
        ({"live": True, "deadline_s": -1}, "deadline_s"),
        ({"live": True, "policy": "drop"}, "policy"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], said: str) -> None:
    """What is for live sources alone, and values that are out of range."""
    with pytest.raises(ValidationError, match=said):
        JobOptions.model_validate(options)


def test_a_live_source_as_its_job_wants_it(tmp_path: Path) -> None:
    """Options stand over the configuration; one that goes on ends when it was to; a file with a password is private."""
    config, options = Config(), JobOptions(live=True, policy="WAIT", deadline_s=0, duration_s=60)
    job = JobFile(id="a", source=Path("b"), address="rtsp://u:p@host//stream?a=b", options=options)
    assert job.live(config) == LiveSource("rtsp://u:p@host//stream?a=b", "WAIT", None, 60)
    until = datetime.now(UTC) + timedelta(seconds=9)
    job.model_copy(update={"until": until}).write(tmp_path / "job.json")
    read = JobFile.read(tmp_path / "job.json")
    assert read.live(config) == LiveSource("rtsp://u:p@host//stream?a=b", "WAIT", None, None, until)
    assert not read.is_late
    assert (tmp_path / "job.json").stat().st_mode & 0o777 == 0o600
    plain = JobFile(id="a", source=Path("b"), address="rtsp://host", options=JobOptions(live=True)).live(config)
    assert plain == LiveSource("rtsp://host", config.live.policy, config.live.deadline_s)
    assert JobFile(id="a", source=Path("b")).live(config) is None


def test_a_job_file_names_its_source_from_where_it_lies(tmp_path: Path) -> None:
    """A relative source is beside the file, an absolute one anywhere."""
    file = tmp_path / "job.json"
    file.write_text('{"id": "a", "source": "source", "options": {"gate": "all"}}')
    assert JobFile.read(file).source == tmp_path / "source"
    file.write_text('{"id": "a", "source": "/media/film.mp4"}')
    assert JobFile.read(file).source == Path("/media/film.mp4")


@pytest.mark.parametrize("content", [None, "", "{}", '{"id": "a", "source": "b", "more": 1}'])
def test_what_is_no_job_file(tmp_path: Path, content: str | None) -> None:
    """A file that is missing or something else is named."""
    file = tmp_path / "job.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ResultsError, match=r"job\.json"):
        JobFile.read(file)


def test_ids_are_not_used_twice() -> None:
    """Each is new."""
    assert len({new_job_id() for _ in range(100)}) == 100


def test_a_folder_is_held_by_one(tmp_path: Path) -> None:
    """A second holder is refused until the first lets go."""
    folder = JobFolder(tmp_path)
    with folder.held(), pytest.raises(FolderInUse), folder.held():
        pass
    with folder.held():
        pass


def test_a_folder_that_is_gone_cannot_be_held(tmp_path: Path) -> None:
    """It is not made again by looking at it."""
    with pytest.raises(ResultsError, match="No such file"), JobFolder(tmp_path / "gone").held():
        pass
    assert not (tmp_path / "gone").exists()


def test_an_executor_takes_the_first_free_name(data: DataDir) -> None:
    """Two processes have two names; whoever comes after one has died has its name, and so its jobs."""
    with data.executor() as first:
        with data.executor() as second:
            assert (first[-2:], second[-2:]) == ("-0", "-1")
        with data.executor() as third:
            assert third == second


def test_a_data_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    """The key is in the message."""
    (tmp_path / "file").touch()
    with pytest.raises(ResultsError, match=r"paths\.data_dir"):
        DataDir(tmp_path / "file").prepare()


def test_removing_a_folder_takes_its_files_along(tmp_path: Path) -> None:
    """Its size is the sum of its files; afterwards nothing is left, and removing it again is no error."""
    folder = JobFolder(tmp_path / "job")
    folder.path.mkdir()
    (folder.path / "a").write_bytes(b"12")
    (folder.path / "b").write_bytes(b"345")
    assert folder.size() == 5
    folder.remove()
    folder.remove()
    assert not folder.path.exists()


def test_a_lock_makes_its_file(tmp_path: Path) -> None:
    """The file is there to be written while it is locked."""
    with locked(tmp_path / "new") as file:
        file.write(b"x")
    assert (tmp_path / "new").read_bytes() == b"x"
