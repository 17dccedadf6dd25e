"""The embedded detector: a small YOWO-style network that joins the key frame's picture with the clip's motion.

It keeps the contract of any YOWOv3 export: a clip in, boxes in input pixels and sigmoid scores out, the boxes
belonging to the last frame.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from serving.demo.skeleton import LABELS

CLIP_LENGTH = 16
SIDE = 224
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
STRIDES = (8, 16, 32)

_WIDTH = 64
_PICTURE = (16, 24, 48, 80, 112)
_MOTION = (16, 32, 64, 96)


class ConvUnit(nn.Sequential):
    """Convolution, batch norm, ReLU."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> None:
        convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
        super().__init__(convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))


class MotionUnit(nn.Sequential):
    """Convolution over time and space, batch norm, ReLU."""

    def __init__(self, inputs: int, outputs: int, stride: tuple[int, int, int]) -> None:
        convolution = nn.Conv3d(inputs, outputs, 3, stride, 1, bias=False)
        super().__init__(convolution, nn.BatchNorm3d(outputs), nn.ReLU(inplace=True))


class Residual(nn.Module):
    """A cheap 1x1 and 3x3 correction on top of its input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(ConvUnit(width, width // 2, 1), ConvUnit(width // 2, width))

    def forward(self, features: Tensor) -> Tensor:
        return features + cast(Tensor, self.body(features))


class TopDown(nn.Module):
    """Brings maps of the three strides to one width, each enriched by the coarser one."""

    def __init__(self, widths: tuple[int, int, int]) -> None:
        super().__init__()
        self.across = nn.ModuleList(ConvUnit(width, _WIDTH, 1) for width in widths)
        self.smooth = nn.ModuleList(ConvUnit(_WIDTH, _WIDTH) for _ in widths[:2])

    def forward(self, maps: list[Tensor]) -> list[Tensor]:
        fine, middle, coarse = (across(features) for across, features in zip(self.across, maps, strict=True))
        middle = self.smooth[1](middle + functional.interpolate(coarse, scale_factor=2.0))
        fine = self.smooth[0](fine + functional.interpolate(middle, scale_factor=2.0))
        return [fine, middle, coarse]


class PictureBranch(nn.Module):
    """The key frame `(B, 3, 224, 224)` to maps of strides 8, 16, 32."""

    def __init__(self) -> None:
        super().__init__()
        a, b, c, d, e = _PICTURE
        self.stem = nn.Sequential(ConvUnit(3, a, 3, 2), ConvUnit(a, b, 3, 2), Residual(b))
        self.to_8 = nn.Sequential(ConvUnit(b, c, 3, 2), Residual(c), Residual(c))
        self.to_16 = nn.Sequential(ConvUnit(c, d, 3, 2), Residual(d), Residual(d))
        self.to_32 = nn.Sequential(ConvUnit(d, e, 3, 2), Residual(e))
        self.top_down = TopDown((c, d, e))

    def forward(self, picture: Tensor) -> list[Tensor]:
        fine = self.to_8(self.stem(picture))
        middle = self.to_16(fine)
        return cast(list[Tensor], self.top_down([fine, middle, self.to_32(middle)]))


class MotionBranch(nn.Module):
    """The whole clip at half its size, `(B, 3, 16, 112, 112)`, to maps of strides 8, 16, 32.

    Time is folded into channels by a learned 1x1 convolution, which can keep what a mean over time would blur: where
    things are in the last frame.
    """

    def __init__(self) -> None:
        super().__init__()
        a, b, c, d = _MOTION
        self.stem = MotionUnit(3, a, (2, 2, 2))
        self.to_8 = MotionUnit(a, b, (1, 2, 2))
        self.to_16 = MotionUnit(b, c, (2, 2, 2))
        self.to_32 = nn.Sequential(MotionUnit(c, d, (2, 2, 2)), MotionUnit(d, d, (1, 1, 1)))
        self.top_down = TopDown((b * CLIP_LENGTH // 2, c * CLIP_LENGTH // 4, d * CLIP_LENGTH // 8))

    def forward(self, clip: Tensor) -> list[Tensor]:
        fine = self.to_8(self.stem(clip))
        middle = self.to_16(fine)
        maps = [features.flatten(1, 2) for features in (fine, middle, self.to_32(middle))]
        return cast(list[Tensor], self.top_down(maps))


class ChannelAttention(nn.Module):
    """Lets each channel take from channels that look alike (the Gram matrix decides); starts as the identity."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.zeros(1))

    def forward(self, features: Tensor) -> Tensor:
        flat = features.flatten(2)
        unit = functional.normalize(flat, dim=2)
        alike = torch.softmax(4 * unit @ unit.transpose(1, 2), dim=2)
        return features + self.gain * (alike @ flat).reshape(features.shape)


class Head(nn.Module):
    """Box distances and class logits of one stride: boxes from the picture, classes from picture and motion."""

    def __init__(self) -> None:
        super().__init__()
        self.fuse = nn.Sequential(ConvUnit(2 * _WIDTH, _WIDTH, 1), ChannelAttention(), ConvUnit(_WIDTH, _WIDTH))
        self.classes = nn.Sequential(ConvUnit(_WIDTH, _WIDTH), nn.Conv2d(_WIDTH, len(LABELS), 1))
        self.boxes = nn.Sequential(ConvUnit(_WIDTH, _WIDTH), nn.Conv2d(_WIDTH, 4, 1))
        nn.init.constant_(cast(Tensor, self.classes[1].bias), -4.0)
        nn.init.constant_(cast(Tensor, self.boxes[1].bias), 1.0)

    def forward(self, picture: Tensor, motion: Tensor) -> tuple[Tensor, Tensor]:
        classes = self.classes(self.fuse(torch.cat((picture, motion), dim=1)))
        return functional.softplus(self.boxes(picture)), classes


class Detector(nn.Module):
    """The network. `raw` is what training needs, `forward` what is exported."""

    anchors: Tensor
    strides: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.picture = PictureBranch()
        self.motion = MotionBranch()
        self.heads = nn.ModuleList(Head() for _ in STRIDES)
        self.register_buffer("anchors", torch.cat([_centres(stride) for stride in STRIDES]), persistent=False)
        sides = torch.cat([torch.full(((SIDE // stride) ** 2,), float(stride)) for stride in STRIDES])
        self.register_buffer("strides", sides, persistent=False)

    def raw(self, picture: Tensor, halved: Tensor) -> tuple[Tensor, Tensor]:
        """Boxes and logits.

        Args:
            picture: The key frame `(B, 3, 224, 224)` float32 RGB, ImageNet-normalised.
            halved: The clip at half its size, `(B, 3, 16, 112, 112)` float32, likewise, oldest frame first.

        Returns:
            `(boxes, logits)`: `(B, N, 4)` x1, y1, x2, y2 in input pixels of the last frame, and `(B, N, 6)`.
        """
        pictures, motions = self.picture(picture), self.motion(halved)
        parts = [head(*maps) for head, maps in zip(self.heads, zip(pictures, motions, strict=True), strict=True)]
        distances, logits = (torch.cat([part[which].flatten(2) for part in parts], dim=2) for which in (0, 1))
        distances = distances.transpose(1, 2) * self.strides[:, None]
        boxes = torch.cat((self.anchors - distances[:, :, :2], self.anchors + distances[:, :, 2:]), dim=2)
        return boxes, logits.transpose(1, 2)

    def forward(self, clip: Tensor) -> Tensor:
        """Detections of a clip.

        Args:
            clip: `(B, 3, 16, 224, 224)` float32 RGB, ImageNet-normalised, oldest frame first.

        Returns:
            `(B, 10, N)`: centre x, centre y, width, height in input pixels, then six scores in 0..1.
        """
        halved = functional.avg_pool2d(clip.flatten(1, 2), 2).reshape(-1, 3, CLIP_LENGTH, SIDE // 2, SIDE // 2)
        boxes, logits = self.raw(clip[:, :, -1], halved)
        low, high = boxes[:, :, :2], boxes[:, :, 2:]
        return torch.cat(((low + high) / 2, high - low, torch.sigmoid(logits)), dim=2).transpose(1, 2)


def normalised(pictures: Tensor) -> Tensor:
    """`(..., H, W, 3)` uint8 RGB to float32, ImageNet-normalised, the channels still last."""
    mean, std = torch.tensor(MEAN) * 255, torch.tensor(STD) * 255
    return (pictures.float() - mean) / std


def _centres(stride: int) -> Tensor:
    """`(N, 2)` x, y of the anchor points of a stride, in input pixels."""
    steps = (torch.arange(SIDE // stride) + 0.5) * stride
    rows, columns = torch.meshgrid(steps, steps, indexing="ij")
    return torch.stack((columns.flatten(), rows.flatten()), dim=1)
