"""Jobs in processes of their own, so that decoding shares neither the API's event loop nor its memory nor its fate.

`python -m serving.job_process` runs one job after the other. On standard input it gets one JSON object a line: first
the configuration, then what to run (`{"run": folder}`) or that it is to stop (`{"stop": reason}`). When the input ends,
the parent has, and the process ends on the spot. On standard output it answers every job with its outcome.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from pipeline_ver2.command import LOG_FORMAT
from pipeline_ver2.config import Config, child_environment
from pipeline_ver2.errors import FolderInUse, ResultsError
from serving.jobs import JobFile, JobFolder
from serving.run_job import LOOK_S, Outcome, StopReason, run_job

log = logging.getLogger(__name__)

JOBS_A_PROCESS = 50
"""A process is replaced after so many jobs: what libraries keep does not pile up."""
STOP_S = 5.0
"""A job that is told to stop is killed after so long."""

_COMMAND = (sys.executable, "-P", "-m", "serving.job_process")


class JobProcess:
    """The parent's side of one process. Its methods block.

    Args:
        config: The configuration its jobs run with.
    """

    def __init__(self, config: Config) -> None:
        pipe = subprocess.PIPE
        # Of a session of its own, so that Ctrl-C reaches it only through us.
        self._process = subprocess.Popen(
            _COMMAND, stdin=pipe, stdout=pipe, text=True, env=child_environment(), start_new_session=True
        )
        self._answers: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._jobs = 0
        self._is_busy = False  # for ever, if it ends in the middle of a job
        threading.Thread(target=self._listen, daemon=True).start()
        self._tell({"config": config.model_dump(mode="json"), "log_level": logging.getLogger().level})

    @property
    def is_fit(self) -> bool:
        """Whether it lives and may run another job."""
        return self._process.poll() is None and not self._is_busy and self._jobs < JOBS_A_PROCESS

    def run(self, folder: JobFolder, why_stop: Callable[[], StopReason | None]) -> Outcome | None:
        """Run the job in a folder; None if the process ended before the job did.

        Args:
            folder: Where the job's file lies.
            why_stop: Asked every `LOOK_S`: whether the job is to stop.

        Raises:
            FolderInUse: Another process runs it.
        """
        self._jobs += 1
        self._is_busy = True
        self._tell({"run": str(folder.path.absolute())})
        reason: StopReason | None = None
        kill_at = 0.0
        while True:
            try:
                answer = self._answers.get(timeout=LOOK_S)
            except queue.Empty:
                if reason is None:
                    reason = why_stop()
                    if reason is not None:
                        kill_at = time.monotonic() + STOP_S
                        self._tell({"stop": reason})
                elif time.monotonic() > kill_at:
                    log.warning("the job in %s did not stop within %g s; killed", folder.path, STOP_S)
                    self._process.kill()
                continue
            if answer is None:
                self._answers.put(None)  # to whoever asks again
            self._is_busy = answer is None
            return _outcome(answer, folder, reason)

    def close(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                if stream is not None:
                    stream.close()

    def _tell(self, message: dict[str, Any]) -> None:
        with suppress(OSError):  # it is dead, which its silence tells
            if self._process.stdin is not None:
                self._process.stdin.write(json.dumps(message) + "\n")
                self._process.stdin.flush()

    def _listen(self) -> None:
        with suppress(ValueError):  # closed while we read
            for line in self._process.stdout or ():
                self._answers.put(line)
        self._answers.put(None)


class JobProcesses:
    """Processes that wait for their next job; as many as there are jobs at a time.

    Args:
        config: The configuration.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._idle: list[JobProcess] = []
        self._lock = threading.Lock()
        self._is_closed = False

    @contextmanager
    def one(self) -> Iterator[JobProcess]:
        """A process for one job."""
        with self._lock:
            waiting = self._idle.pop() if self._idle else None
        process = JobProcess(self._config) if waiting is None else waiting
        try:
            yield process
        finally:
            with self._lock:
                is_kept = process.is_fit and not self._is_closed
                if is_kept:
                    self._idle.append(process)
            if not is_kept:
                process.close()

    def close(self) -> None:
        """End those that wait; the others end with their jobs."""
        with self._lock:
            self._is_closed = True
            waiting, self._idle = self._idle, []
        for process in waiting:
            process.close()


def _outcome(answer: str | None, folder: JobFolder, reason: StopReason | None) -> Outcome | None:
    if answer is None:  # it has ended; of what is to stop, that is all we want
        return None if reason is None else Outcome(reason)
    told = json.loads(answer)
    if told["state"] == FolderInUse.code:
        raise FolderInUse(f"{folder.path} is in use by another process")
    return Outcome(told["state"], told["error"])


def main() -> int:
    """Run what the parent says, until it ends."""
    first = json.loads(sys.stdin.readline())
    logging.basicConfig(level=first["log_level"], format=LOG_FORMAT)
    config = Config.model_validate(first["config"])
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints is no answer
    folders: queue.SimpleQueue[Path] = queue.SimpleQueue()
    stop = _Stop()
    threading.Thread(target=_take_orders, args=(sys.stdin, folders, stop), daemon=True).start()
    while True:
        answer = _run(JobFolder(folders.get()), config, stop)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


@dataclass(slots=True)
class _Stop:
    """Whether the job that runs is to stop, and why."""

    reason: StopReason | None = None


def _take_orders(orders: IO[str], folders: queue.SimpleQueue[Path], stop: _Stop) -> None:
    for line in orders:
        order = json.loads(line)
        stop.reason = order.get("stop")  # a new job begins without: what was said of the one before does not count
        if "run" in order:
            folders.put(Path(order["run"]))
    os._exit(1)  # the parent is dead, and whoever goes on with the job must not find it running


def _run(folder: JobFolder, config: Config, stop: _Stop) -> dict[str, str | None]:
    try:
        job = JobFile.read(folder.job_file)
        outcome = asyncio.run(run_job(job, folder, config, lambda: stop.reason))
    except FolderInUse:
        return {"state": FolderInUse.code, "error": None}
    except ResultsError as error:
        return {"state": "failed", "error": f"{error.code}: {error}"}
    except Exception:
        log.exception("the job in %s ended by a defect of this program", folder.path)
        return {"state": "failed", "error": "internal: the log says more"}
    return {"state": outcome.state, "error": outcome.error}


if __name__ == "__main__":
    sys.exit(main())
