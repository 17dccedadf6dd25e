"""Seeds of training, validation and demo never meet."""

from __future__ import annotations

import pytest

from pipeline_ver2.errors import ConfigError
from serving.demo import seeds


def test_ranges_of_the_project_are_disjoint() -> None:
    """No seed is both trained on and measured or shown."""
    ranges = (seeds.TRAIN, seeds.VALIDATION_A, seeds.VALIDATION_B, seeds.DEMO)
    for index, first in enumerate(ranges):
        for second in ranges[index + 1 :]:
            assert not range(max(first.start, second.start), min(first.stop, second.stop))


@pytest.mark.parametrize("other", [range(9, 12), range(2, 5), range(10), range(-3, 1)])
def test_overlap_is_refused(other: range) -> None:
    """Ranges that share a seed are an error that names both."""
    with pytest.raises(ConfigError, match=r"ONE.*TWO"):
        seeds.check_disjoint({"ONE": range(10), "TWO": other})


def test_neighbours_and_empty_ranges_are_fine() -> None:
    """Ranges that only touch, or hold nothing, do not overlap."""
    seeds.check_disjoint({"ONE": range(10), "TWO": range(10, 20), "THREE": range(5, 5)})


def test_generator_repeats_and_differs() -> None:
    """The same seed gives the same numbers, another seed gives others."""
    first, again, other = (seeds.generator(seeds.DEMO, index).random() for index in (3, 3, 4))
    assert first == again != other


@pytest.mark.parametrize("index", [-1, len(seeds.DEMO)])
def test_seed_outside_the_range_is_refused(index: int) -> None:
    """An index that would leave the range is an error, not somebody else's seed."""
    with pytest.raises(ConfigError, match=f"seed index {index}"):
        seeds.generator(seeds.DEMO, index)
