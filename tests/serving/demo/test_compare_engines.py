"""The same slots to two engines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from aiohttp import web

from pipeline_ver2.config import Config, Stage2Config
from serving.demo.compare_engines import Said, ask_all, compared, config_for
from tests.stand_ins import Stages, answer, completion


def test_same_actions_and_texts_are_counted() -> None:
    """Another wording of the same action is the same action; two invalid answers are not the same action."""
    ours = [Said("walk", "a"), Said("walk", "b"), Said("run", "c"), Said(None, "d")]
    theirs = [Said("walk", "a"), Said("walk", "B"), Said("fall", "c"), Said(None, "d")]
    figures, (bar,) = compared({"transformers": ours, "vllm": theirs})
    assert (figures["slots"], figures["same action"], figures["same text"]) == (4, 2, 3)
    assert [entry["slot"] for entry in figures["differ"]] == [1, 2]
    assert not bar.ok


@pytest.mark.parametrize(("other", "ok"), [(2, True), (3, False)])
def test_198_of_200_are_enough(other: int, ok: bool) -> None:  # noqa: FBT001
    """Two of two hundred may differ, three may not."""
    theirs = [Said("run", "r")] * other + [Said("walk", "w")] * (200 - other)
    _, (bar,) = compared({"transformers": [Said("walk", "w")] * 200, "vllm": theirs})
    assert bar.ok is ok


async def test_only_the_first_answer_counts(stages: Stages, config: Config, tell: Callable[[str], None]) -> None:
    """Answers come in the order of the slots; what came after a second, sampled send is not compared."""

    async def rule(_request: web.Request, key: str, time: int) -> web.StreamResponse:
        if key == "slot-1" and time == 1:
            return completion("what?")
        return answer("run" if key == "slot-2" else "walk")

    stages.stage2.rule = rule
    said = await ask_all(config, range(3), tell)
    assert [one.action for one in said] == ["walk", None, "run"]
    assert stages.stage2.bodies[0]["temperature"] == 0


def test_vllm_is_started_with_the_given_interpreter(tmp_path: Path) -> None:
    """Interpreter and arguments are the configuration's; without arguments those that the model needs on a CPU."""
    told = Stage2Config(vllm_python="/opt/vllm/bin/python")
    stage2 = config_for("vllm", told, None, tmp_path).stage2
    assert (stage2.engine, stage2.vllm_python, stage2.model) == ("vllm", "/opt/vllm/bin/python", None)
    assert "bfloat16" in stage2.vllm_args
    given = told.model_copy(update={"vllm_args": ("--x",)})
    assert config_for("vllm", given, Path("m"), tmp_path).stage2.vllm_args == ("--x",)
