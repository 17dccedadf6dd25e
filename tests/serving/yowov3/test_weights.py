"""Checkpoints in the forms in which they are found, and those that are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline_ver2.errors import ConfigError
from serving.yowov3.weights import Weights, load_strictly, read_weights


def network() -> torch.nn.Sequential:
    """A network of a few tensors."""
    return torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))


def state() -> Weights:
    """Its tensors, filled with sevens."""
    return {name: torch.full_like(value, 7) for name, value in network().state_dict().items()}


@pytest.mark.parametrize(
    "content",
    [
        state(),
        {"state_dict": state(), "epoch": 3},
        {"model": state(), "optimizer": {"lr": 0.1}},
        {"state_dict": {f"module.{name}": value for name, value in state().items()}},
    ],
)
def test_the_forms_of_a_checkpoint(tmp_path: Path, content: dict[str, Any]) -> None:
    """Alone, wrapped, or from training on several GPUs: the same tensors go into the network."""
    torch.save(content, tmp_path / "weights.pth")
    into = network()
    load_strictly(into, read_weights(tmp_path / "weights.pth"), tmp_path / "weights.pth")
    assert all((value == 7).all() for value in into.state_dict().values())


def test_a_network_of_a_part_called_module_keeps_its_names(tmp_path: Path) -> None:
    """The prefix is taken off only where every name has it."""
    torch.save({"module.weight": torch.ones(1), "bias": torch.ones(1)}, tmp_path / "weights.pth")
    assert set(read_weights(tmp_path / "weights.pth")) == {"module.weight", "bias"}


def test_code_in_a_checkpoint_is_not_run(tmp_path: Path) -> None:
    """A pickled network is refused, with what to do about it."""
    torch.save({"model": network()}, tmp_path / "weights.pth")
    with pytest.raises(ConfigError, match=r"holds more than tensors.*If you trust it"):
        read_weights(tmp_path / "weights.pth")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"epoch": 3, "state_dict": {}}, "found the keys epoch, state_dict"),
        ([1, 2], "found list"),
        ({"a": 1, "b": 2, "c": 3, "d": 4}, "found the keys a, b, c, …"),
    ],
)
def test_other_content_is_refused(tmp_path: Path, content: object, said: str) -> None:
    """The message says what was found instead of a state dict."""
    torch.save(content, tmp_path / "weights.pth")
    with pytest.raises(ConfigError, match=said):
        read_weights(tmp_path / "weights.pth")


@pytest.mark.parametrize("content", [None, b"", b"not a checkpoint", b"PK\x03\x04 cut"])
def test_a_file_that_is_no_checkpoint_is_refused(tmp_path: Path, content: bytes | None) -> None:
    """In one line that names it."""
    file = tmp_path / "weights.pth"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_weights(file)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_tensors_that_do_not_fit_are_named() -> None:
    """Missing, unexpected and misshapen ones are told apart, and nothing is loaded."""
    weights = state()
    del weights["0.weight"], weights["0.bias"]
    weights |= {"head.weight": torch.ones(1), "2.bias": torch.ones(4)}
    into = network()
    before = into.state_dict()["2.bias"].clone()
    with pytest.raises(ConfigError) as caught:
        load_strictly(into, weights, Path("weights.pth"))
    told = "2 missing (0.bias, 0.weight), 1 unexpected (head.weight), 1 of another shape (2.bias)"
    assert str(caught.value) == f"--weights weights.pth does not fit the network of --config: {told}"
    assert torch.equal(into.state_dict()["2.bias"], before)
