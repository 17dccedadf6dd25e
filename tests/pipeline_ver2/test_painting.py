"""What is drawn on a frame: boxes where they belong between keyframes, labels, captions."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline_ver2.painting import Between, Caption, KeyframeOverlay, Painter
from pipeline_ver2.wire import Detection, LabelScore

Picture = NDArray[np.uint8]
Box = tuple[float, float, float, float]

BOX = (100.0, 40.0, 150.0, 100.0)


def person(box: Box, label: str = "wave") -> Detection:
    return Detection(box=box, labels=(LabelScore(name=label, score=0.9),))


def shifted(box: Box, x: float, y: float = 0) -> Box:
    return (box[0] + x, box[1] + y, box[2] + x, box[3] + y)


def drawn(*detections: Detection, caption: str = "") -> Picture:
    """A grey picture of 160x120 with these on it."""
    picture = np.full((120, 160, 3), 128, np.uint8)
    Painter([KeyframeOverlay(0, detections)], [Caption(0, 1, caption)]).draw(picture, 0)
    return picture


def is_drawn(picture: Picture, rows: slice, columns: slice) -> bool:
    return bool((picture[rows, columns] != 128).any())


def boxes_at(time_s: float, between: Between, *keyframes: KeyframeOverlay) -> list[Box]:
    return [detection.box for detection in Painter(keyframes, (), between).detections_at(time_s)]


FIRST = KeyframeOverlay(1.0, [person(BOX)])
SECOND = KeyframeOverlay(2.0, [person(shifted(BOX, 20, -10))])


@pytest.mark.parametrize(
    ("time_s", "held", "moved"),
    [
        (0.999, [], []),
        (0.9996, [BOX], [BOX]),  # rounded to milliseconds on its way it is the keyframe still
        (1.0, [BOX], [BOX]),
        (1.5, [BOX], [shifted(BOX, 10, -5)]),
        (1.75, [BOX], [shifted(BOX, 15, -7.5)]),
        (2.0, [shifted(BOX, 20, -10)], [shifted(BOX, 20, -10)]),
        (9.0, [shifted(BOX, 20, -10)], [shifted(BOX, 20, -10)]),
    ],
)
def test_between_keyframes_boxes_are_held_or_on_their_way(time_s: float, held: list[Box], moved: list[Box]) -> None:
    """On a keyframe they are that keyframe's own, before the first there are none, after the last they stay."""
    assert boxes_at(time_s, "hold", SECOND, FIRST) == held
    assert boxes_at(time_s, "interpolate", SECOND, FIRST) == moved


def test_each_person_goes_their_own_way() -> None:
    """Two who move and change places in the list keep their own boxes and labels."""
    left, right = (10.0, 10.0, 30.0, 60.0), (100.0, 10.0, 120.0, 60.0)
    before = KeyframeOverlay(0, [person(left, "walk"), person(right, "run")])
    after = KeyframeOverlay(1, [person(shifted(right, 10), "run"), person(shifted(left, 8), "run")])
    found = Painter([before, after], (), "interpolate").detections_at(0.5)
    assert [detection.box for detection in found] == [shifted(left, 4), shifted(right, 5)]
    assert [detection.labels[0].name for detection in found] == ["walk", "run"]


def test_who_is_not_in_the_next_keyframe_stays_until_then() -> None:
    """Somebody far away is another person: neither box flies across the picture; no box of any size is fine."""
    here, there, dot = person((10, 10, 30, 60)), person((120, 10, 140, 60)), person((5, 5, 5, 5))
    keyframes = (KeyframeOverlay(0, [here, dot]), KeyframeOverlay(1, [there, dot]), KeyframeOverlay(2, ()))
    assert boxes_at(0.5, "interpolate", *keyframes) == [here.box, dot.box]
    assert boxes_at(1.5, "interpolate", *keyframes) == [there.box, dot.box]
    assert boxes_at(2.5, "interpolate", *keyframes) == []


def test_two_keyframes_of_one_frame_show_the_later_one() -> None:
    """A source slower than the keyframes shows the same frame twice."""
    twice = (KeyframeOverlay(1, [person(BOX)]), KeyframeOverlay(1, [person(shifted(BOX, 3))]))
    assert boxes_at(1, "interpolate", *twice) == boxes_at(1, "hold", *twice) == [shifted(BOX, 3)]


def test_no_keyframes_no_boxes() -> None:
    """Nothing found is nothing drawn."""
    assert boxes_at(1, "interpolate") == boxes_at(1, "hold") == []


def test_a_box_is_an_outline() -> None:
    """The edges are drawn, the person inside stays to be seen."""
    picture = drawn(person(BOX))
    assert is_drawn(picture, slice(60, 90), slice(99, 102))
    assert not is_drawn(picture, slice(65, 90), slice(110, 140))


def test_a_long_caption_stays_in_the_picture() -> None:
    """Two lines at most, whatever the text; one endless word too."""
    for text in ("a long answer " * 40, "x" * 500):
        picture = drawn(caption=text)
        assert is_drawn(picture, slice(110, 120), slice(0, 90))
        assert not is_drawn(picture, slice(0, 80), slice(0, 160))


def test_labels_are_not_only_ascii() -> None:
    """Accents and Greek have letters of their own, not one sign for all that is unknown."""
    pictures = [drawn(person(BOX, label))[24:40].astype(int) for label in ("éé", "öö", "ΩΩ")]
    for first, second in ((0, 1), (1, 2), (0, 2)):
        assert (np.abs(pictures[first] - pictures[second]) > 60).sum() > 10


@pytest.mark.parametrize("box", [(-50.0, -50.0, 500.0, 500.0), (155.0, 115.0, 160.0, 120.0), (5.0, 5.0, 5.0, 5.0)])
def test_boxes_at_and_over_the_edge_are_drawn_inside(box: Box) -> None:
    """Outside, in the corner, or of no size: the label is still in the picture."""
    picture = drawn(person(box, label="a label wider than its picture is"))
    assert is_drawn(picture, slice(0, 120), slice(0, 160))


def test_a_detection_without_labels_is_a_bare_box() -> None:
    """No label, no tag."""
    picture = drawn(Detection(box=BOX, labels=()))
    assert is_drawn(picture, slice(60, 90), slice(98, 103))
    assert not is_drawn(picture, slice(0, 36), slice(0, 160))
