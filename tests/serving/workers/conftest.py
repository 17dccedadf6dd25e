"""What the tests of the daemons share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipeline_ver2.config import Config, load_config
from serving.workers.stage1_server import build_app
from tests.servers import served
from tests.tiny_detector import CLIP_LENGTH, write_detector


@pytest.fixture(scope="session")
def tiny_detector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The detector file whose answers can be worked out by hand."""
    return write_detector(tmp_path_factory.mktemp("model") / "tiny.onnx")


@pytest.fixture(scope="session")
def media_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The one folder requests may name files in, beside the work folder."""
    return tmp_path_factory.mktemp("media")


@pytest.fixture(scope="session")
def stage1_config(tiny_detector: Path, media_root: Path) -> Callable[..., Config]:
    """Makes a configuration of Stage 1 with the tiny detector; keywords are keys of its section."""

    def make(**stage1: object) -> Config:
        section = {"model_path": str(tiny_detector), "clip_length": CLIP_LENGTH, "threads": 1, **stage1}
        paths: dict[str, object] = {
            "paths.media_roots": [str(media_root)],
            "paths.work_dir": str(media_root.parent / "work"),
        }
        return load_config(overrides=paths | {f"stage1.{key}": value for key, value in section.items()}, environ={})

    return make


@pytest.fixture(scope="session")
def stage1_url(stage1_config: Callable[..., Config]) -> Iterator[str]:
    """A Stage 1 daemon with the tiny detector."""
    with served(build_app(stage1_config())) as url:
        yield url
