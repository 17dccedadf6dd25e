"""Lets the CUDA build of torchvision be imported beside a CPU build of torch.

Its compiled operators then cannot be loaded, and its import fails where it says something about them that torch does
not know ("operator torchvision::nms does not exist"). Installed beside torchvision and imported by a `.pth` file, this
declares the operators' names between the two. Nothing can call them; the pictures of a chat need none of them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_BEFORE = "torchvision._autograd_registrations", "torchvision._meta_registrations"
_SUPPRESSION = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_OTHERS = "roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool", "deform_conv2d"


class _Declares(MetaPathFinder):
    """Finds no module; being asked for one is the moment to act."""

    library: object = None  # the declarations last as long as this

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Declare before the first module that needs it, unless torchvision's own operators were loaded."""
        if fullname in _BEFORE:
            sys.meta_path.remove(self)
            if not sys.modules["torchvision.extension"]._has_ops():
                self._declare()
        return None

    def _declare(self) -> None:
        from torch.library import Library

        untyped: Any = Library
        library = untyped("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}{_SUPPRESSION}")
        for name in _OTHERS:
            library.define(f"{name}(Tensor x) -> Tensor")
            library.define(f"_{name}_backward(Tensor x) -> Tensor")
        type(self).library = library


sys.meta_path.insert(0, _Declares())
