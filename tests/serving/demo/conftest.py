"""What the tests of the measuring commands share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from pipeline_ver2.config import Config, Stage1Config, Stage2Config
from serving.bench.daemons import paths_in
from serving.demo.skeleton import LABELS
from tests import stand_ins
from tests.serving.demo.knowing import blind
from tests.stand_ins import Stages


@pytest.fixture
async def stages(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stages]:
    """Stand-ins of the demo world: Stage 1 finds nobody, Stage 2 answers "walk"."""
    monkeypatch.setattr(stand_ins, "LABELS", LABELS)
    async with stand_ins.stand_ins(image_size=(224, 224)) as both:
        both.stage1.rule = blind()
        yield both


@pytest.fixture
def config(stages: Stages, tmp_path: Path) -> Config:
    """Leads to the stand-ins."""
    return Config(
        paths=paths_in(tmp_path), stage1=Stage1Config(url=stages.stage1.url), stage2=Stage2Config(url=stages.stage2.url)
    )


@pytest.fixture
def heard() -> list[str]:
    """Progress that was told to `tell`."""
    return []


@pytest.fixture
def tell(heard: list[str]) -> Callable[[str], None]:
    """Takes progress."""
    return heard.append
