"""How many Stage 2 requests a GPU's memory allows.

GB are 2**30 bytes, as `nvidia-smi` and torch count them. The defaults are the documented card and its figures.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from pipeline_ver2.errors import ConfigError

STAGE1_GB = 1.0
WEIGHTS_GB = 5.0
PER_REQUEST_GB = (1.0, 2.0)
AT_ONCE = (2, 3, 4, 13)
RECOMMENDED, UPPER_SAFE = 2, 3

SHARE_FLAG = "--gpu-memory-utilization"
# vLLM by itself leaves a tenth of the card, too: memory is taken in blocks, and neighbours grow.
MARGIN_SHARE = 0.1

Verdict = Literal["fits", "tight", "does not fit"]


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU's memory, and how much of it others hold now."""

    name: str
    total_gb: float
    used_gb: float

    @property
    def free_gb(self) -> float:
        """What nobody holds."""
        return self.total_gb - self.used_gb


DOCUMENTED_CARD = Card("RTX A6000 as documented", 47.5, 26.0)
CardReader = Callable[[], Card | None]


@dataclass(frozen=True, slots=True)
class Need:
    """What Stage 2 takes: weights once, and between `low_gb` and `high_gb` for each request at work."""

    weights_gb: float = WEIGHTS_GB
    low_gb: float = PER_REQUEST_GB[0]
    high_gb: float = PER_REQUEST_GB[1]

    def of(self, at_once: int) -> tuple[float, float]:
        """`(low, high)` GB with so many requests at once."""
        return self.weights_gb + at_once * self.low_gb, self.weights_gb + at_once * self.high_gb

    def most(self, available_gb: float) -> int:
        """The most requests whose high figure is available; 0 if not even one is."""
        return max(0, math.floor((available_gb - self.weights_gb) / self.high_gb + 1e-9))


@dataclass(frozen=True, slots=True)
class Row:
    """So many requests at once: what they take, and how that goes; `short_gb` is what is missing."""

    at_once: int
    low_gb: float
    high_gb: float
    verdict: Verdict
    short_gb: float

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        figures = {name: round(getattr(self, name), 3) for name in ("low_gb", "high_gb", "short_gb")}
        return {"at_once": self.at_once, "verdict": self.verdict, **figures}

    @property
    def gb(self) -> str:
        """What they take, in words."""
        return f"{self.low_gb:.4g}-{self.high_gb:.4g}"

    @property
    def said(self) -> str:
        """The verdict in words."""
        return f"does not fit by {self.short_gb:.4g} GB" if self.verdict == "does not fit" else self.verdict


@dataclass(frozen=True, slots=True)
class Plan:
    """What a card has for Stage 2, and what follows from it."""

    card: Card
    stage1_gb: float = STAGE1_GB
    need: Need = Need()

    @property
    def available_gb(self) -> float:
        """What others and Stage 1 leave."""
        return self.card.free_gb - self.stage1_gb

    @property
    def margin_gb(self) -> float:
        """What should be left beside Stage 2."""
        return MARGIN_SHARE * self.card.total_gb

    @property
    def max_fits(self) -> int:
        """The most requests at once that fit, tight ones included."""
        return self.need.most(self.available_gb)

    @property
    def recommended(self) -> int:
        """The value for `stage2.limit`; 0 if nothing fits."""
        return min(RECOMMENDED, self.max_fits)

    @property
    def upper_safe(self) -> int:
        """The highest value that is still safe."""
        return min(UPPER_SAFE, self.max_fits)

    @property
    def share(self) -> float:
        """The share of the card for vLLM: the recommended requests and one for readiness, in hundredths."""
        _, wanted_gb = self.need.of(self.recommended + 1)
        hundredths = math.ceil(100 * wanted_gb / self.card.total_gb - 1e-9)
        return min(hundredths, math.floor(100 * self.available_gb / self.card.total_gb + 1e-9)) / 100

    @property
    def vllm_args(self) -> tuple[str, ...]:
        """vLLM's flags for the recommended limit; none if nothing fits."""
        if not self.recommended:
            return ()
        return (SHARE_FLAG, f"{self.share:g}", "--max-num-seqs", str(self.recommended + 1))

    def row(self, at_once: int) -> Row:
        """How so many requests at once go.

        They fit if their high figure is available; tight is a fit that leaves less than the margin.
        """
        low_gb, high_gb = self.need.of(at_once)
        left_gb = self.available_gb - high_gb
        verdict: Verdict = "does not fit" if left_gb < 0 else "tight" if left_gb < self.margin_gb else "fits"
        return Row(at_once, low_gb, high_gb, verdict, max(0.0, -left_gb))

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "card": self.card.name,
            "total_gb": self.card.total_gb,
            "reserved_gb": self.card.used_gb,
            "stage1_gb": self.stage1_gb,
            "weights_gb": self.need.weights_gb,
            "per_request_gb": [self.need.low_gb, self.need.high_gb],
            "available_gb": round(self.available_gb, 3),
            "free_beside_weights_gb": round(self.available_gb - self.need.weights_gb, 3),
            "margin_gb": round(self.margin_gb, 3),
            "rows": [self.row(at_once).as_dict() for at_once in AT_ONCE],
            "max_fits": self.max_fits,
            "recommended_limit": self.recommended,
            "upper_safe_limit": self.upper_safe,
            "vllm_args": list(self.vllm_args),
        }

    def as_text(self) -> str:
        """For people."""
        card, need = self.card, self.need
        lines = [
            f"{card.name}: {card.total_gb:.4g} GB, {card.used_gb:.4g} GB taken by others, {self.stage1_gb:g} GB for "
            f"Stage 1; {self.available_gb:.4g} GB are left for Stage 2",
            f"Stage 2: {need.weights_gb:.4g} GB of weights and {need.low_gb:g}-{need.high_gb:g} GB a request; "
            f"{self.available_gb - need.weights_gb:.4g} GB are free beside the weights",
            "",
            f"{'at once':>7}  {'GB':<10}",
        ]
        lines += [f"{row.at_once:>7}  {row.gb:<10}  {row.said}" for row in map(self.row, AT_ONCE)]
        lines += ["", f"tight: less than {self.margin_gb:.3g} GB, a tenth of the card, would be left"]
        if not self.recommended:
            return "\n".join([*lines, f"nothing fits: one request {self.row(1).said}"])
        lines += [
            f"at most {self.max_fits} at once fit",
            f"recommended: stage2.limit {self.recommended}, {self.upper_safe} is the upper safe value",
            f"vLLM: {' '.join(self.vllm_args)}",
        ]
        return "\n".join(lines)


def choose_card(total_gb: float | None, used_gb: float | None, read: CardReader) -> Card:
    """The card to plan for: the given figures, completed by the documented ones; else the real one, if there is one.

    Args:
        total_gb: The card's memory.
        used_gb: What others hold of it.
        read: Gives the real card.
    """
    if total_gb is None and used_gb is None:
        return read() or DOCUMENTED_CARD
    total_gb = DOCUMENTED_CARD.total_gb if total_gb is None else total_gb
    return Card("a card as given", total_gb, DOCUMENTED_CARD.used_gb if used_gb is None else used_gb)


def parse_span(text: str, name: str) -> tuple[float, float]:
    """`(low, high)` of a text such as `1-2`, or `2` for both.

    Raises:
        ConfigError: It is none, or not in order; the message begins with `name`.
    """
    low, _, high = text.partition("-")
    try:
        span = float(low), float(high or low)
    except ValueError as error:
        raise ConfigError(f"{name}: expected LOW-HIGH such as 1-2, not {text!r}") from error
    if not 0 < span[0] <= span[1] < math.inf:
        raise ConfigError(f"{name}: must be above 0 and in order, not {text!r}")
    return span
