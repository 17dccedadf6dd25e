"""Which seeds belong to what: what is trained on is never what is measured or shown."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

import numpy as np

from pipeline_ver2.errors import ConfigError

TRAIN = range(1_000_000_000)
VALIDATION_A = range(2_000_000_000, 2_000_100_000)
VALIDATION_B = range(3_000_000_000, 3_000_100_000)
DEMO = range(4_000_000_000, 4_000_001_000)


def check_disjoint(ranges: Mapping[str, range]) -> None:
    """Check that no seed belongs to two ranges.

    Raises:
        ConfigError: Two ranges overlap; the message names both.
    """
    for (first, left), (second, right) in combinations(ranges.items(), 2):
        if max(left.start, right.start) < min(left.stop, right.stop):
            raise ConfigError(f"the seed ranges {first} and {second} overlap")


def generator(seeds: range, index: int) -> np.random.Generator:
    """The random generator of the `index`-th seed of a range.

    Raises:
        ConfigError: The range has no such seed.
    """
    if not 0 <= index < len(seeds):
        raise ConfigError(f"seed index {index} is outside 0..{len(seeds) - 1}")
    return np.random.default_rng(seeds[index])


check_disjoint({"TRAIN": TRAIN, "VALIDATION_A": VALIDATION_A, "VALIDATION_B": VALIDATION_B, "DEMO": DEMO})
