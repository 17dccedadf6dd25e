"""The orchestrator against scripted stages: order, bounds, and what becomes of every fault."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from aiohttp import web

from pipeline_ver2.errors import BadReply, ConfigError, StageUnreachable
from pipeline_ver2.job import Job
from pipeline_ver2.main import TimingRecorder
from pipeline_ver2.realtime_pipeline import run_pipeline
from pipeline_ver2.results import JOURNAL_NAME, read_results
from tests.conftest import FRAMES
from tests.pipeline_ver2.conftest import settings_for, states
from tests.stand_ins import Stages, completion, found_reply, hang, refusal, reset, stand_ins


async def test_a_clip_goes_through_both_stages(clip: Path, stages: Stages, tmp_path: Path) -> None:
    """Every frame, keyframe, batch and slot is counted; the last slot is filled up; results.json is written."""
    results = await run_pipeline(Job(clip, tmp_path), settings_for(stages))

    counts = results.counts
    assert results.state == "succeeded"
    assert (counts.frames_decoded, counts.frames_grid) == (FRAMES, FRAMES)
    assert (counts.keyframes, counts.batches, counts.slots, counts.ok) == (13, 4, 5, 5)
    assert [record.key_index for record in results.keyframes] == [11 * number for number in range(1, 14)]
    assert results.slots[4].key_indices == (143, 143, 143)
    assert results.slots[0].answer == {"action": "walk", "description": "One person.", "confirmed": True}
    assert results.keyframes[0].detections[0].box == (0, 0, 48, 64)
    assert read_results(tmp_path) == results


async def test_the_detector_sees_the_clip_that_ends_at_the_keyframe(clip: Path, stages: Stages, tmp_path: Path) -> None:
    """The clip's last frame is the keyframe, its first is 15 before it; before the start the first frame repeats."""
    await run_pipeline(Job(clip, tmp_path), settings_for(stages))

    by_batch = dict(zip(stages.stage1.keys, stages.stage1.bodies, strict=True))
    first = next(body for key, body in by_batch.items() if key.endswith("batch-0"))
    brightness = first.mean(axis=(2, 3, 4))
    assert np.allclose(brightness[0], 20 + np.maximum(0, np.arange(16) - 5), atol=3)
    assert np.allclose(brightness[1], 20 + np.arange(6, 22), atol=3)


async def test_no_bound_is_exceeded_and_every_permit_comes_back(clip: Path, stages: Stages, tmp_path: Path) -> None:
    """Stage 1 has at most max_in_flight requests, Stage 2 at most the window, over a whole run."""

    async def slow(_request: web.Request, _key: str, _time: int) -> None:
        await asyncio.sleep(0.02)

    stages.stage1.rule = stages.stage2.rule = slow
    settings = settings_for(stages, stage1__batch_size=1, stage1__max_in_flight=3, pipeline__slot_frames=1)
    results = await run_pipeline(Job(clip, tmp_path), settings)

    assert states(results) == ["ok"] * 13
    assert stages.stage1.most_running == 3
    assert stages.stage2.most_running == 2


async def test_stage_2_starts_before_stage_1_has_ended(clip: Path, stages: Stages, tmp_path: Path) -> None:
    """The first slot is asked about while later batches are still at Stage 1."""
    asked = asyncio.Event()

    async def last_batch_waits(_request: web.Request, key: str, _time: int) -> None:
        if key == "batch-3":
            await asked.wait()

    async def tell(_request: web.Request, _key: str, _time: int) -> None:
        asked.set()

    stages.stage1.rule, stages.stage2.rule = last_batch_waits, tell
    results = await run_pipeline(Job(clip, tmp_path), settings_for(stages))

    assert results.state == "succeeded"
    began, ended = results.timing.stage2_began_s, results.timing.stage1_ended_s
    assert began is not None
    assert ended is not None
    assert began < ended


async def test_batches_answered_out_of_order_make_the_same_slots(clip: Path, stages: Stages, tmp_path: Path) -> None:
    """The first batch answered last changes nothing in what belongs to what."""
    others = asyncio.Event()

    async def first_is_last(_request: web.Request, key: str, _time: int) -> None:
        if key == "batch-0":
            await others.wait()
        elif key == "batch-3":
            others.set()

    stages.stage1.rule = first_is_last
    results = await run_pipeline(Job(clip, tmp_path), settings_for(stages))

    assert [slot.key_indices for slot in results.slots[:2]] == [(11, 22, 33), (44, 55, 66)]
    assert states(results) == ["ok"] * 5


async def test_images_go_out_in_time_order_and_the_fill_is_told(clip: Path, stages: Stages, tmp_path: Path) -> None:
    """Each request has three images with their times; a repeated one is called the same as the one before."""
    await run_pipeline(Job(clip, tmp_path), settings_for(stages))

    texts = {
        body["messages"][1]["content"][0]["text"]: [
            part["text"] for part in body["messages"][1]["content"] if part["type"] == "text"
        ]
        for body in stages.stage2.bodies
    }
    assert texts["Frame 1, t=0.33 s"][:3] == ["Frame 1, t=0.33 s", "Frame 2, t=0.70 s", "Frame 3, t=1.07 s"]
    assert texts["Frame 1, t=4.73 s"][1] == "Frame 2, t=4.73 s, same as frame 1"


async def test_the_gate_skips_slots_without_findings(clip: Path, tmp_path: Path) -> None:
    """With gate "detections" a slot in which nobody was found is skipped with its reason and not sent."""
    async with stand_ins(found=0) as stages:
        results = await run_pipeline(Job(clip, tmp_path), settings_for(stages, pipeline__gate="detections"))

        assert states(results) == ["skipped"] * 5
        assert {slot.reason for slot in results.slots} == {"gate: no detections"}
        assert (results.state, results.counts.skipped, stages.stage2.keys) == ("succeeded", 5, [])


@pytest.mark.fault("A5")
async def test_a_batch_that_fails_fails_its_slots_alone(clip: Path, stages: Stages, tmp_path: Path) -> None:
    """A batch lost twice makes its keyframes failed and the slots that need them `stage1_failed`; others go on."""

    async def second_breaks(_request: web.Request, key: str, _time: int) -> web.Response | None:
        return refusal(503, "engine_failed") if key == "batch-1" else None

    stages.stage1.rule = second_breaks
    results = await run_pipeline(Job(clip, tmp_path), settings_for(stages))

    assert states(results) == ["ok", "failed", "failed", "ok", "ok"]
    assert {results.slots[1].reason, results.slots[2].reason} == {"stage1_failed"}
    assert [record.state for record in results.keyframes] == ["ok"] * 4 + ["failed"] * 4 + ["ok"] * 5
    assert (results.state, stages.stage1.seen["batch-1"]) == ("partial", 2)


@pytest.mark.fault("A5")
async def test_a_clip_the_detector_reports_unusable_fails_alone(clip: Path, stages: Stages, tmp_path: Path) -> None:
    """A status other than 0 is a failed keyframe with that reason."""

    async def bad_status(_request: web.Request, key: str, _time: int) -> web.Response | None:
        return found_reply(4, 1, status=3) if key == "batch-0" else None

    stages.stage1.rule = bad_status
    results = await run_pipeline(Job(clip, tmp_path), settings_for(stages))

    assert results.keyframes[0].reason == "bad_reply: the detector reports status 3"
    assert results.counts.failed == 2


@pytest.mark.fault("O1")
@pytest.mark.parametrize("content", ["no JSON", '{"action": "fly", "description": ""}', None])
async def test_a_slot_without_a_valid_answer_fails_after_two_sends(
    clip: Path, stages: Stages, tmp_path: Path, content: str | None
) -> None:
    """The second send is another variant; then the slot is failed with its raw text, and the others are answered."""

    async def spoil(_request: web.Request, key: str, _time: int) -> web.Response | None:
        return completion(content) if key == "slot-2" else None

    stages.stage2.rule = spoil
    results = await run_pipeline(Job(clip, tmp_path), settings_for(stages))

    slot = results.slots[2]
    assert states(results) == ["ok", "ok", "failed", "ok", "ok"]
    assert (slot.attempts, slot.raw_text, slot.finish_reason) == (2, content or "", "stop")
    assert slot.reason is not None
    assert slot.reason.startswith("answer_invalid: ")
    assert sorted(key.split("/")[2] for key in stages.stage2.keys if "slot-2" in key) == ["1", "2"]


@pytest.mark.fault("O2")
async def test_a_connection_reset_is_sent_again_under_the_same_key(clip: Path, stages: Stages, tmp_path: Path) -> None:
    """A lost connection costs one send; the same request goes out again and its slot has one record."""

    async def drop_first(request: web.Request, key: str, time: int) -> web.Response | None:
        if key in {"slot-1", "batch-2"} and time == 1:
            reset(request)
        return None

    stages.stage1.rule = stages.stage2.rule = drop_first
    results = await run_pipeline(Job(clip, tmp_path), settings_for(stages))

    lines = [json.loads(line) for line in (tmp_path / JOURNAL_NAME).read_text().splitlines()]
    keys = [key for key in stages.stage2.keys if "slot-1" in key]
    assert states(results) == ["ok"] * 5
    assert results.slots[1].attempts == 2
    assert len(keys) == 2
    assert len(set(keys)) == 1
    assert [line["index"] for line in lines if line["type"] == "slot"].count(1) == 1


@pytest.mark.fault("B6")
async def test_a_slot_that_kills_the_engine_takes_no_other_with_it(clip: Path, stages: Stages, tmp_path: Path) -> None:
    """The poison slot is sent twice and fails; those in flight beside it are sent again without it and are answered."""
    crash = asyncio.Event()

    async def poisoned(request: web.Request, key: str, _time: int) -> web.Response | None:
        if key == "slot-5":
            await asyncio.sleep(0.05)
            crash.set()
            crash.clear()
            return refusal(503, "engine_failed")
        try:
            await asyncio.wait_for(crash.wait(), 0.1)
        except TimeoutError:
            return None
        return refusal(503, "engine_failed")

    stages.stage2.rule = poisoned
    settings = settings_for(stages, pipeline__slot_frames=1, pipeline__stage2_window=4)
    results = await run_pipeline(Job(clip, tmp_path), settings)

    assert [slot.index for slot in results.slots if slot.state != "ok"] == [5]
    assert stages.stage2.seen["slot-5"] == 2
    assert max(stages.stage2.seen.values()) == 2
    assert min(stages.stage2.seen.values()) == 1


@pytest.mark.fault("B7")
async def test_a_dead_engine_behind_a_living_server_is_waited_for(clip: Path, stages: Stages, tmp_path: Path) -> None:
    """After a lost send nothing is sent again before `/readyz` agrees, so no slot burns its sends on a dead engine."""

    async def dead_until_ready(_request: web.Request, _key: str, _time: int) -> web.Response | None:
        alive = stages.stage2.unready is not None and stages.stage2.unready < 0
        return None if alive else refusal(503, "engine_failed")

    stages.stage2.rule, stages.stage2.unready = dead_until_ready, 4
    results = await run_pipeline(Job(clip, tmp_path), settings_for(stages))

    assert states(results) == ["ok"] * 5
    assert max(slot.attempts for slot in results.slots) == 2


async def test_a_refused_second_send_keeps_what_the_first_gave(clip: Path, stages: Stages, tmp_path: Path) -> None:
    """An invalid answer, then a refusal: failed or shed with both sends told and the raw text kept."""

    async def spoil_then_refuse(_request: web.Request, key: str, time: int) -> web.Response | None:
        if key not in {"slot-0", "slot-1"}:
            return None
        if time == 1:
            return completion("no JSON")
        return refusal(422, "bad_request") if key == "slot-0" else refusal(503, "shed_deadline")

    stages.stage2.rule = spoil_then_refuse
    refused, shed, *_ = (await run_pipeline(Job(clip, tmp_path), settings_for(stages))).slots

    assert (refused.state, refused.attempts, refused.raw_text) == ("failed", 2, "no JSON")
    assert (shed.state, shed.attempts, shed.raw_text) == ("shed", 1, "no JSON")


@pytest.mark.fault("A2")
async def test_a_detector_with_other_classes_than_labels_fails_its_keyframes(
    clip: Path, stages: Stages, tmp_path: Path
) -> None:
    """Four scores for three labels: every keyframe fails with both numbers, nothing is named wrongly."""

    async def four_classes(_request: web.Request, _key: str, _time: int) -> web.Response:
        return found_reply(4, 1, classes=4)

    stages.stage1.rule = four_classes
    results = await run_pipeline(Job(clip, tmp_path), settings_for(stages, pipeline__keyframe_interval=12))

    assert {record.reason for record in results.keyframes} == {
        "bad_reply: the detector scores 4 classes, there are 3 labels"
    }


@pytest.mark.fault("O3")
async def test_a_full_queue_is_waiting_and_no_send(clip: Path, stages: Stages, tmp_path: Path) -> None:
    """429 and a 503 of a stage that is not ready are waited out and do not count as sends."""

    async def busy(_request: web.Request, key: str, time: int) -> web.Response | None:
        if time > 3:
            return None
        return refusal(429, "queue_full") if key == "slot-0" else refusal(503, "stage_unreachable")

    stages.stage2.rule = busy
    results = await run_pipeline(Job(clip, tmp_path), settings_for(stages))

    assert states(results) == ["ok"] * 5
    assert [slot.attempts for slot in results.slots] == [1] * 5


@pytest.mark.fault("O4")
async def test_slots_that_hang_time_out_and_the_others_go_on(clip: Path, stages: Stages, tmp_path: Path) -> None:
    """Every fifth slot hangs twice: it fails with a time-out, every other one is answered, the bound holds."""

    async def fifth_hangs(request: web.Request, key: str, time: int) -> web.Response | None:
        if int(key.split("-")[1]) % 5 == 4:
            await hang(request, key, time)
        return None

    stages.stage2.rule = fifth_hangs
    settings = settings_for(stages, pipeline__slot_frames=1, pipeline__keyframe_interval=3, stage2__timeout_s=0.3)
    results = await run_pipeline(Job(clip, tmp_path), settings)

    hanging = [slot for slot in results.slots if slot.index % 5 == 4]
    assert len(results.slots) == FRAMES // 3
    assert {(slot.state, slot.attempts) for slot in hanging} == {("failed", 2)}
    assert results.counts.ok == len(results.slots) - len(hanging)
    assert stages.stage2.most_running == 2
    assert stages.stage2.running == 0


async def test_what_the_scheduler_sheds_is_told_as_shed(clip: Path, stages: Stages, tmp_path: Path) -> None:
    """A 503 with code shed_deadline is final: state shed, not sent again."""

    async def shed(_request: web.Request, key: str, _time: int) -> web.Response | None:
        return refusal(503, "shed_deadline") if key == "slot-0" else None

    stages.stage2.rule = shed
    results = await run_pipeline(Job(clip, tmp_path), settings_for(stages))

    assert (results.slots[0].state, results.counts.shed, stages.stage2.seen["slot-0"]) == ("shed", 1, 1)


async def test_a_stage_that_stays_away_ends_the_run_with_what_there_is(
    clip: Path, stages: Stages, tmp_path: Path
) -> None:
    """After retry_for_s the run fails, naming the stage; keyframes so far and state `failed` are on disk."""

    async def away(_request: web.Request, key: str, _time: int) -> web.Response | None:
        return refusal(503, "stage_unreachable")

    stages.stage2.rule = away
    with pytest.raises(StageUnreachable, match="stage2 at http"):
        await run_pipeline(Job(clip, tmp_path), settings_for(stages, pipeline__retry_for_s=0.3))

    results = read_results(tmp_path)
    assert results.state == "failed"
    assert results.error is not None
    assert results.counts.keyframes >= 3


async def test_a_detector_of_another_clip_length_is_refused(clip: Path, stages: Stages, tmp_path: Path) -> None:
    """The configured clip length must be the model's; the message names the key."""
    with pytest.raises(ConfigError, match=r"stage1\.clip_length: is 8"):
        await run_pipeline(Job(clip, tmp_path), settings_for(stages, stage1__clip_length=8))


@pytest.mark.fault("O1")
async def test_a_reply_without_tensors_fails_its_batch(clip: Path, stages: Stages, tmp_path: Path) -> None:
    """A 200 that is no infer reply fails the batch after its second send."""

    async def nonsense(_request: web.Request, key: str, _time: int) -> web.Response | None:
        return web.json_response({"outputs": []}) if key == "batch-0" else None

    stages.stage1.rule = nonsense
    results = await run_pipeline(Job(clip, tmp_path), settings_for(stages))

    assert results.keyframes[0].reason is not None
    assert results.keyframes[0].reason.startswith(BadReply.code)
    assert stages.stage1.seen["batch-0"] == 2


class ThreadRecorder(TimingRecorder):
    """Notes on which thread each decoding span was measured."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: set[threading.Thread] = set()

    @contextmanager
    def span(self, name: str, **attributes: float | str) -> Iterator[None]:
        """Note the thread, then record."""
        self.threads.add(threading.current_thread())
        with super().span(name, **attributes):
            yield


@pytest.mark.fault("O10")
async def test_frames_are_decoded_and_resized_in_one_thread_beside_the_loop(
    clip: Path, stages: Stages, tmp_path: Path
) -> None:
    """All decoding, resizing and encoding is done on one thread, which is not the event loop's."""
    recorder = ThreadRecorder()
    await run_pipeline(Job(clip, tmp_path), settings_for(stages), recorder=recorder)

    assert len(recorder.threads) == 1
    assert threading.current_thread() not in recorder.threads
    assert {"decode", "preprocess", "stage1_run", "slot_wait", "stage2_run"} <= {span.name for span in recorder.spans}
