"""What follows from vLLM's metrics."""

from __future__ import annotations

import pytest

from serving.workers.vllm_vitals import Reading, Vitals

TEXT = """\
# HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="a {b} 1"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="a {b} 1"} 0.5
vllm:num_preemptions_total{engine="0",model_name="a {b} 1"} 2.0
vllm:num_preemptions_created{engine="0",model_name="a {b} 1"} 1.7e+09
vllm:iteration_tokens_total_count{engine="0",model_name="a {b} 1"} 7.0
vllm:iteration_tokens_total_bucket{engine="0",le="1.0",model_name="a {b} 1"} 100.0
vllm:generation_tokens_total{engine="0",model_name="a {b} 1"} 30.0
vllm:prompt_tokens_total{engine="0",model_name="a {b} 1"} 500.0
vllm:broken{ nonsense
python_info{version="3.11.7"} 1.0
"""


def look(work: float = 0, *, usage: float = 0, preemptions: float = 0) -> Reading:
    """One look."""
    return Reading(cache_usage=usage, preemptions=preemptions, work=work)


def test_the_metrics_are_read() -> None:
    """The fullest engine's cache, all preemptions, all work; other series do not count."""
    assert Reading.of(TEXT) == look(537, usage=0.5, preemptions=2)


@pytest.mark.parametrize(
    "text", ["", "python_info 1\n", "vllm:kv_cache_usage_perc\n", "vllm:num_preemptions_total x\n"]
)
def test_what_is_not_there_is_nothing(text: str) -> None:
    """No series, or none with a number."""
    assert Reading.of(text) == look()


def test_it_stalls_when_it_has_work_and_does_none() -> None:
    """Counted from when it last got on, had nothing to do, or could not be looked at."""
    vitals = Vitals(0)
    for now, reading, has_work, stalled in (
        (1, look(5), True, 0),
        (2, look(5), True, 1),
        (4, look(5), True, 3),
        (5, look(6), True, 0),
        (7, look(6), True, 2),
        (8, look(6), False, 0),
        (9, look(6), True, 1),
        (10, None, True, 0),
        (11, look(6), True, 0),
        (12, look(6), True, 1),
    ):
        vitals.note(reading, has_work=has_work, now=now)
        assert vitals.stalled_s(now) == stalled, now
    assert vitals.stalled_s(20) == 9


def test_it_has_moved_when_its_work_has_grown() -> None:
    """Not at the first look, and not when the counters begin anew."""
    vitals = Vitals(0)
    moved = []
    for reading in (look(5), look(6), look(6), look(0), None, look(9)):
        vitals.note(reading, has_work=True, now=1)
        moved.append(vitals.has_moved)
    assert moved == [False, True, False, False, False, False]


def test_pressure_is_a_full_cache_or_more_preemptions() -> None:
    """Preemptions of before are no news."""
    vitals = Vitals(0)
    pressed = []
    for reading in (
        look(preemptions=3),
        look(preemptions=3),
        look(preemptions=4),
        look(preemptions=4, usage=0.95),
        look(preemptions=4, usage=0.96),
        None,
    ):
        vitals.note(reading, has_work=True, now=1)
        pressed.append(vitals.is_pressed)
    assert pressed == [False, False, True, False, True, False]
