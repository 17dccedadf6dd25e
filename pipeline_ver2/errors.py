"""The error tree. Every class says how it looks on the wire; each server maps it to a reply in one place.

ZroactError
├── ConfigError         a key of config.json, the environment or the command line
├── VideoError          a file that cannot be used as a video
│   ├── SourceLost      a live source that cannot be opened, has ended, or gives no pictures
│   └── VideoOverLimits a video with more pixels, seconds or frames than are allowed
├── ResultsError        an output folder that cannot be used: taken, locked, of another run
│   └── FolderInUse     another process works in it
├── StorageFull         no room for a file
├── DatabaseAway        the database of jobs does not answer
├── RequestError        a request that does not fit its contract
│   ├── BodyTooLarge
│   ├── BodyStalled     the rest of a body did not come
│   ├── Unauthorized    no token, or a wrong one
│   ├── ForeignOrigin   a web page of elsewhere asks through somebody's browser
│   ├── UnknownModel    a model that is not served here
│   ├── UnknownJob      a job that does not exist, or no longer
│   ├── JobNotEnded     what is asked for is there when the job has ended
│   ├── NothingThere    the job ended without it
│   ├── KeyReused       an idempotency key that came with another request before
│   ├── SourceRefused   a URL that videos are not fetched from
│   └── MediaPathError  a path outside the media roots, or unreadable
├── SourceUnreachable   a URL that gave no video
├── SinkError           news of an event or of a job could not be delivered: tried again
│   └── SinkRefused     nor will it be: not tried again
├── AnswerError         a reply of the vision-language model that is no valid answer
└── StageError          a stage did not do its work
    ├── StageUnreachable    nobody listens, or it is not ready yet: waiting, not a send
    ├── QueueFull           429: waiting, not a send
    ├── EngineFailed        the engine died or broke under the request: counts as a send
    ├── StageTimeout        no reply in time
    ├── DeadlineShed        the scheduler refused work that would have come too late: final
    └── BadReply            a reply that breaks the contract
"""

from __future__ import annotations

from typing import ClassVar


class ZroactError(Exception):
    """Base of every error this project raises on purpose; the message is written for the user."""

    code: ClassVar[str] = "internal"
    http_status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False


class ConfigError(ZroactError):
    """The configuration is unusable; the message names the key."""

    code = "config"


class VideoError(ZroactError):
    """The file is missing, broken, or holds no video; the message names the file."""

    code = "video"
    http_status = 422


class SourceLost(VideoError):
    """A live source cannot be opened, has ended, or gives no pictures."""

    code = "source_lost"


class VideoOverLimits(VideoError):
    """The video has more pixels, seconds or frames a second than are allowed; the message names the key."""

    code = "video_limits"


class ResultsError(ZroactError):
    """The output folder holds other results, is locked, or belongs to another run."""

    code = "results"
    http_status = 409


class FolderInUse(ResultsError):
    """Another process works in the folder."""

    code = "folder_in_use"


class StorageFull(ZroactError):
    """There is no room for a file, or the file system refuses it."""

    code = "storage_full"
    http_status = 507


class DatabaseAway(ZroactError):
    """The database of jobs cannot be reached, or takes nothing now, for instance because its disk is full."""

    code = "database_away"
    http_status = 503
    retryable = True


class RequestError(ZroactError):
    """The request does not fit its contract; the message names the field."""

    code = "bad_request"
    http_status = 422


class BodyTooLarge(RequestError):
    """The body is over the configured limit."""

    code = "body_too_large"
    http_status = 413


class BodyStalled(RequestError):
    """The rest of the body did not come in time."""

    code = "body_stalled"
    http_status = 408


class Unauthorized(RequestError):
    """The request has no bearer token, or a wrong one."""

    code = "unauthorized"
    http_status = 401


class ForeignOrigin(RequestError):
    """A browser sent the request for a web page of elsewhere, or under a name that is not ours."""

    code = "foreign_origin"
    http_status = 403


class UnknownJob(RequestError):
    """There is no such job, or no longer."""

    code = "job_not_found"
    http_status = 404


class JobNotEnded(RequestError):
    """What is asked for exists once the job has ended."""

    code = "job_not_ended"
    http_status = 409


class NothingThere(RequestError):
    """The job has ended without what is asked for."""

    code = "nothing_there"
    http_status = 404


class UnknownModel(RequestError):
    """The request names a model that is not served here."""

    code = "model_not_found"
    http_status = 404


class MediaPathError(RequestError):
    """A path lies outside the media roots or cannot be read."""

    code = "media_path"
    http_status = 403


class KeyReused(RequestError):
    """The idempotency key came with another body or other options before."""

    code = "idempotency_key_reused"


class SourceRefused(RequestError):
    """A URL whose scheme, host or address is not allowed; the message says which key would allow it."""

    code = "source_refused"
    http_status = 403


class SourceUnreachable(ZroactError):
    """A URL from which no whole file came; the message says why."""

    code = "source_unreachable"
    http_status = 502
    retryable = True


class SinkError(ZroactError):
    """News could not be delivered; `reason` is a word it is counted under."""

    code = "sink"
    http_status = 502
    retryable = True

    def __init__(self, message: str, *, reason: str = "unreachable", retry_after_s: float = 0) -> None:
        super().__init__(message)
        self.reason = reason
        self.retry_after_s = retry_after_s


class SinkRefused(SinkError):
    """Whoever is told does not want it, so that another try is of no use."""

    code = "sink_refused"
    retryable = False


class AnswerError(ZroactError):
    """The model's text is not a valid answer; the raw text is kept in `raw_text`."""

    code = "answer_invalid"
    http_status = 502

    def __init__(self, message: str, raw_text: str | None = None) -> None:
        super().__init__(message)
        self.raw_text = raw_text


class StageError(ZroactError):
    """A stage could not do its work. `retry_after_s` is what the stage asked for, if it did."""

    code = "stage"
    http_status = 502

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class StageUnreachable(StageError):
    """Nobody listens at the address, or the stage says it is not ready yet."""

    code = "stage_unreachable"
    http_status = 503
    retryable = True


class QueueFull(StageError):
    """The stage's bounded queue is full; try again after `retry_after_s`."""

    code = "queue_full"
    http_status = 429
    retryable = True


class EngineFailed(StageError):
    """The engine died or broke while it had the request."""

    code = "engine_failed"
    http_status = 503
    retryable = True


class StageTimeout(StageError):
    """No reply within the time limit."""

    code = "stage_timeout"
    http_status = 504
    retryable = True


class DeadlineShed(StageError):
    """The deadline could not be met, so the request was refused instead of run late."""

    code = "shed_deadline"
    http_status = 503


class BadReply(StageError):
    """The stage's reply breaks its contract."""

    code = "bad_reply"


def refusal(status: int, code: str | None, message: str, retry_after_s: float | None) -> StageError | None:
    """The error of a stage that took a request not up at all: shed, queue full, not ready; None for other replies."""
    if code == DeadlineShed.code:
        return DeadlineShed(message)
    if status == QueueFull.http_status:
        return QueueFull(message, retry_after_s=retry_after_s)
    if status == StageUnreachable.http_status and code != EngineFailed.code:
        return StageUnreachable(message, retry_after_s=retry_after_s)
    return None
