"""The VRAM plan: the documented figures, and what follows on other cards."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline_ver2.config import Stage2Config
from pipeline_ver2.errors import ConfigError
from serving.workers.vllm_command import server_command
from serving.workers.vram_plan import DOCUMENTED_CARD, Card, Need, Plan, choose_card, parse_span

PROFILE = Path(__file__).parents[3] / "serving" / "profiles" / "a6000.json"


def no_card() -> None:
    """A machine without a GPU."""


def plan_with(free_gb: float, *, total_gb: float = 40.0) -> Plan:
    """A plan where so much is left for Stage 2."""
    return Plan(Card("a card", total_gb, total_gb - free_gb), stage1_gb=0)


def test_the_documented_figures() -> None:
    """7-9 GB at 2, up to 13 at 4, 31 at 13, which does not fit; 15-16 GB are free beside the weights."""
    plan = Plan(DOCUMENTED_CARD)
    assert plan.available_gb == 20.5
    assert 15 <= plan.as_dict()["free_beside_weights_gb"] <= 16
    rows = {row.at_once: row for row in map(plan.row, (2, 3, 4, 13))}
    assert {at: (row.low_gb, row.high_gb) for at, row in rows.items()} == {
        2: (7, 9),
        3: (8, 11),
        4: (9, 13),
        13: (18, 31),
    }
    assert [row.said for row in rows.values()] == ["fits", "fits", "fits", "does not fit by 10.5 GB"]
    assert (plan.max_fits, plan.recommended, plan.upper_safe) == (7, 2, 3)


def test_tight_leaves_less_than_a_tenth_of_the_card() -> None:
    """At the edges: 4 GB of 40 are left, a little less, nothing, a little too much."""
    assert [plan_with(free).row(2).verdict for free in (13, 12.9, 9, 8.9)] == ["fits", "tight", "tight", "does not fit"]
    assert plan_with(8.9).row(2).said == "does not fit by 0.1 GB"


@pytest.mark.parametrize(
    ("free_gb", "expected"),
    [(0, (0, 0, 0)), (6.9, (0, 0, 0)), (7, (1, 1, 1)), (9, (2, 2, 2)), (11, (3, 2, 3)), (40, (17, 2, 3))],
)
def test_less_is_recommended_where_less_fits(free_gb: float, expected: tuple[int, int, int]) -> None:
    """From nothing to plenty: what fits, the recommended limit, the upper safe one."""
    plan = plan_with(free_gb)
    assert (plan.max_fits, plan.recommended, plan.upper_safe) == expected
    assert bool(plan.vllm_args) == bool(plan.recommended)


def test_a_card_that_is_overfull_is_no_crash() -> None:
    """Others hold more than there is: nothing fits, and one request says by how much."""
    plan = plan_with(-3)
    assert plan.max_fits == 0
    assert "nothing fits: one request does not fit by 10 GB" in plan.as_text()


def test_vllm_gets_what_the_recommended_requests_and_the_readiness_check_need() -> None:
    """In hundredths of the card, never more than is there."""
    assert Plan(DOCUMENTED_CARD).vllm_args == ("--gpu-memory-utilization", "0.24", "--max-num-seqs", "3")
    assert plan_with(9.5).vllm_args == ("--gpu-memory-utilization", "0.23", "--max-num-seqs", "3")


def test_the_profile_is_what_the_planner_says() -> None:
    """Limit, share of the card and number of sequences of the command line that the daemon would start."""
    plan = Plan(DOCUMENTED_CARD)
    settings = Stage2Config.model_validate(json.loads(PROFILE.read_text(encoding="utf-8"))["stage2"])
    command = server_command("python", settings.model or "", settings, on_cpu=False)
    assert (settings.engine, settings.limit) == ("vllm", plan.recommended)
    for flag, value in zip(plan.vllm_args[::2], plan.vllm_args[1::2], strict=True):
        assert [command[at + 1] for at, part in enumerate(command) if part == flag] == [value]


def test_which_card_is_planned_for() -> None:
    """Given figures before the real card, the real one before the documented one."""
    real = Card("real", 80, 1)
    assert choose_card(None, None, lambda: real) is real
    assert choose_card(None, None, no_card) is DOCUMENTED_CARD
    assert choose_card(24, None, lambda: real) == Card("a card as given", 24, 26)
    assert choose_card(None, 0, lambda: real) == Card("a card as given", 47.5, 0)


def test_other_weights_and_requests() -> None:
    """The plan is arithmetic, not a table."""
    plan = Plan(Card("a card", 10, 0), stage1_gb=0, need=Need(1, 0.5, 1.5))
    assert (plan.row(2).gb, plan.max_fits) == ("2-4", 6)


@pytest.mark.parametrize(("text", "span"), [("1-2", (1, 2)), ("0.5-0.5", (0.5, 0.5)), ("3", (3, 3))])
def test_a_span(text: str, span: tuple[float, float]) -> None:
    """Two numbers, or one for both."""
    assert parse_span(text, "--it") == span


@pytest.mark.parametrize("text", ["", "x", "2-1", "0-1", "-1", "1-2-3", "1-inf", "nan"])
def test_what_is_no_span_is_refused(text: str) -> None:
    """The message names the option."""
    with pytest.raises(ConfigError, match=r"^--it: "):
        parse_span(text, "--it")
