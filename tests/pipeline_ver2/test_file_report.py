"""The report of a file as text."""

from __future__ import annotations

from pipeline_ver2.file_report import FileReport, PlanPart


def plan(**changes: object) -> PlanPart:
    """A plan of 60 frames."""
    plain = {"grid_fps": 30.0, "frames_grid": 60, "keyframes": 5, "batches": 2, "slots": 2, "annotated": (160, 120)}
    return PlanPart.model_validate({**plain, "state": "succeeded", "estimated": False, **changes})


def test_a_file_that_cannot_be_used_has_a_name_and_a_reason() -> None:
    """Two lines."""
    text = FileReport(file="a\tb.mp4", usable=False, reason="the file is empty").as_text()
    assert text == "a\\tb.mp4: not usable\n  the file is empty"


def test_nothing_odd_is_said() -> None:
    """An empty list is a word, not a gap."""
    assert "What is odd about it\n  Nothing." in FileReport(file="a.mp4", usable=True).as_text()


def test_estimates_are_called_so() -> None:
    """A figure from the header is about right; one that was counted is right; one nobody knows is unknown."""
    counted = FileReport(file="a.mp4", usable=True, plan=plan()).as_text()
    assert "5 in 2 Stage 1 batches" in counted
    assert "about" not in counted.partition("What the pipeline")[2]
    estimated = FileReport(file="a.mp4", usable=True, plan=plan(estimated=True)).as_text()
    assert "about 5 in about 2 Stage 1 batches" in estimated
    unknown = FileReport(file="a.mp4", usable=True, plan=plan(estimated=True, keyframes=None, batches=None)).as_text()
    assert "about unknown" not in unknown
    assert "unknown in unknown Stage 1 batches" in unknown


def test_native_frames_have_no_rate() -> None:
    """Without a grid the source's own frames are taken."""
    assert "the source's own frames" in FileReport(file="a.mp4", usable=True, plan=plan(grid_fps=None)).as_text()
