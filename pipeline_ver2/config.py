"""The typed configuration, and the only reader of the environment.

Order, the first that names a key wins: command line > ``ZROACT_…`` environment (nested by ``__``, as in
``ZROACT_STAGE2__LIMIT=3``) > file (``--config``, else ``ZROACT_CONFIG``, else ``./config.json``) > default.
``ZROACT_DATABASE_URL`` is short for ``ZROACT_SERVING__DATABASE_URL``.
Paths in a file are relative to that file; paths from elsewhere to the current folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from pipeline_ver2.config_events import EventsConfig, JobWebhookConfig
from pipeline_ver2.config_live import LiveConfig
from pipeline_ver2.config_section import Section as _Section
from pipeline_ver2.config_section import read_json_file
from pipeline_ver2.errors import ConfigError

ENV_PREFIX = "ZROACT_"
CONFIG_FILE_VARIABLE = "ZROACT_CONFIG"
_SHORT_NAMES = {"ZROACT_DATABASE_URL": ["serving", "database_url"]}
_SECRETS = frozenset({"token", "secret", "password"})
# No message shows what stands in these; the URL of a webhook is often a secret itself.
_UNSHOWN = _SECRETS | {"webhook", "database_url"}


def _client_url(url: str | None, host: str, port: int) -> str:
    bracketed = f"[{host}]" if ":" in host else host
    return (url or f"http://{bracketed}:{port}").rstrip("/")


def _based_path(value: Path | None, info: ValidationInfo) -> Path | None:
    if value is None:
        return None
    base: Path = (info.context or {}).get("base", Path())
    return (base / value.expanduser()).resolve()


class Paths(_Section):
    """Folders. `work_dir` holds logs, frame files and locks; it counts as a media root."""

    media_roots: tuple[Path, ...] = (Path("media"), Path("out"))
    data_dir: Path = Path("data")
    work_dir: Path = Path("work")

    _rebase = field_validator("data_dir", "work_dir")(_based_path)

    @field_validator("media_roots")
    @classmethod
    def _rebase_roots(cls, roots: tuple[Path, ...], info: ValidationInfo) -> tuple[Path, ...]:
        return tuple(path for path in (_based_path(root, info) for root in roots) if path is not None)

    @property
    def readable_roots(self) -> tuple[Path, ...]:
        """Every folder a request may name files in."""
        return (*self.media_roots, self.work_dir)


class PipelineConfig(_Section):
    """The orchestrator: grid, slots, queues, what Stage 2 is asked."""

    grid_fps: float | None = Field(default=30, gt=0, le=1000)
    keyframe_interval: int = Field(default=11, ge=1)
    slot_frames: int = Field(default=3, ge=1, le=16)
    gate: Literal["all", "detections"] = "all"
    queue_size: int = Field(default=16, ge=1)
    stage2_window: int = Field(default=2, ge=1)
    retry_for_s: float = Field(default=60, ge=0)
    image_max_px: int = Field(default=589_824, ge=64 * 64)
    jpeg_quality: int = Field(default=90, ge=1, le=100)
    overlay: Literal["hold", "interpolate"] = "hold"
    prompt: str | None = None
    answer_schema: dict[str, Any] | None = None


class Stage1Emulated(_Section):
    """Service time of the emulated detector, per request."""

    service_s: float = Field(default=0.174, ge=0)


class Stage1Config(_Section):
    """The detector daemon, and how the orchestrator uses it."""

    url: str | None = None
    host: str = "127.0.0.1"
    port: int = Field(default=8001, ge=0, le=65535)
    engine: Literal["onnx", "emulated"] = "onnx"
    model_path: Path | None = None
    labels_path: Path | None = None
    provider: Literal["auto", "cpu", "cuda", "tensorrt"] = "auto"
    threads: int | None = Field(default=None, ge=1)
    clip_length: int = Field(default=16, ge=1)
    image_size: tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]] | None = None
    sampling_rate: int = Field(default=1, ge=1)
    batch_size: int = Field(default=4, ge=1)
    batch_wait_ms: float = Field(default=50, ge=0)
    max_in_flight: int = Field(default=4, ge=1)
    max_batch: int = Field(default=8, ge=1)
    max_wait_ms: float = Field(default=2, ge=0, le=1000)
    max_queue: int = Field(default=32, ge=1)
    max_body_mb: float = Field(default=64, gt=0)
    timeout_s: float = Field(default=60, gt=0)
    threshold: float = Field(default=0.25, ge=0, le=1)
    nms_iou: float = Field(default=0.45, ge=0, le=1)
    gpu_mem_limit_gb: float | None = Field(default=None, gt=0)
    emulated: Stage1Emulated = Stage1Emulated()

    _rebase = field_validator("model_path", "labels_path")(_based_path)

    @property
    def base_url(self) -> str:
        """Where clients find the daemon."""
        return _client_url(self.url, self.host, self.port)

    @model_validator(mode="after")
    def _batch_fits(self) -> Stage1Config:
        if self.batch_size > self.max_batch:
            raise ValueError(f"batch_size {self.batch_size} is over max_batch {self.max_batch}")
        return self


class Stage2Emulated(_Section):
    """Service time of the emulated model: `service_s` alone, `per_extra_s` more for each other request running."""

    service_s: float = Field(default=2.07, ge=0)
    per_extra_s: float = Field(default=0, ge=0)


class LimitRange(_Section):
    """An adaptive limit: it moves between `min` and `max`."""

    min: int = Field(default=1, ge=1)
    max: int = Field(ge=1)

    @model_validator(mode="after")
    def _in_order(self) -> LimitRange:
        if self.min > self.max:
            raise ValueError(f"min {self.min} is over max {self.max}")
        return self


def _kind_of_limit(value: object) -> str:
    return "a range" if isinstance(value, Mapping | LimitRange) else "a number"


Limit = Annotated[
    Annotated[int, Field(ge=1), Tag("a number")] | Annotated[LimitRange, Tag("a range")], Discriminator(_kind_of_limit)
]


class Stage2Config(_Section):
    """The vision-language daemon, and how the orchestrator uses it."""

    url: str | None = None
    host: str = "127.0.0.1"
    port: int = Field(default=8002, ge=0, le=65535)
    engine: Literal["auto", "vllm", "transformers", "remote", "emulated"] = "auto"
    model: str | None = None
    vllm_python: str | None = None
    vllm_args: tuple[str, ...] = ()
    remote_url: str | None = None
    threads: int | None = Field(default=None, ge=1)
    limit: Limit = 2
    min_share: float = Field(default=0.1, ge=0, lt=1)
    memory_budget_gb: float | None = Field(default=None, gt=0)
    max_queue: int = Field(default=64, ge=1)
    max_body_mb: float = Field(default=32, gt=0)
    max_tokens: int = Field(default=160, ge=1)
    timeout_s: float = Field(default=60, gt=0)
    start_timeout_s: float = Field(default=600, gt=0)
    emulated: Stage2Emulated = Stage2Emulated()

    @property
    def base_url(self) -> str:
        """Where clients find the daemon."""
        return _client_url(self.url, self.host, self.port)

    @property
    def most_at_once(self) -> int:
        """The largest number of requests the engine may be given at once."""
        return self.limit.max if isinstance(self.limit, LimitRange) else self.limit

    @model_validator(mode="after")
    def _remote_has_url(self) -> Stage2Config:
        if self.engine == "remote" and self.remote_url is None:
            raise ValueError("engine 'remote' needs remote_url, the base URL of an OpenAI-compatible server")
        return self


class VideoLimits(_Section):
    """What a video sent by others may have at most; `pixels` of one frame, `seconds` of playing time."""

    pixels: int = Field(default=8192 * 4320, ge=1)
    seconds: float = Field(default=4 * 3600, gt=0)
    fps: float = Field(default=240, gt=0)


class Retention(_Section):
    """Until when ended jobs are kept: the oldest go first once one of these is passed; null keeps them."""

    age_h: float | None = Field(default=7 * 24, gt=0)
    count: int | None = Field(default=1000, ge=1)
    total_gb: float | None = Field(default=50, gt=0)


class Downloads(_Section):
    """How videos named by a URL are fetched; `private` lets them come from addresses that are not public."""

    seconds: float = Field(default=600, gt=0)
    redirects: int = Field(default=5, ge=0, le=20)
    private: bool = False


def _with_usable_port(host: str) -> str:
    _ = urlsplit(f"//{host}").port  # the parser knows what an address and a port can be
    return host


HostName = Annotated[
    str,
    Field(pattern=r"^(\*\.)?([A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?$"),
    AfterValidator(_with_usable_port),
]


class ServingConfig(_Section):
    """The job API, and the jobs it takes.

    `allowed_hosts` are those that jobs may name URLs of: `HOST`, `*.HOST` for all below it, each with or without a
    `:PORT`; without one, the usual ports alone.
    """

    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    token: str | None = Field(default=None, min_length=1)
    database_url: str | None = None
    jobs_at_once: int = Field(default=1, ge=1)
    max_queue: int = Field(default=100, ge=1)
    max_upload_mb: float = Field(default=2000, gt=0)
    allowed_hosts: tuple[HostName, ...] = ()
    downloads: Downloads = Downloads()
    limits: VideoLimits = VideoLimits()
    retention: Retention = Retention()
    webhook: JobWebhookConfig | None = None


class Telemetry(_Section):
    """Where traces of jobs and of requests to the daemons are sent, by OTLP over HTTP; null: nowhere."""

    otlp_endpoint: str | None = Field(default=None, pattern=r"^https?://")


class Config(_Section):
    """The whole configuration, immutable once loaded."""

    paths: Paths = Paths()
    pipeline: PipelineConfig = PipelineConfig()
    stage1: Stage1Config = Stage1Config()
    stage2: Stage2Config = Stage2Config()
    serving: ServingConfig = ServingConfig()
    live: LiveConfig = LiveConfig()
    events: EventsConfig = EventsConfig()
    telemetry: Telemetry = Telemetry()


def load_config(
    file: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Config:
    """Load, merge and check the configuration.

    Args:
        file: `--config`; None looks at ``ZROACT_CONFIG``, then ``./config.json``, then takes the defaults.
        overrides: Command-line values by dotted key, such as ``{"stage2.limit": 3}``; None values are ignored.
        environ: The environment; None reads the process's.

    Raises:
        ConfigError: A file that cannot be read, an unknown key, an impossible value; the message names it.
    """
    environment = os.environ if environ is None else environ
    path = file or _file_from(environment)
    merged: dict[str, Any] = {} if path is None else _read_file(path)
    base = Path.cwd() if path is None else path.resolve().parent
    for keys, value in _environment_values(environment):
        _put(merged, keys, value, f"{ENV_PREFIX}{'__'.join(keys).upper()}")
    for dotted, value in (overrides or {}).items():
        if value is not None:
            _put(merged, dotted.split("."), value, dotted)
    try:
        return Config.model_validate(_with_defaults(merged), context={"base": base})
    except ValidationError as error:
        raise ConfigError(f"{path or 'configuration'}: {_first_problem(error)}") from error


def child_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for a child that gets its whole configuration in a file: ours, less ``ZROACT_…``."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(ENV_PREFIX)}
    return {**kept, **(extra or {})}


def visible_gpu(environ: Mapping[str, str] | None = None) -> str | None:
    """The GPU that CUDA takes first, by number or UUID: None if all are visible, "" if none is."""
    named = (os.environ if environ is None else environ).get("CUDA_VISIBLE_DEVICES")
    return None if named is None else named.split(",")[0].strip()


def _file_from(environment: Mapping[str, str]) -> Path | None:
    named = environment.get(CONFIG_FILE_VARIABLE)
    if named:
        return Path(named)
    local = Path("config.json")
    return local if local.is_file() else None


def _read_file(path: Path) -> dict[str, Any]:
    content = read_json_file(path, "config file")
    if not isinstance(content, dict):
        raise ConfigError(f"config file {path} must hold a JSON object, not {type(content).__name__}")
    return content


def _environment_values(environment: Mapping[str, str]) -> list[tuple[list[str], object]]:
    values = []
    for name, text in sorted(environment.items()):
        if not name.startswith(ENV_PREFIX) or name == CONFIG_FILE_VARIABLE:
            continue
        keys = _SHORT_NAMES.get(name) or name.removeprefix(ENV_PREFIX).lower().split("__")
        # A password of digits is no number.
        as_it_is = keys[-1] in _SECRETS and text != "null"
        values.append((keys, text if as_it_is else parse_value(text)))
    return values


def parse_value(text: str) -> object:
    """A value from the environment or the command line: JSON where it is JSON, else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _put(tree: dict[str, Any], keys: Sequence[str], value: object, said: str) -> None:
    for depth, key in enumerate(keys[:-1]):
        branch = tree.setdefault(key, {})
        if branch is None:  # a section that is left out where it is spelled out
            branch = tree[key] = {}
        if not isinstance(branch, dict):
            raise ConfigError(f"{said}: {'.'.join(keys[: depth + 1])} is no section")
        tree = branch
    tree[keys[-1]] = value


def _with_defaults(merged: dict[str, Any]) -> dict[str, Any]:
    """Spell out default paths, so that validators see them and make them absolute."""
    paths = merged.get("paths")
    if paths is None or isinstance(paths, dict):
        merged = {**merged, "paths": {**Paths().model_dump(), **(paths or {})}}
    return merged


def _first_problem(error: ValidationError) -> str:
    first, *others = error.errors(include_url=False)
    # Pydantic names the kind of a union as if it were a key; no key of ours has a blank.
    key = ".".join(str(part) for part in first["loc"] if " " not in str(part)) or "the configuration"
    reason = "unknown key" if first["type"] == "extra_forbidden" else first["msg"]
    shown = _UNSHOWN.isdisjoint(first["loc"]) and not isinstance(first["input"], dict)
    if first["type"] not in {"extra_forbidden", "missing"} and shown:
        reason += f" (got {first['input']!r})"
    return f"{key}: {reason}" + (f", and {len(others)} more" if others else "")
