"""What a training on a time budget needs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from pipeline_ver2.errors import ConfigError
from serving.demo.training import Average, Budget, clip_gradients, load_checkpoint, save_checkpoint


def test_budget_counts_what_was_done_before() -> None:
    """A training that goes on has less left, and a used budget stays at 1."""
    assert 0.5 <= Budget(100, done_s=50).share < 0.6
    assert Budget(100, done_s=400).share == 1
    assert Budget(100).done_s < 1


def test_average_follows_the_model_and_goes_on_after_loading() -> None:
    """The average comes to the model's weights and buffers, does not share them, and survives a checkpoint."""
    linear, norm = nn.Linear(2, 2), nn.BatchNorm1d(2)
    model = nn.Sequential(linear, norm)
    average = Average(model, decay=0.5)
    nn.init.constant_(linear.weight, 3)
    norm.running_mean = torch.full((2,), 2.0)
    assert not torch.equal(average.model.state_dict()["0.weight"], linear.weight)
    for _ in range(60):
        average.update(model)
    again = Average(model, decay=0.5)
    again.load_state_dict(average.state_dict())
    for one in (average, again):
        torch.testing.assert_close(one.model.state_dict(), model.state_dict())
    assert not any(value.requires_grad for value in average.model.parameters())


def test_checkpoint_comes_back(tmp_path: Path) -> None:
    """What is saved is read again, and no partial file stays."""
    path = tmp_path / "new" / "training.pt"
    save_checkpoint(path, {"step": 3, "weights": torch.ones(2)})
    save_checkpoint(path, {"step": 4, "weights": torch.ones(2)})
    assert load_checkpoint(path)["step"] == 4
    assert [found.name for found in path.parent.iterdir()] == ["training.pt"]


@pytest.mark.parametrize("content", [None, b"", b"no checkpoint"])
def test_unreadable_checkpoint_is_named(tmp_path: Path, content: bytes | None) -> None:
    """A missing, empty or foreign file is an error that names it."""
    path = tmp_path / "training.pt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"training\.pt"):
        load_checkpoint(path)


def test_gradients_are_clipped_and_bad_ones_reported() -> None:
    """Large gradients are scaled down; NaN is reported, so that the step can be left out."""
    model = nn.Linear(1, 1, bias=False)
    model.weight.grad = torch.full((1, 1), 50.0)
    assert clip_gradients(model, 10)
    assert model.weight.grad.item() == pytest.approx(10, rel=1e-3)
    model.weight.grad = torch.full((1, 1), float("nan"))
    assert not clip_gradients(model, 10)
