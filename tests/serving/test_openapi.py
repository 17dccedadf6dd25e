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

EXAMPLES = 10
PATIENCE_S = 300
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


def check(url: str, folder: Path) -> None:
    """Send requests that fit the document and such that do not; fail with what the tool says of the replies."""
    (folder / "schemathesis.toml").write_text('[parameters]\n"path.job_id" = ["waiting", "ended", "none"]\n')
    command = [Path(sys.executable).with_name("st"), "run", f"{url}/openapi.json", "--no-color"]
    bounds = ["--phases", "coverage,fuzzing", "-n", str(EXAMPLES), "--seed", "1", "--no-shrink"]
    options = ["--exclude-checks", UNKNOWABLE, "--continue-on-failure", "--request-timeout", "60", "--warnings", "off"]
    ran = subprocess.run(
        [*command, *bounds, *options], cwd=folder, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert ran.returncode == 0, ran.stdout[ran.stdout.find("= FAILURES") :] + ran.stderr
    assert "Test cases:" in ran.stdout


@pytest.mark.slow
@pytest.mark.timeout(PATIENCE_S)
@pytest.mark.parametrize("stage", ["stage1.url", "stage2.url"])
def test_a_daemon(daemons: dict[str, str], stage: str, tmp_path: Path) -> None:
    """No status, kind of content or body that is not documented, no internal error, nothing accepted that is wrong."""
    check(daemons[stage], tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(PATIENCE_S)
def test_the_job_api(daemons: dict[str, str], serve_api: ServeApi, tmp_path: Path) -> None:
    """The same, with jobs that wait and that have ended."""
    api = serve_api(daemons)
    for job_id in ("waiting", "ended"):
        api.store.insert(job_id, f"{job_id}.mp4", JobOptions(), None)
        api.data.folder(job_id).path.mkdir()
    api.store.end("ended", "succeeded")
    for name in (RESULTS_NAME, TRACE_NAME):
        (api.data.folder("ended").path / name).write_text("{}")
    check(api.url, tmp_path)
