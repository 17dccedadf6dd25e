"""Every server keeps what its OpenAPI document says, whatever it is sent."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pipeline_ver2.config import load_config
from pipeline_ver2.report import TRACE_NAME
from pipeline_ver2.results import RESULTS_NAME
from serving.jobs import JobOptions
from serving.workers import stage1_server, stage2_server
from tests.servers import served
from tests.serving.conftest import ServeApi

PATIENCE_S = 600
SERVERS = ("stage1.url", "stage2.url", "serving.url")
# A schema cannot say what is a video, a model that is served, or a list as long as the model wants.
UNKNOWABLE = "positive_data_acceptance"


@pytest.fixture(scope="module")
def daemons() -> Iterator[dict[str, str]]:
    """Both daemons with emulated engines; their URLs, as configuration."""
    emulated = {f"{stage}.{key}": value for stage in ("stage1", "stage2") for key, value in _EMULATED.items()}
    config = load_config(None, emulated, environ={})
    with ExitStack() as running:
        applications = {"stage1": stage1_server.build_app(config), "stage2": stage2_server.build_app(config)}
        yield {f"{stage}.url": running.enter_context(served(app)) for stage, app in applications.items()}


_EMULATED = {"engine": "emulated", "emulated.service_s": 0, "max_body_mb": 1}


def check(url: str, folder: Path, *, phases: str, examples: int) -> None:
    """Send requests that fit the document and such that do not; fail with what the tool says of the replies."""
    (folder / "schemathesis.toml").write_text('[parameters]\n"path.job_id" = ["waiting", "ended", "none"]\n')
    command = [str(Path(sys.executable).with_name("st")), "run", f"{url}/openapi.json", "--no-color"]
    bounds = ["--phases", phases, "-n", str(examples), "--seed", "1", "--no-shrink"]
    options = ["--exclude-checks", UNKNOWABLE, "--continue-on-failure", "--request-timeout", "60", "--warnings", "off"]
    ran = subprocess.run(
        [*command, *bounds, *options], cwd=folder, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert ran.returncode == 0, ran.stdout[ran.stdout.find("= FAILURES") :] + ran.stderr
    assert "Test cases:" in ran.stdout


@pytest.fixture
def urls(daemons: dict[str, str], serve_api: ServeApi) -> dict[str, str]:
    """Both daemons, and the job API with jobs that wait and that have ended."""
    api = serve_api(daemons)
    for job_id in ("waiting", "ended"):
        api.store.insert(job_id, f"{job_id}.mp4", JobOptions(), None)
        api.data.folder(job_id).path.mkdir()
    api.store.end("ended", "succeeded")
    for name in (RESULTS_NAME, TRACE_NAME):
        (api.data.folder("ended").path / name).write_text("{}")
    return {"serving.url": api.url, **daemons}


@pytest.mark.slow
@pytest.mark.timeout(PATIENCE_S)
@pytest.mark.parametrize("server", SERVERS)
def test_replies_are_as_documented(urls: dict[str, str], server: str, tmp_path: Path) -> None:
    """No status, kind of content or body that is not documented, no internal error, nothing accepted that is wrong."""
    check(urls[server], tmp_path, phases="fuzzing", examples=10)


@pytest.mark.soak
@pytest.mark.timeout(PATIENCE_S)
@pytest.mark.parametrize("server", SERVERS)
def test_many_replies_are_as_documented(urls: dict[str, str], server: str, tmp_path: Path) -> None:
    """The same at length, with every bound of every parameter."""
    check(urls[server], tmp_path, phases="coverage,fuzzing", examples=100)
