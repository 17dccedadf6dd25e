"""Asks the same held-out slots of transformers and of vLLM: `python -m serving.demo.compare_engines`.

Both serve the embedded answerer as Stage 2 daemons, one after the other, and answer greedily. vLLM's interpreter and
arguments are `stage2.vllm_python` and `stage2.vllm_args` of the configuration; its CPU build also wants
VLLM_CPU_KVCACHE_SPACE=1 in the environment, or it takes much memory.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pipeline_ver2.config import Config, Stage2Config, load_config
from pipeline_ver2.prompts import Question
from pipeline_ver2.stage_clients import Stage2Client
from pipeline_ver2.supervisor import Supervisor
from serving.bench.bars import Bar, passed
from serving.bench.daemons import free_ports, paths_in, temporary_folder
from serving.demo import seeds
from serving.demo.answerer_slots import question_of, sample_slot
from serving.demo.measuring import PATIENCE_S, Tell, conclude, drawn_and_asked, new_run, tell, telling

EngineName = Literal["transformers", "vllm"]

LEAST_SHARE = 0.99
_SIZE = (360, 640)
_FIRST_SLOT = 95_000
# What the embedded model needs on a CPU: its linear attention has bfloat16 kernels only.
_VLLM_ARGUMENTS = ("--dtype", "bfloat16", "--enforce-eager", "--max-model-len", "2048")


@dataclass(frozen=True, slots=True)
class Said:
    """The first answer to a slot: its action, None if it does not fit the schema, and its text."""

    action: str | None
    text: str | None


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare and report; 1 if the engines differ on more than one slot in a hundred, else 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slots", type=int, default=200)
    parser.add_argument("--vllm-python", help="an interpreter that has vLLM")
    parser.add_argument("--model", type=Path, help="model folder instead of the embedded one")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    with temporary_folder() as folder:
        answers = conclude(_ask_both(options, folder))
    figures, bars = compared(answers)
    report = {"engines": figures, "bars": [bar.as_dict() for bar in bars]}
    sys.stdout.write(json.dumps(report, indent=None if options.json else 1) + "\n")
    return int(not passed(bars))


def compared(answers: Mapping[EngineName, Sequence[Said]]) -> tuple[dict[str, Any], list[Bar]]:
    """How many slots got the same valid action, and the same text, from both."""
    pairs = list(zip(answers["transformers"], answers["vllm"], strict=True))
    same = sum(first.action is not None and first.action == second.action for first, second in pairs)
    figures = {
        "slots": len(pairs),
        "same action": same,
        "same text": sum(first.text is not None and first.text == second.text for first, second in pairs),
        "differ": [
            {"slot": number, "transformers": first.text, "vllm": second.text}
            for number, (first, second) in enumerate(pairs)
            if first != second
        ],
    }
    return figures, [Bar("engines: share of slots with the same action", same / len(pairs), ">=", LEAST_SHARE)]


async def _ask_both(options: argparse.Namespace, folder: Path) -> dict[EngineName, list[Said]]:
    told = load_config(overrides={"stage2.vllm_python": options.vllm_python}).stage2
    answers: dict[EngineName, list[Said]] = {}
    for engine in ("transformers", "vllm"):
        config = config_for(engine, told, options.model, folder / engine)
        async with Supervisor(config, stages=("stage2",)):
            answers[engine] = await ask_all(config, range(options.slots), telling(engine, tell))
    return answers


def config_for(engine: EngineName, told: Stage2Config, model: Path | None, folder: Path) -> Config:
    """Stage 2 with an engine on a free port; what vLLM is started with comes from `told`."""
    (port,) = free_ports(1)
    stage2 = Stage2Config(
        port=port,
        engine=engine,
        model=None if model is None else str(model.absolute()),
        vllm_python=told.vllm_python,
        vllm_args=told.vllm_args or _VLLM_ARGUMENTS,
        start_timeout_s=told.start_timeout_s,
        timeout_s=PATIENCE_S,
        threads=1,
    )
    return Config(paths=paths_in(folder), stage2=stage2)


async def ask_all(config: Config, numbers: range, tell: Tell) -> list[Said]:
    """The first answers of a Stage 2, which must be up, to held-out slots.

    Raises:
        StageError, RequestError: It is away, or refused.
    """
    run = new_run()
    async with Stage2Client(config.stage2, config.pipeline) as client:
        answerer = await client.describe()

        def draw(number: int) -> Question:
            slot = sample_slot(seeds.generator(seeds.VALIDATION_A, _FIRST_SLOT + number), _SIZE)
            return question_of(slot, config.pipeline)

        async def ask(number: int, question: Question) -> Said:
            asked, _ = await client.evaluate(question, model=answerer.name, key=f"{run}/slot-{number}")
            # Only the first send is greedy.
            if asked.answer is None or asked.attempts > 1:
                return Said(None, asked.raw_text)
            return Said(asked.answer.body.get("action"), asked.raw_text)

        return await drawn_and_asked(numbers, draw, ask, tell)


if __name__ == "__main__":
    raise SystemExit(main())
