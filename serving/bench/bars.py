"""Bars: what a benchmark must reach, and whether it did."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Op = Literal["<", "<=", ">=", "=="]

_COMPARE: Mapping[Op, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
}
_TARGET = "target: "


@dataclass(frozen=True, slots=True)
class Bar:
    """A measured value and what it must be."""

    name: str
    value: float
    op: Op
    target: float

    @property
    def ok(self) -> bool:
        """Whether the value is on the right side; NaN never is."""
        return _COMPARE[self.op](self.value, self.target)

    @property
    def decides(self) -> bool:
        """Whether a miss fails the benchmark; a target is only hoped for."""
        return not self.name.startswith(_TARGET)

    @classmethod
    def hoped_for(cls, name: str, value: float, op: Op, target: float) -> Bar:
        """A bar that is reported, but does not decide."""
        return cls(_TARGET + name, value, op, target)

    def as_dict(self) -> dict[str, Any]:
        """For the JSON report."""
        return {
            "name": self.name,
            "value": round(self.value, 4),
            "op": self.op,
            "target": self.target,
            "ok": self.ok,
        }


def passed(bars: Iterable[Bar]) -> bool:
    """Whether every bar that decides is reached."""
    return all(bar.ok for bar in bars if bar.decides)
