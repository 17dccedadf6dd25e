"""The sequential baseline: all frames to files, then one batch after another, then one slot after another.

This is how the documented system began; it is kept runnable to be measured against. It uses the same daemons and
the same resize, prompts and image encoder as the orchestrator, so that only the order of the work differs.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import cv2
import numpy as np
import typer
from numpy.typing import NDArray
from pydantic import ValidationError
from rich.console import Console

from pipeline_ver2 import report
from pipeline_ver2.command import EXIT_PARTIAL, LOG_FORMAT, exit_codes
from pipeline_ver2.config import Config, load_config
from pipeline_ver2.errors import BadReply, ConfigError, RequestError, ResultsError, StageError, StageUnreachable
from pipeline_ver2.main import ExtractionReport, FrameExtractor, TimingRecorder, VideoInfo, probe_video
from pipeline_ver2.prompts import check_settings, encode_image
from pipeline_ver2.results import KeyframeRecord, Records, Results, SlotRecord, write_results
from pipeline_ver2.stage_clients import AnswererInfo, Stage1Client, Stage2Client
from pipeline_ver2.supervisor import Supervisor
from pipeline_ver2.tracker import ReadySlot, SlotTracker
from pipeline_ver2.wire import DetectClip, DetectReply, DetectRequest, DetectResult

log = logging.getLogger(__name__)

FrameFormat = Literal["jpeg", "png"]
FRAMES_NAME = "frames"
JPEG_QUALITY = 95


@dataclass(frozen=True, slots=True)
class ExtractedFrames:
    """The frame grid as files: `paths[i]` shows grid frame i (documented number i + 1) at `times_s[i]`."""

    paths: tuple[Path, ...]
    times_s: tuple[float, ...]
    video: VideoInfo
    extraction: ExtractionReport


async def run_baseline(
    source: Path,
    out: Path,
    config: Config,
    *,
    frames: FrameFormat = "jpeg",
    keep_frames: bool = False,
    recorder: TimingRecorder | None = None,
) -> Results:
    """Run a video through both stages, one step after another, and write results.json into `out`.

    Args:
        source: The video.
        out: The output folder; earlier results in it are replaced.
        config: The configuration; both stages must be up.
        frames: File format of the frames, `jpeg` as the documented system had it, `png` without loss.
        keep_frames: Leave the frame files in place.
        recorder: Takes the spans; its clock is the run's. None makes one.

    Raises:
        ConfigError: `out` lies outside the folders that Stage 1 may read.
        VideoError, ResultsError, StageError: As the orchestrator.
    """
    recorder = recorder or TimingRecorder()
    check_settings(config.pipeline)
    _check_folder(out, config)
    folder = out / FRAMES_NAME
    try:
        with recorder.span("decode"):
            extracted = extract_to_files(source, folder, config, frames)
        records, batches, models = await _ask_stages(extracted, config, recorder)
    finally:
        if not keep_frames:
            shutil.rmtree(folder, ignore_errors=True)
    results = report.build_results(
        source=source,
        video=extracted.video,
        extraction=extracted.extraction,
        models=models,
        records=records,
        batches=batches,
        spans=recorder.spans,
        wall_s=recorder.now(),
    )
    write_results(out, results)
    log.info("Total wall-clock time: %.2f s (%s)", results.timing.wall_s, results.state)
    return results


def extract_to_files(source: Path, folder: Path, config: Config, frames: FrameFormat) -> ExtractedFrames:
    """Write every grid frame, full size and upright, to `frame_000001.jpg` and so on.

    Raises:
        VideoError: The source cannot be used.
        ResultsError: A file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    suffix = "jpg" if frames == "jpeg" else "png"
    paths: list[Path] = []
    times_s: list[float] = []
    # An interval of 1 makes every grid frame a keyframe, which is what has full-size pixels.
    with FrameExtractor(
        source, grid_fps=config.pipeline.grid_fps, keyframe_interval=1, model_size=(64, 64)
    ) as extractor:
        for frame in extractor:
            if frame.full is None:
                raise RuntimeError("a grid frame came without its pixels")
            path = folder / f"frame_{frame.index + 1:06d}.{suffix}"
            _write_frame(path, frame.full)
            paths.append(path)
            times_s.append(frame.time_s)
        return ExtractedFrames(tuple(paths), tuple(times_s), extractor.info, extractor.report)


def keyframe_numbers(frames: int, interval: int) -> list[int]:
    """Documented numbers, from 1, of the keyframes of so many grid frames; the last frame if they are too few."""
    return list(range(interval, frames + 1, interval)) or [frames]


def clip_numbers(key_index: int, clip_length: int, sampling_rate: int) -> list[int]:
    """Documented numbers of a clip's frames, oldest first; before the start the first frame repeats."""
    return [max(1, key_index - back * sampling_rate) for back in reversed(range(clip_length))]


def _check_folder(out: Path, config: Config) -> None:
    resolved = out.resolve()
    if not any(resolved.is_relative_to(root) for root in config.paths.readable_roots):
        raise ConfigError(f"paths.media_roots: must hold the output folder {resolved}, so that Stage 1 may read frames")


def _write_frame(path: Path, rgb: NDArray[np.uint8]) -> None:
    quality = [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY] if path.suffix == ".jpg" else []
    if not cv2.imwrite(str(path), cv2.cvtColor(rgb, cv2.COLOR_RGB2BGR), quality):
        raise ResultsError(f"frame {path} could not be written")


def _read_frame(path: Path) -> NDArray[np.uint8]:
    bgr = cv2.imread(str(path), cv2.IMREAD_COLOR)
    if bgr is None:
        raise ResultsError(f"frame {path} could not be read back")
    return cv2.cvtColor(bgr, cv2.COLOR_BGR2RGB).astype(np.uint8, copy=False)


async def _ask_stages(
    extracted: ExtractedFrames, config: Config, recorder: TimingRecorder
) -> tuple[Records, int, dict[str, dict[str, Any]]]:
    """All of Stage 1, then all of Stage 2: the records, how many batches, and what each stage says of its model."""
    async with (
        Stage1Client(config.stage1, retry_for_s=config.pipeline.retry_for_s) as stage1,
        Stage2Client(config.stage2, config.pipeline) as stage2,
    ):
        detector, answerer = await stage1.describe(), await stage2.describe()
        records, batches = await _detect_all(stage1, extracted, config, recorder)
        await _answer_all(stage2, answerer, detector.labels, extracted, records, config, recorder)
        return records, batches, {"stage1": detector.as_dict(), "stage2": answerer.as_dict()}


async def _detect_all(
    stage1: Stage1Client, extracted: ExtractedFrames, config: Config, recorder: TimingRecorder
) -> tuple[Records, int]:
    keys = keyframe_numbers(len(extracted.paths), config.pipeline.keyframe_interval)
    records = Records()
    size = config.stage1.batch_size
    batches = [keys[start : start + size] for start in range(0, len(keys), size)]
    for number, batch in enumerate(batches):
        with recorder.span("stage1_run", batch=number):
            found = await _detect(stage1, extracted, batch, config)
        log.info("Stage 1 batch %d processed: keyframes %s", number, batch)
        for key_index in batch:
            records.add(_keyframe(key_index, extracted.times_s[key_index - 1], found[key_index]))
    return records, len(batches)


async def _detect(
    stage1: Stage1Client, extracted: ExtractedFrames, batch: Sequence[int], config: Config
) -> Mapping[int, DetectResult | StageError | RequestError]:
    length, rate = config.stage1.clip_length, config.stage1.sampling_rate
    clips = tuple(
        DetectClip(
            clip_id=str(key_index),
            key_index=key_index,
            frame_paths=tuple(str(extracted.paths[number - 1]) for number in clip_numbers(key_index, length, rate)),
        )
        for key_index in batch
    )
    body = DetectRequest(clips=clips, threshold=config.stage1.threshold).model_dump_json(exclude_none=True)
    try:
        reply = await stage1.post_json("/detect", body.encode(), key=uuid.uuid4().hex)
        results = {result.clip_id: result for result in DetectReply.model_validate_json(reply.body).results}
        return {key_index: results[str(key_index)] for key_index in batch}
    except StageUnreachable:
        raise
    except (ValidationError, KeyError) as error:
        return dict.fromkeys(batch, BadReply(f"stage1: the reply of /detect does not fit: {error}"))
    except (StageError, RequestError) as error:
        return dict.fromkeys(batch, error)


def _keyframe(key_index: int, time_s: float, found: DetectResult | StageError | RequestError) -> KeyframeRecord:
    if isinstance(found, DetectResult) and found.state == "ok":
        return KeyframeRecord(key_index=key_index, time_s=time_s, state="ok", detections=found.detections)
    reason = found.error if isinstance(found, DetectResult) else f"{found.code}: {found}"
    return KeyframeRecord(key_index=key_index, time_s=time_s, state="failed", reason=reason)


def _slots(records: Records, extracted: ExtractedFrames, config: Config) -> list[ReadySlot]:
    """The slots in order, each with its images read back from the frame files."""
    settings = config.pipeline
    tracker = SlotTracker(settings.slot_frames)
    slots: list[ReadySlot | None] = []
    for key_index, record in sorted(records.keyframes.items()):
        rgb = _read_frame(extracted.paths[key_index - 1])
        tracker.expect(key_index, encode_image(rgb, max_px=settings.image_max_px, quality=settings.jpeg_quality))
        slots.append(tracker.settle(record))
    slots.append(tracker.close())
    return [slot for slot in slots if slot is not None]


async def _answer_all(
    stage2: Stage2Client,
    answerer: AnswererInfo,
    labels: Sequence[str],
    extracted: ExtractedFrames,
    records: Records,
    config: Config,
    recorder: TimingRecorder,
) -> None:
    job_id = uuid.uuid4().hex[:12]
    for slot in _slots(records, extracted, config):
        record = slot.unasked(config.pipeline.gate)
        if record is None:
            with recorder.span("stage2_run", slot=slot.index):
                record = await _answer(stage2, slot, answerer, labels, job_id)
        records.add(record)


async def _answer(
    stage2: Stage2Client, slot: ReadySlot, answerer: AnswererInfo, labels: Sequence[str], job_id: str
) -> SlotRecord:
    begun = time.perf_counter()
    try:
        asked, times = await stage2.evaluate(
            slot.question(labels), model=answerer.name, key=f"{job_id}/slot-{slot.index}"
        )
    except StageUnreachable:
        raise
    except (StageError, RequestError) as error:
        return slot.refused(error)
    duration_s = time.perf_counter() - begun
    log.info("Slot %d: VLM took %.2f s, sends %d", slot.index, duration_s, asked.attempts)
    return slot.answered(asked, times, duration_s)


def command(
    clip: Annotated[Path, typer.Argument(help="The video.")],
    out: Annotated[Path | None, typer.Option(help="Output folder; default out/baseline.")] = None,
    config: Annotated[Path | None, typer.Option(help="Configuration file; default ./config.json.")] = None,
    frames: Annotated[FrameFormat, typer.Option(help="File format of the frames.")] = "jpeg",
    *,
    keep_frames: Annotated[bool, typer.Option("--keep-frames", help="Leave the frame files in place.")] = False,
    no_spawn: Annotated[bool, typer.Option("--no-spawn", help="Use running daemons only.")] = False,
) -> None:
    """The sequential baseline: everything one after another."""
    with exit_codes():
        logging.basicConfig(level=logging.INFO, format=LOG_FORMAT)
        settings = load_config(config)
        probe_video(clip)
        folder = out or Path("out") / "baseline"
        results = asyncio.run(_supervised(clip, folder, settings, frames, keep_frames=keep_frames, spawn=not no_spawn))
        Console().print(report.summary_table(results))
    raise typer.Exit(0 if results.state == "succeeded" else EXIT_PARTIAL)


async def _supervised(
    clip: Path, out: Path, config: Config, frames: FrameFormat, *, keep_frames: bool, spawn: bool
) -> Results:
    async with Supervisor(config, spawn=spawn) as supervisor:
        return await supervisor.run(run_baseline(clip, out, config, frames=frames, keep_frames=keep_frames))


if __name__ == "__main__":
    typer.run(command)
