"""A picture of which action was answered for which."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline_ver2.errors import ResultsError
from serving.demo.evaluate_answerer import GIVEN_ACTIONS, RIGHT_ACTIONS


def counts(given_for_right: Mapping[str, Mapping[str, int]]) -> NDArray[np.int64]:
    """`(7, 8)` int64: rows are right actions, columns given ones, `none` last of the actions, then `invalid`."""
    rows = [[given_for_right.get(right, {}).get(given, 0) for given in GIVEN_ACTIONS] for right in RIGHT_ACTIONS]
    return np.array(rows, np.int64)


def draw(sets: Mapping[str, Mapping[str, Mapping[str, int]]], title: str, path: Path) -> None:
    """Draw the counts of each seed set, coloured by their share of the row; the suffix of the path says the format.

    Raises:
        ResultsError: The file cannot be written.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.5 * len(sets), 5), layout="constrained")
    figure.suptitle(title)
    for axes, (label, given) in zip(figure.subplots(1, len(sets), squeeze=False)[0], sets.items(), strict=True):
        _draw_set(axes, counts(given), f"set {label}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise ResultsError(f"confusion picture {path}: {error}") from error


def _draw_set(axes: Any, numbers: NDArray[np.int64], title: str) -> None:  # noqa: ANN401 - untyped library
    shares = numbers / np.maximum(1, numbers.sum(axis=1, keepdims=True))
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    axes.set_xticks(range(len(GIVEN_ACTIONS)), GIVEN_ACTIONS, rotation=45)
    axes.set_yticks(range(len(RIGHT_ACTIONS)), RIGHT_ACTIONS)
    axes.set_xlabel("answered")
    axes.set_ylabel("right")
    axes.set_title(f"{title}: {np.trace(numbers)} of {numbers.sum()} slots right")
    for (row, column), number in np.ndenumerate(numbers):
        if number:
            colour = "white" if shares[row, column] > 0.5 else "black"
            axes.text(column, row, str(number), ha="center", va="center", color=colour)
