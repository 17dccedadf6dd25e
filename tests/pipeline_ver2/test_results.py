"""Journal and results on disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline_ver2.errors import ResultsError
from pipeline_ver2.results import (
    JOURNAL_NAME,
    RESULTS_NAME,
    Header,
    Journal,
    KeyframeRecord,
    Results,
    SlotRecord,
    fingerprint,
    read_results,
    sha256_of,
)

HEADER = Header(source_sha256="00", fingerprint="11")
KEYFRAME = KeyframeRecord(key_index=11, time_s=0.35, state="ok")
FAILED = SlotRecord(index=0, key_indices=(11,), start_s=0.35, end_s=0.35, state="failed", reason="planted")
OK = FAILED.model_copy(update={"state": "ok", "reason": None, "answer": {"action": "walk"}})


def write(folder: Path, *records: KeyframeRecord | SlotRecord) -> None:
    """A journal with these records."""
    with Journal(folder, resume=True) as journal:
        journal.start(HEADER)
        for record in records:
            journal.append(record)


def test_the_last_record_of_an_id_wins(tmp_path: Path) -> None:
    """What was failed first and ok later is ok."""
    write(tmp_path, KEYFRAME, FAILED, OK)
    with Journal(tmp_path, resume=True) as journal:
        records = journal.start(HEADER)

    assert records.keyframes == {11: KEYFRAME}
    assert records.slots == {0: OK}


def test_every_record_is_on_disk_at_once(tmp_path: Path) -> None:
    """A record can be read by others before the journal is closed."""
    with Journal(tmp_path, resume=False) as journal:
        journal.start(HEADER)
        journal.append(KEYFRAME)
        lines = (tmp_path / JOURNAL_NAME).read_text().splitlines()

    assert [json.loads(line)["type"] for line in lines] == ["header", "keyframe"]


@pytest.mark.fault("O5")
@pytest.mark.parametrize("cut", [1, 10, 40])
def test_a_torn_last_line_is_cut(tmp_path: Path, cut: int) -> None:
    """However much of the last line a kill left, it is cut, and new lines follow whole ones."""
    write(tmp_path, KEYFRAME, OK)
    path = tmp_path / JOURNAL_NAME
    path.write_bytes(path.read_bytes()[:-cut])
    with Journal(tmp_path, resume=True) as journal:
        records = journal.start(HEADER)
        journal.append(OK)

    assert records.keyframes == {11: KEYFRAME}
    assert records.slots == {}
    assert json.loads(path.read_text().splitlines()[-1])["type"] == "slot"


@pytest.mark.fault("O5")
def test_a_torn_header_starts_anew(tmp_path: Path) -> None:
    """A journal killed in its first line holds nothing and is begun again."""
    (tmp_path / JOURNAL_NAME).write_bytes(b'{"type": "hea')
    write(tmp_path, OK)
    with Journal(tmp_path, resume=True) as journal:
        assert journal.start(HEADER).slots == {0: OK}


def test_another_header_is_refused(tmp_path: Path) -> None:
    """Results of another source or other settings are not continued."""
    write(tmp_path, OK)
    other = HEADER.model_copy(update={"source_sha256": "ff"})
    with Journal(tmp_path, resume=True) as journal, pytest.raises(ResultsError, match="same source and settings"):
        journal.start(other)


def test_damage_before_the_end_is_refused(tmp_path: Path) -> None:
    """A line in the middle that is no record stops with its number; nothing is thrown away."""
    write(tmp_path, KEYFRAME, OK)
    path = tmp_path / JOURNAL_NAME
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([lines[0], "garbage\n", lines[2]]))
    with Journal(tmp_path, resume=True) as journal, pytest.raises(ResultsError, match="line 2"):
        journal.start(HEADER)


def test_a_folder_is_held_by_one_run(tmp_path: Path) -> None:
    """A second run on the folder is refused until the first lets go."""
    with Journal(tmp_path, resume=True), pytest.raises(ResultsError, match="in use"):
        Journal(tmp_path, resume=True)
    Journal(tmp_path, resume=True).close()


def test_results_without_resume_are_refused(tmp_path: Path) -> None:
    """An output folder with a journal needs --resume."""
    write(tmp_path, OK)
    with pytest.raises(ResultsError, match="--resume"):
        Journal(tmp_path, resume=False)
    (tmp_path / JOURNAL_NAME).rename(tmp_path / RESULTS_NAME)
    with pytest.raises(ResultsError, match="--resume"):
        Journal(tmp_path, resume=False)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    """A file in the way is one clear error."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ResultsError, match="file"):
        Journal(tmp_path / "file" / "out", resume=False)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
def test_a_full_disk_is_an_error_of_ours(tmp_path: Path) -> None:
    """A record that cannot be written is a ResultsError naming the file."""
    (tmp_path / JOURNAL_NAME).symlink_to("/dev/full")
    with Journal(tmp_path, resume=True) as journal, pytest.raises(ResultsError, match=JOURNAL_NAME):
        journal.start(HEADER)


def test_failures_are_left_out_for_a_second_try(tmp_path: Path) -> None:
    """Failed keyframes and slots are dropped, ok and skipped ones kept."""
    write(tmp_path, KEYFRAME, KEYFRAME.model_copy(update={"key_index": 22, "state": "failed"}), FAILED)
    with Journal(tmp_path, resume=True) as journal:
        records = journal.start(HEADER).without_failures()

    assert list(records.keyframes) == [11]
    assert records.slots == {}


def test_a_fingerprint_tells_settings_apart() -> None:
    """Equal settings in another order have one fingerprint, other settings another."""
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
    assert fingerprint({"a": 1}) != fingerprint({"a": 2})


def test_a_digest_is_of_the_content(tmp_path: Path) -> None:
    """SHA-256 as everybody computes it."""
    (tmp_path / "file").write_bytes(b"abc")
    assert sha256_of(tmp_path / "file") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


@pytest.mark.parametrize("content", [None, "{}", "no JSON"])
def test_a_missing_or_foreign_results_file_is_named(tmp_path: Path, content: str | None) -> None:
    """Reading back names the file and what is wrong."""
    if content is not None:
        (tmp_path / "results.json").write_text(content)
    with pytest.raises(ResultsError, match=r"results\.json"):
        read_results(tmp_path)


def test_the_published_schema_is_that_of_the_results() -> None:
    """results.schema.json beside the library is generated from the model, and up to date."""
    published = Path(__file__).parents[2] / "pipeline_ver2" / "results.schema.json"
    assert json.loads(published.read_text()) == Results.model_json_schema()
