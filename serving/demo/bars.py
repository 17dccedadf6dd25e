"""A measured figure beside what it should be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Bar:
    """One figure and what it should be; `floor` means that the model must not be shipped below it."""

    name: str
    value: float
    op: Literal[">=", "<="]
    target: float
    floor: bool = False

    @property
    def ok(self) -> bool:
        """Whether the figure is as it should be."""
        return self.value >= self.target if self.op == ">=" else self.value <= self.target

    def described(self) -> dict[str, Any]:
        """For JSON."""
        return {"name": self.name, "value": self.value, "op": self.op, "target": self.target, "ok": self.ok}
