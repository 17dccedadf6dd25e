"""Events in the output folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline_ver2.event_file import EARLIER_NAME, EVENTS_NAME, IMAGES_NAME, EventFile, image_name
from pipeline_ver2.events import Event
from tests.news import event


def file_in(folder: Path, *, max_mb: float = 16, max_images: int = 1000) -> EventFile:
    """The events of a run in a folder."""
    return EventFile(folder, max_mb=max_mb, max_images=max_images)


def lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_no_events(tmp_path: Path) -> None:
    """A run without events leaves a file that says so, and no folder of images."""
    file = file_in(tmp_path)
    run_id = file.begin_anew()
    file.close()
    assert lines(tmp_path / EVENTS_NAME) == [{"type": "header", "schema_version": 1, "run": run_id}]
    assert not (tmp_path / IMAGES_NAME).exists()


def test_events_are_read_as_they_were_written(tmp_path: Path) -> None:
    """One a line, there at once."""
    file = file_in(tmp_path)
    file.begin_anew()
    written = [event(0), event(0, "ended"), event(3)]
    for each in written:
        file.write(each)
    assert [Event.model_validate(line) for line in lines(tmp_path / EVENTS_NAME)[1:]] == written
    file.close()


def test_a_run_that_goes_on_begins_anew_under_its_id(tmp_path: Path) -> None:
    """Nothing of the earlier events is left, images and what was rotated away included."""
    file = file_in(tmp_path)
    run_id = file.begin_anew()
    file.write(event(0))
    file.save_image("run-0", b"jpeg")
    file.close()
    (tmp_path / EARLIER_NAME).write_text("earlier")
    again = file_in(tmp_path)
    assert again.begin_anew() == run_id
    again.close()
    assert len(lines(tmp_path / EVENTS_NAME)) == 1
    assert not (tmp_path / EARLIER_NAME).exists()
    assert list((tmp_path / IMAGES_NAME).iterdir()) == []


@pytest.mark.parametrize("content", ["", "{}\n", "[]\n", '{"run": 7}\n', "\0\xff"])
def test_a_header_that_tells_nothing(tmp_path: Path, content: str) -> None:
    """Then the run has a new id."""
    (tmp_path / EVENTS_NAME).write_text(content)
    file = file_in(tmp_path)
    assert len(file.begin_anew()) == 12
    file.close()


def test_a_live_run_goes_on_behind_earlier_events(tmp_path: Path) -> None:
    """Under a new id; those without an end are given back, and a torn line is cut."""
    file = file_in(tmp_path)
    first = file.go_on()
    for each in (event(0), event(0, "ended"), event(3), event(3, "updated")):
        file.write(each)
    file.close()
    with (tmp_path / EVENTS_NAME).open("ab") as torn:
        torn.write(b'{"type": "event", "id"')
    again = file_in(tmp_path)
    run_id, left = again.go_on()
    again.write(event(5))
    again.close()
    assert first[1] == []
    assert run_id != first[0]
    assert left == [event(3, "updated")]
    told = lines(tmp_path / EVENTS_NAME)
    assert [line.get("id", line["type"]) for line in told] == [
        "header",
        *["run-0"] * 2,
        *["run-3"] * 2,
        "header",
        "run-5",
    ]


def test_the_file_is_bounded(tmp_path: Path) -> None:
    """It is begun anew when it has its size, and only the one before is kept."""
    file = file_in(tmp_path, max_mb=0.002)
    run_id = file.begin_anew()
    for number in range(50):
        file.write(event(number))
    file.close()
    assert {path.name for path in tmp_path.iterdir()} == {EVENTS_NAME, EARLIER_NAME}
    for path in tmp_path.iterdir():
        assert path.stat().st_size < 3000
        assert lines(path)[0]["run"] == run_id
    kept = [line["id"] for path in (EARLIER_NAME, EVENTS_NAME) for line in lines(tmp_path / path)[1:]]
    assert kept == [f"run-{number}" for number in range(50 - len(kept), 50)]


def test_images_are_bounded(tmp_path: Path) -> None:
    """The oldest go, those of a run before included; a better image replaces the one before."""
    file = file_in(tmp_path, max_images=3)
    file.go_on()
    for number in range(4):
        file.save_image(f"run-{number}", b"first")
        file.save_image(f"run-{number}", b"better")
    file.close()
    again = file_in(tmp_path, max_images=3)
    again.go_on()
    again.save_image("run-9", b"first")
    again.close()
    kept = {path.name: path.read_bytes() for path in (tmp_path / IMAGES_NAME).iterdir()}
    assert kept == {"run-2.jpg": b"better", "run-3.jpg": b"better", "run-9.jpg": b"first"}
    assert (tmp_path / image_name("run-9")).exists()


def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    """Is an error of the operating system."""
    (tmp_path / EVENTS_NAME).mkdir()
    with pytest.raises(OSError, match="Is a directory"):
        file_in(tmp_path).begin_anew()
