"""What the measuring commands share: daemons of their own or running ones, drawing beside asking, and their end."""

from __future__ import annotations

import argparse
import asyncio
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import cv2

from pipeline_ver2.config import Config, Stage1Config, Stage2Config
from pipeline_ver2.errors import BadReply, ConfigError, ZroactError
from pipeline_ver2.findings import ClipFindings
from pipeline_ver2.stage_clients import DetectorInfo
from pipeline_ver2.stage_probe import StageName
from pipeline_ver2.supervisor import Supervisor
from serving.bench.daemons import free_ports, paths_in
from serving.demo.skeleton import LABELS

AT_ONCE = 4
"""So many items are drawn or asked about at a time."""
PATIENCE_S = 600.0
"""How long a reply may take: a slow machine must not look like a model whose first answer was lost."""

_TELL_EVERY = 100
_EXIT_FATAL, _EXIT_USAGE, _EXIT_INTERRUPTED = 1, 2, 130

Drawn = TypeVar("Drawn")
Found = TypeVar("Found")
Tell = Callable[[str], None]


def add_daemon_options(parser: argparse.ArgumentParser) -> None:
    """Options for `config_of`."""
    parser.add_argument("--stage1-url", help="measure this running Stage 1 instead of starting one")
    parser.add_argument("--stage2-url", help="measure this running Stage 2 instead of starting one")
    parser.add_argument("--detector", type=Path, help="the started Stage 1's ONNX file instead of the embedded one")
    parser.add_argument("--model", type=Path, help="the started Stage 2's model folder instead of the embedded one")


def config_of(options: argparse.Namespace, folder: Path) -> Config:
    """Both stages on free loopback ports, or where they run already, each with one thread; the rest by default.

    Args:
        options: What `add_daemon_options` added.
        folder: For logs and results.
    """
    port1, port2 = free_ports(2)
    model = None if options.model is None else str(options.model.absolute())
    return Config(
        paths=paths_in(folder),
        stage1=Stage1Config(
            url=options.stage1_url, port=port1, model_path=options.detector, threads=1, timeout_s=PATIENCE_S
        ),
        stage2=Stage2Config(
            url=options.stage2_url,
            port=port2,
            engine="transformers",
            model=model,
            threads=1,
            timeout_s=PATIENCE_S,
        ),
    )


@asynccontextmanager
async def stages_up(config: Config, stages: Sequence[StageName]) -> AsyncIterator[None]:
    """Stages are up while the block runs: those with a URL must run already, the others are started.

    Raises:
        ConfigError, StageError: As `Supervisor`; nothing is ever started in the place of a stage that was named.
    """
    urls = {"stage1": config.stage1.url, "stage2": config.stage2.url}
    named = [stage for stage in stages if urls[stage] is not None]
    ours = [stage for stage in stages if urls[stage] is None]
    async with Supervisor(config, stages=named, spawn=False), Supervisor(config, stages=ours):
        yield


def check_labels(detector: DetectorInfo) -> None:
    """See that a detector knows the actions of the demo world.

    Raises:
        ConfigError: It has other labels.
    """
    if detector.labels != LABELS:
        raise ConfigError(f"stage1: {detector.name} knows {', '.join(detector.labels)}, not {', '.join(LABELS)}")


def whole(findings: ClipFindings | BadReply) -> ClipFindings:
    """The findings of a clip.

    Raises:
        BadReply: The detector failed on it.
    """
    if isinstance(findings, BadReply):
        raise findings
    return findings


def new_run() -> str:
    """A name for the requests of one measurement, so that no daemon replays those of another."""
    return uuid.uuid4().hex[:12]


async def drawn_and_asked(
    items: Iterable[int], draw: Callable[[int], Drawn], ask: Callable[[int, Drawn], Awaitable[Found]], tell: Tell
) -> list[Found]:
    """Draw items in threads and ask about each as soon as it is drawn, `AT_ONCE` of them at a time.

    Returns:
        What was found, in the order of the items.

    Raises:
        ZroactError: What the first failed item raised; the others are given up.
    """
    permits, numbers = asyncio.Semaphore(AT_ONCE), list(items)
    done = 0

    async def one(number: int) -> Found:
        nonlocal done
        async with permits:
            found = await ask(number, await asyncio.to_thread(draw, number))
        done += 1
        if done % _TELL_EVERY == 0 or done == len(numbers):
            tell(f"{done} of {len(numbers)}")
        return found

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(number)) for number in numbers]
    except* ZroactError as failed:
        raise _first(failed) from failed
    return [task.result() for task in tasks]


def spread(sets: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """How far apart the seed sets are in each figure that all of them have."""
    first = next(iter(sets.values()))
    names = [name for name in first if all(isinstance(found[name], float) for found in sets.values())]
    return {
        name: max(found[name] for found in sets.values()) - min(found[name] for found in sets.values())
        for name in names
    }


def conclude(work: Coroutine[Any, Any, Found]) -> Found:
    """Run a command to its end; errors of the tree become one line and an exit code."""
    cv2.setNumThreads(1)
    try:
        return asyncio.run(work)
    except ZroactError as error:
        tell(f"error: {error}")
        raise SystemExit(_EXIT_USAGE if isinstance(error, ConfigError) else _EXIT_FATAL) from error
    except KeyboardInterrupt as error:
        raise SystemExit(_EXIT_INTERRUPTED) from error


def tell(progress: str) -> None:
    """Progress for people, beside the output."""
    sys.stderr.write(progress + "\n")


def telling(name: str, tell: Tell) -> Tell:
    """Tells with a name before it."""
    return lambda progress: tell(f"{name}: {progress}")


def _first(group: BaseExceptionGroup[ZroactError]) -> ZroactError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if not isinstance(error, ZroactError):
        raise TypeError("the group holds errors of the tree only")
    return error
