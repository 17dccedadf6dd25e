"""A torchvision whose compiled operators cannot be loaded is imported all the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from serving.vllm_cpu.install import OPS_MODULE

HOOK = Path(__file__).parents[3] / "serving" / "vllm_cpu" / f"{OPS_MODULE}.py"

# What torchvision does while it is imported, as far as it matters.
PACKAGE = {
    "__init__.py": "from . import extension\nfrom . import _autograd_registrations, _meta_registrations\n",
    "_autograd_registrations.py": "",
    "_meta_registrations.py": (
        "import torch\n"
        "@torch.library.register_fake('torchvision::nms')\n"
        "def fake(dets, scores, iou_threshold): return dets\n"
    ),
}
WITHOUT_OPS = "def _has_ops(): return False\n"
WITH_OPS = (
    "import torch\n"
    "library = torch.library.Library('torchvision', 'DEF')\n"
    "library.define('nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor')\n"
    "def _has_ops(): return True\n"
)


def imported(folder: Path, extension: str, *, hook: bool) -> subprocess.CompletedProcess[str]:
    """Import such a torchvision in a process of its own."""
    package = folder / "torchvision"
    package.mkdir()
    for name, text in {**PACKAGE, "extension.py": extension}.items():
        (package / name).write_text(text)
    (folder / HOOK.name).write_text(HOOK.read_text(encoding="utf-8"))
    first = f"import {OPS_MODULE}; " if hook else ""
    command = (
        f"import sys; sys.path.insert(0, {str(folder)!r}); {first}import torchvision; import torchvision.extension"
    )
    return subprocess.run([sys.executable, "-I", "-c", command], capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_without_its_operators_their_names_are_declared(tmp_path: Path) -> None:
    """So the import gets through."""
    done = imported(tmp_path, WITHOUT_OPS, hook=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_its_own_operators_are_left_alone(tmp_path: Path) -> None:
    """A torchvision that fits torch declares them itself; twice would be an error."""
    done = imported(tmp_path, WITH_OPS, hook=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_without_the_declarations_it_cannot_be_imported(tmp_path: Path) -> None:
    """Which is why they are there."""
    done = imported(tmp_path, WITHOUT_OPS, hook=False)
    assert "torchvision::nms does not exist" in done.stderr
