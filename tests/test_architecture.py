"""What a machine can hold of how the code is built."""

from __future__ import annotations

import ast
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("pipeline", "pipeline_ver2", "serving")

TOP_LEVEL = {
    ".ci",
    ".gitignore",
    "CHANGELOG.md",
    "Makefile",
    "README.md",
    "config.json",
    "pipeline",
    "pipeline_ver2",
    "pyproject.toml",
    "serving",
    "tests",
}
LONGEST_FILE, LONGEST_FUNCTION = 400, 50
LARGEST_WHEEL_MB = 12
# torch calls it by this name; the class says what it does.
EXPLAINED_BY_THEIR_CLASS = {"forward"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def tracked(pattern: str = "") -> list[Path]:
    """Files under version control, relative to the root."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", *([pattern] if pattern else [])]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [Path(name) for name in listed.split("\0") if name and (ROOT / name).exists()]


PYTHON_FILES = tracked("*.py")
SOURCES = [path for path in PYTHON_FILES if path.parts[0] in PACKAGES]


def parse(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse((ROOT / path).read_text(encoding="utf-8"))


def functions(tree: ast.AST) -> Iterator[Function]:
    """All functions, methods and nested functions."""
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def findings(path: Path, nodes: Iterator[ast.AST]) -> list[str]:
    """Where nodes are, for a message."""
    return [f"{path}:{getattr(node, 'lineno', 0)}" for node in nodes]


def test_there_is_something_to_look_at() -> None:
    """The other tests of this file do not pass on an empty list."""
    assert len(SOURCES) > 20
    assert {path.parts[0] for path in SOURCES} == set(PACKAGES)


def test_the_top_level_is_the_architecture() -> None:
    """Nothing lies about in the root folder."""
    assert {path.parts[0] for path in tracked()} == TOP_LEVEL


def test_files_are_short() -> None:
    """A file that grows over the limit is split along a noun."""
    lengths = {path: len((ROOT / path).read_text(encoding="utf-8").splitlines()) for path in PYTHON_FILES}
    assert {str(path): length for path, length in lengths.items() if length >= LONGEST_FILE} == {}


def test_functions_are_short() -> None:
    """No function is longer than a screen."""
    long = {
        f"{path}:{function.name}": length
        for path in PYTHON_FILES
        for function in functions(parse(path))
        if (length := (function.end_lineno or 0) - function.lineno + 1) > LONGEST_FUNCTION
    }
    assert long == {}


def test_the_environment_is_read_in_one_file() -> None:
    """Only the configuration looks at environment variables."""
    readers = [
        place
        for path in SOURCES
        if path != Path("pipeline_ver2/config.py")
        for place in findings(path, (node for node in ast.walk(parse(path)) if _reads_environment(node)))
    ]
    assert readers == []


def _reads_environment(node: ast.AST) -> bool:
    names = {"environ", "environb", "getenv", "putenv"}
    if isinstance(node, ast.ImportFrom):
        return node.module == "os" and any(alias.name in names for alias in node.names)
    return isinstance(node, ast.Attribute) and node.attr in names and getattr(node.value, "id", "") == "os"


def test_errors_are_of_the_tree() -> None:
    """Nothing catches everything without a name, and nothing raises what nobody can catch by name."""
    bad = [
        place
        for path in SOURCES
        for place in findings(path, (node for node in ast.walk(parse(path)) if _is_careless(node)))
    ]
    assert bad == []


def _is_careless(node: ast.AST) -> bool:
    if isinstance(node, ast.ExceptHandler):
        return node.type is None
    if not isinstance(node, ast.Raise):
        return False
    raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
    return getattr(raised, "id", "") in {"Exception", "BaseException", "NotImplementedError"}


def test_nothing_prints() -> None:
    """Commands write through their console, everything else logs."""
    prints = [
        place
        for path in SOURCES
        for place in findings(
            path,
            (
                node
                for node in ast.walk(parse(path))
                if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print"
            ),
        )
    ]
    assert prints == []


def test_what_is_public_says_what_it_does() -> None:
    """Every module, public class and public function has a docstring; so has every test."""
    bare = [
        f"{path}:{name}"
        for path in PYTHON_FILES
        if (ROOT / path).stat().st_size
        for name, node in _public(parse(path), "")
        if not ast.get_docstring(node) and (path in SOURCES or name.startswith("test_"))
    ]
    assert bare == []


def _public(node: ast.Module | ast.ClassDef, prefix: str) -> Iterator[tuple[str, ast.Module | ast.ClassDef | Function]]:
    yield prefix or "the module", node
    for child in node.body:
        if isinstance(child, ast.ClassDef | Function) and not _is_private(child.name):
            if isinstance(child, ast.ClassDef):
                yield from _public(child, f"{prefix}{child.name}.")
            else:
                yield f"{prefix}{child.name}", child


def _is_private(name: str) -> bool:
    return name.startswith("_") or name in EXPLAINED_BY_THEIR_CLASS


def module_name(path: Path) -> str:
    """The dotted name of a source file."""
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def imported_modules(tree: ast.Module, known: set[str]) -> set[str]:
    """Modules of ours that a file imports, at its top or inside functions; what only a script does is left out."""
    body = [node for node in tree.body if not (isinstance(node, ast.If) and "__main__" in ast.unparse(node.test))]
    names: set[str] = set()
    for node in (inner for outer in body for inner in ast.walk(outer)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return names & known


def test_imports_make_no_circle() -> None:
    """Modules can be read in an order in which each knows only what was read before."""
    known = {module_name(path) for path in SOURCES}
    graph = {module_name(path): imported_modules(parse(path), known) - {module_name(path)} for path in SOURCES}
    assert list(TopologicalSorter(graph).static_order())
    assert "pipeline_ver2.errors" in graph["pipeline_ver2.config"]


# Modules that are parts of something that is tested as a whole.
TESTED_ELSEWHERE = {
    Path("pipeline_ver2/job.py"): Path("tests/pipeline_ver2/test_realtime_pipeline.py"),
    Path("serving/bench/job_host.py"): Path("tests/serving/bench/test_jobs.py"),
    Path("serving/workers/stage1_engine.py"): Path("tests/serving/workers/test_stage1_model.py"),
    Path("serving/workers/stage1_frames.py"): Path("tests/serving/workers/test_stage1_detect.py"),
    Path("serving/workers/stage1_oip.py"): Path("tests/serving/workers/test_stage1_server.py"),
    Path("serving/workers/stage1_service.py"): Path("tests/serving/workers/test_stage1_busy.py"),
}


def test_the_tests_mirror_the_source() -> None:
    """Whoever looks for the tests of a module finds them under its name; the demo's are together."""
    files = set(PYTHON_FILES)
    missing = {
        str(path): str(test)
        for path in SOURCES
        if path.name != "__init__.py" and path.parts[:2] != ("serving", "demo")
        if (test := TESTED_ELSEWHERE.get(path, Path("tests", *path.parts[:-1], f"test_{path.name}"))) not in files
    }
    assert missing == {}
    assert set(TESTED_ELSEWHERE) <= files


def test_import_directions() -> None:
    """import-linter's contracts of pyproject.toml hold."""
    linter = Path(sys.executable).with_name("lint-imports")
    linted = subprocess.run([linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert linted.returncode == 0, linted.stdout + linted.stderr
    assert " 0 broken" in linted.stdout


@pytest.mark.slow
def test_the_wheel(tmp_path: Path) -> None:
    """The wheel holds the packages with the embedded models and clip, no tests, and stays small."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    built = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {path.parts[0] for path in map(Path, names) if ".dist-info" not in path.parts[0]} == set(PACKAGES)
    assert {str(path) for path in tracked() if path.parts[0] in PACKAGES} <= names
    assert any(name.endswith(".onnx") for name in names)
    assert {"serving/demo/clip.mp4", "serving/profiles/a6000.json"} <= names
    assert wheel.stat().st_size <= LARGEST_WHEEL_MB * 1e6
