"""Writes a small checkout that is laid out as YOWOv3 is and lays the same traps, without any of its code.

Its packages have no `__init__.py` and common names; the constructor runs a dummy clip; without `pretrain_path` the
backbone wants a file that is not there, with it the network loads that file itself, leniently if told so; the depth
of the 3D features is squeezed away; anchors and strides are made in the forward, from feature shapes, and are kept
as attributes; resizing takes its factor from shapes; features are multiplied
with themselves; a file is opened relative to the checkout.
"""

from __future__ import annotations

import importlib
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

from serving.yowov3.checkout import MODULE, importable

LABELS = ("sit", "stand up", "throw")
SIDE = 32

_BACKBONES = """
    import torch
    from torch import nn


    class Block(nn.Module):
        def __init__(self, inside, outside, stride):
            super().__init__()
            self.conv = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
            self.norm = nn.BatchNorm2d(outside)
            self.act = nn.SiLU(inplace=True)

        def forward(self, x):
            return self.act(self.norm(self.conv(x)))


    class Flat(nn.Module):
        def __init__(self):
            super().__init__()
            self.fine = nn.Sequential(Block(3, 8, 4), Block(8, 8, 2))
            self.coarse = Block(8, 8, 2)

        def forward(self, x):
            fine = self.fine(x)
            return [fine, self.coarse(fine)]

        def load_pretrain(self):
            self.load_state_dict(torch.load("weights/flat.pth"))


    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv3d(3, 8, 3, (4, 8, 8), 1)
            self.pool = nn.AvgPool3d((4, 2, 2))

        def forward(self, x):
            return self.pool(torch.relu(self.conv(x)))
"""

_BOX = """
    import torch


    def anchors_of(features, strides):
        points, sizes = [], []
        for feature, stride in zip(features, strides):
            height, width = feature.shape[-2:]
            y, x = torch.meshgrid(torch.arange(height) + 0.5, torch.arange(width) + 0.5, indexing="ij")
            points.append(torch.stack((x, y), -1).view(-1, 2))
            sizes.append(torch.full((height * width, 1), stride))
        return torch.cat(points), torch.cat(sizes)
"""

_HEAD = """
    import torch
    from torch import nn
    from utils.box import anchors_of

    BINS = 16


    class Head(nn.Module):
        anchors = torch.empty(0)
        strides = torch.empty(0)

        def __init__(self, classes, channels):
            super().__init__()
            self.classes = classes
            self.stride = torch.zeros(len(channels))
            self.convs = nn.ModuleList(nn.Conv2d(number, 4 * BINS + classes, 1) for number in channels)
            for conv in self.convs:
                conv.bias.data[:4 * BINS] = -torch.arange(BINS).repeat(4)
            self.mean = nn.Conv2d(BINS, 1, 1, bias=False)
            self.mean.weight.data[:] = torch.arange(BINS).view(1, BINS, 1, 1)

        def forward(self, x):
            for number in range(len(x)):
                x[number] = self.convs[number](x[number])
            if self.training:
                return x
            self.anchors, self.strides = (each.transpose(0, 1) for each in anchors_of(x, self.stride))
            x = torch.cat([each.view(x[0].shape[0], 4 * BINS + self.classes, -1) for each in x], 2)
            sides, scores = x.split((4 * BINS, self.classes), 1)
            batch, _, count = sides.shape
            sides = self.mean(sides.view(batch, 4, BINS, count).transpose(2, 1).softmax(1)).view(batch, 4, count)
            before, behind = torch.split(sides, 2, 1)
            first, last = self.anchors.unsqueeze(0) - before, self.anchors.unsqueeze(0) + behind
            return torch.cat((torch.cat(((first + last) / 2, last - first), 1) * self.strides, scores.sigmoid()), 1)
"""

_NETWORK = """
    from pathlib import Path
    import torch
    from torch import nn
    from model.backbones import Deep, Flat
    from model.head.dfl import Head


    class Fusion(nn.Module):
        def __init__(self):
            super().__init__()
            self.gamma = nn.Parameter(torch.full((1,), 0.5))

        def forward(self, x):
            flat = x.view(x.size(0), x.size(1), -1)
            energy = torch.bmm(flat, flat.permute(0, 2, 1))
            attention = (torch.max(energy, -1, keepdim=True)[0].expand_as(energy) - energy).softmax(-1)
            return x + self.gamma * torch.bmm(attention, flat).view(x.size())


    class Network(nn.Module):
        def __init__(self, classes, size):
            super().__init__()
            self.flat, self.deep, self.fusion = Flat(), Deep(), Fusion()
            features = self.flat(torch.rand(2, 3, size, size))
            assert self.deep(torch.zeros(1, 3, 16, size, size)).shape[2] == 1
            self.head = Head(classes, [feature.shape[1] + 8 for feature in features])
            self.head.stride = torch.tensor([size / feature.shape[-2] for feature in features])

        def forward(self, clips):
            flat, deep = self.flat(clips[:, :, -1]), self.deep(clips).squeeze(2)
            {extra}
            _, _, height, width = deep.shape
            features = []
            for feature in flat:
                _, _, high, wide = feature.shape
                assert high / height == wide / width
                features.append(self.fusion(torch.cat((feature, nn.Upsample(scale_factor=high / height)(deep)), 1)))
            return self.head(features)

        def load(self, path):
            weights = torch.load(path)
            if {lenient}:
                own = self.state_dict()
                weights = own | {{name: value for name, value in weights.items() if name in own}}
            self.load_state_dict(weights)


    def build_yowov3(config):
        size = int(Path("model/size.txt").read_text())
        assert size == config["img_size"] and config["mode"] == "decoupled"
        network = Network(config["num_classes"], size)
        if config["pretrain_path"] is None:
            network.flat.load_pretrain()
        else:
            network.load(config["pretrain_path"])
        return network
"""


@dataclass(frozen=True)
class Checkout:
    """A checkout, the configuration file of a network, and a checkpoint of it."""

    repo: Path
    config: Path
    weights: Path

    def options(self, out: Path) -> list[str]:
        """Command-line arguments that export it."""
        named = {"--repo": self.repo, "--config": self.config, "--weights": self.weights, "--out": out}
        return [str(part) for pair in named.items() for part in pair]

    def state(self) -> dict[str, torch.Tensor]:
        """The tensors of the checkpoint."""
        loaded: dict[str, torch.Tensor] = torch.load(self.weights, weights_only=True)
        return loaded


def write_checkout(folder: Path, *, lenient: bool = False, extra: str = "pass", **config: Any) -> Checkout:  # noqa: ANN401
    """Write checkout, configuration and checkpoint below a folder.

    Args:
        folder: Where.
        lenient: The network's own loader takes what fits and says nothing of the rest.
        extra: A statement in the middle of the forward; `deep` holds the 3D features.
        config: Further keys of the configuration; None leaves one out.
    """
    repo = folder / "YOWOv3"
    files = {
        "model/backbones.py": _BACKBONES,
        "model/head/dfl.py": _HEAD,
        "model/TSN/YOWOv3.py": _NETWORK.format(lenient=lenient, extra=extra),
        "utils/box.py": _BOX,
        "model/size.txt": str(SIDE),
    }
    for name, text in files.items():
        (repo / name).parent.mkdir(parents=True, exist_ok=True)
        (repo / name).write_text(textwrap.dedent(text))
    checkout = Checkout(repo, folder / "config.yaml", folder / "weights.pth")
    content = {
        "mode": "decoupled",
        "num_classes": len(LABELS),
        "img_size": SIDE,
        "clip_length": 16,
        "pretrain_path": None,
        "idx2name": dict(enumerate(LABELS)),
        **config,
    }
    checkout.config.write_text(yaml.safe_dump({key: value for key, value in content.items() if value is not None}))
    torch.manual_seed(1)
    with importable(repo):
        network = importlib.import_module(MODULE).Network(len(LABELS), SIDE)
    torch.save(network.state_dict(), checkout.weights)
    return checkout
