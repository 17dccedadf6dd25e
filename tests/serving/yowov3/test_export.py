"""From network to ONNX: what cannot be exported, what was exported wrongly, and how that is told."""

from __future__ import annotations

import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import nn

from pipeline_ver2.errors import ConfigError
from serving.yowov3 import export
from serving.yowov3.export import differences, to_onnx
from serving.yowov3.settings import Settings

SETTINGS = Settings({}, ("sit", "stand up"), 2, 8)


class Network(nn.Module):
    """Boxes and scores from the mean colour of the last frame, three candidates."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Linear(3, 6 * 3)

    def forward(self, clips: torch.Tensor) -> torch.Tensor:
        rows = self.rows(clips[:, :, -1].mean((2, 3))).view(-1, 6, 3)
        return torch.cat((rows[:, :4].abs() * 8, rows[:, 4:].sigmoid()), 1)


class Branching(Network):
    """Takes a branch by what it sees, which torch.export cannot know."""

    def forward(self, clips: torch.Tensor) -> torch.Tensor:
        return super().forward(clips + 0.5 if clips.abs().sum() > -1 else clips)


class Treacherous(Network):
    """Takes another branch on the blank example than on anything else, so that tracing takes the wrong one."""

    def forward(self, clips: torch.Tensor) -> torch.Tensor:
        return super().forward(clips + 0.5 if clips.abs().sum() > 0 else clips)


class Exotic(Network):
    """Uses an operation that ONNX does not have."""

    def forward(self, clips: torch.Tensor) -> torch.Tensor:
        return super().forward(torch.special.bessel_j1(clips))


class Raw(Network):
    """Forgets the sigmoid."""

    def forward(self, clips: torch.Tensor) -> torch.Tensor:
        return super().forward(clips) * 20


class Pair(Network):
    """Gives a list, as in training."""

    def forward(self, clips: torch.Tensor) -> torch.Tensor:
        return [super().forward(clips)]  # type: ignore[return-value]


class Rigid(Network):
    """Runs on one clip only."""

    def forward(self, clips: torch.Tensor) -> torch.Tensor:
        return super().forward(clips.view(1, 3, 2, 8, 8))


@pytest.fixture(autouse=True)
def repeatable() -> None:
    """The same weights in every run."""
    torch.manual_seed(3)


@pytest.fixture
def traced_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goes to the second exporter at once, for tests that are not about the first."""

    def refuse(_network: nn.Module, _example: torch.Tensor) -> onnx.ModelProto:
        raise ConfigError("not now")

    monkeypatch.setattr(export, "_by_torch_export", refuse)


def exported(network: nn.Module, *, half: bool = False) -> onnx.ModelProto:
    """The file's content."""
    return to_onnx(network.eval(), SETTINGS, half=half)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_network_that_one_exporter_cannot_do_goes_to_the_other(caplog: pytest.LogCaptureFixture) -> None:
    """A branch on data stops the first; the second follows the branch, and the comparison finds that it did."""
    network = Branching()
    found = differences(network, exported(network), SETTINGS)
    assert "trying the TorchScript exporter" in caplog.text
    assert [each.batch for each in found] == [1, 3]
    assert max(each.score for each in found) < 1e-5


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_no_exporter_can_do_is_told_with_a_remedy() -> None:
    """The message names the operation and says what to do."""
    with pytest.raises(ConfigError, match=r"cannot be exported.*bessel_j1.*write the operation named here") as caught:
        exported(Exotic())
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("traced_only")
def test_a_file_that_answers_otherwise_is_refused() -> None:
    """By how much, at which batch, and what is allowed."""
    network = Treacherous()
    with pytest.raises(
        ConfigError, match=r"differs from the network at batch 1: .* allowed are 0\.0008 px and 0\.0001"
    ):
        differences(network, exported(network), SETTINGS)


@pytest.mark.usefixtures("traced_only")
@pytest.mark.parametrize("value", [0.02, float("nan")])
def test_scores_that_are_off_are_refused(value: float) -> None:
    """Boxes alone do not make a file right; a number that is none is no agreement."""
    network = Network()
    proto = exported(network)
    bias = next(each for each in proto.graph.initializer if each.name == "rows.bias")
    changed = numpy_helper.to_array(bias).copy()
    changed[-1] += value
    bias.CopyFrom(numpy_helper.from_array(changed, bias.name))
    with pytest.raises(ConfigError, match="differs from the network"):
        differences(network, proto, SETTINGS)


@pytest.mark.fault("A7")
@pytest.mark.usefixtures("traced_only")
def test_half_precision(caplog: pytest.LogCaptureFixture) -> None:
    """Input, output and weights are float16, and the answers agree as well as that allows."""
    network = Network()
    proto = exported(network, half=True)
    kinds = {value.type.tensor_type.elem_type for value in (*proto.graph.input, *proto.graph.output)}
    assert kinds == {onnx.TensorProto.FLOAT16}
    assert {each.data_type for each in proto.graph.initializer} <= {onnx.TensorProto.FLOAT16, onnx.TensorProto.INT64}
    apart = differences(network, proto, SETTINGS)
    assert 0 < max(each.score for each in apart) < 1e-2
    assert max(each.box_px for each in apart) < 1e-2 * SETTINGS.side
    assert "not now" in caplog.text


@pytest.mark.usefixtures("traced_only")
def test_half_precision_that_is_too_coarse_says_so() -> None:
    """Weights beyond what float16 can hold."""
    network = Network()
    with torch.no_grad():
        network.rows.weight *= 1e5
        network.rows.bias.copy_(-network.rows.weight.sum(1) / 3)
    with pytest.raises(ConfigError, match="try without --fp16"):
        differences(network, exported(network, half=True), SETTINGS)


@pytest.mark.fault("A2")
@pytest.mark.parametrize(
    ("network", "labels", "said"),
    [
        (Raw(), 2, "scores reach from .* not from 0 to 1"),
        (Network(), 3, r"output is \[2, 6, 3\], expected \[2, 7, N\]"),
        (Pair(), 2, "output is list, expected"),
        (Rigid(), 2, r"does not run on clips \[2, 3, 2, 8, 8\]: RuntimeError"),
    ],
)
def test_an_output_that_is_not_yowov3s_is_refused(network: nn.Module, labels: int, said: str) -> None:
    """Before anything is exported: classes of another number, raw scores, a training output."""
    settings = Settings({}, tuple("abc"[:labels]), 2, 8)
    with pytest.raises(ConfigError, match=said):
        to_onnx(network.eval(), settings, half=False)
