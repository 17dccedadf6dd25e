"""A test of the tests: every known kind of fault has a test that carries its mark."""

from __future__ import annotations

import ast
from pathlib import Path

# What real videos, models and servers do. The tests with the mark say what the right answer is.
FAULTS = {
    "V1": "rotation in the metadata",
    "V2": "variable frame rate",
    "V3": "frame rates other than 30",
    "V4": "no timestamps",
    "V5": "a start time other than 0",
    "V6": "header counts that lie",
    "V7": "nonsense in the header",
    "V8": "damage in the middle",
    "V9": "truncated, empty, not a video at all",
    "V10": "fewer frames than a clip, one frame",
    "V11": "odd sizes, 4:2:2, 4:4:4, 10 bit",
    "V12": "4K, half an hour",
    "V13": "odd file names",
    "A1": "boxes in the wrong frame of reference",
    "A2": "a second sigmoid, class names off by one, a label list of another length",
    "A3": "red and blue exchanged",
    "A4": "one person with several actions",
    "A5": "one bad clip in a batch, a batch that fails, scores that are no numbers",
    "A6": "results on the wrong clip",
    "A7": "model files of batch 1, of float16, with other names",
    "A8": "batch sizes that are slow when they first come",
    "A9": "CUDA asked for and missing",
    "A10": "the same clip sixteen times at once",
    "B1": "output cut off, blanks without end, one phrase again and again",
    "B2": "thinking text in the answer, no content",
    "B3": "the same image three times, images in the wrong order",
    "B4": "images too small, too long, too large",
    "B5": "image or chat markers in the user's text",
    "B6": "a slot that kills the engine",
    "B7": "an engine that is dead, not ready, or ends with exit code 0",
    "B8": "a client that goes away",
    "B9": "memory that runs out",
    "B10": "two processes on one GPU",
    "E1": "a webhook that fails, hangs, or leads elsewhere",
    "E2": "a broker that is away, dies, hangs, or refuses us",
    "O1": "a consumer that dies, a bad reply",
    "O2": "keep-alive race, connection reset",
    "O3": "time-outs that count the waiting for a connection",
    "O4": "permits after many slots that hang",
    "O5": "kill -9 of any process",
    "O6": "SIGTERM in the middle",
    "O7": "uploads that are cut, too large, or fill the disk",
    "O8": "names and paths that lead elsewhere",
    "O9": "cancel in every state",
    "O10": "the event loop while large frames are decoded",
}

TESTS = Path(__file__).parent


def marked_ids(file: Path) -> set[str]:
    """The ids of all `pytest.mark.fault(…)` of a file."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "fault":
            found |= {str(argument.value) for argument in node.args if isinstance(argument, ast.Constant)}
    return found


def all_marked_ids() -> set[str]:
    """The ids of all tests."""
    return set().union(*(marked_ids(file) for file in TESTS.rglob("test_*.py")))


def test_every_fault_has_a_test() -> None:
    """No kind of fault is forgotten."""
    marked = all_marked_ids()
    missing = {fault: kind for fault, kind in FAULTS.items() if fault not in marked}
    assert missing == {}


def test_the_marks_are_read(tmp_path: Path) -> None:
    """Decorators, parameters and several ids in one mark are all found."""
    file = tmp_path / "test_example.py"
    file.write_text(
        "@pytest.mark.fault('X1', 'X2')\n"
        "@pytest.mark.parametrize('a', [pytest.param(1, marks=pytest.mark.fault('X3'))])\n"
        "async def test_it(a): ...\n"
    )
    assert marked_ids(file) == {"X1", "X2", "X3"}
