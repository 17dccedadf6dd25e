"""A user's checkout of YOWOv3: its code is imported while it is needed and leaves no trace in the process."""

from __future__ import annotations

import contextlib
import importlib
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

import torch

from pipeline_ver2.errors import ConfigError
from serving.yowov3.settings import Settings
from serving.yowov3.weights import Weights, load_strictly

MODULE, FUNCTION = "model.TSN.YOWOv3", "build_yowov3"
# What the network's code imports by names that are so common that an installed package may have them too.
_COMMON_NAMES = frozenset({"model", "utils"})


@contextlib.contextmanager
def importable(repo: Path) -> Iterator[None]:
    """Within, code of the checkout can be imported and its folder is the working directory.

    Args:
        repo: The checkout, absolute.

    Raises:
        ConfigError: It is no checkout of YOWOv3.
    """
    if not repo.joinpath(*MODULE.split(".")).with_suffix(".py").is_file():
        raise ConfigError(f"--repo {repo} is no checkout of YOWOv3: it has no {MODULE.replace('.', '/')}.py")
    before = set(sys.modules)
    hidden = {name: sys.modules.pop(name) for name in before if name.partition(".")[0] in _COMMON_NAMES}
    finder = _CheckoutFirst(repo)
    sys.meta_path.insert(0, finder)
    sys.path.insert(0, str(repo))
    try:
        with contextlib.chdir(repo):
            yield
    finally:
        sys.path.remove(str(repo))
        sys.meta_path.remove(finder)
        # Looking at a module may import others, and needs those above it.
        there = [name for name, module in list(sys.modules.items()) if name not in before and _is_in(module, repo)]
        for name in there:
            del sys.modules[name]
        for name in [name for name in sys.modules if name.partition(".")[0] in _COMMON_NAMES]:
            del sys.modules[name]
        sys.modules.update(hidden)


def build(repo: Path, settings: Settings, weights: Weights, weights_file: Path) -> torch.nn.Module:
    """The network with its weights, for evaluation. To be called, and the network to be run, within `importable`.

    Raises:
        ConfigError: The checkout's code fails, or the weights do not fit.
    """
    try:
        module = importlib.import_module(MODULE)
    except Exception as error:  # whatever somebody else's code raises
        raise ConfigError(f"--repo {repo}: {MODULE} cannot be imported: {told(error)}") from error
    function = getattr(module, FUNCTION, None)
    if not callable(function):
        raise ConfigError(f"--repo {repo}: {MODULE} has no function {FUNCTION}")
    # With this key set no backbone looks for pretrained files of its own. What the network makes of the file may be
    # lenient, so the weights are loaded once more.
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "weights.pth"
        torch.save(weights, plain)
        network = _called(function, settings, plain, weights_file)
    if not isinstance(network, torch.nn.Module):
        raise ConfigError(f"--repo {repo}: {FUNCTION} gave no network but {type(network).__name__}")
    load_strictly(network, weights, weights_file)
    return network.eval().requires_grad_(requires_grad=False)


def _called(function: Callable[..., object], settings: Settings, plain: Path, weights_file: Path) -> object:
    config = {**settings.content, "pretrain_path": str(plain)}
    try:
        return function(config)
    except Exception as error:  # whatever somebody else's code raises
        if isinstance(error, KeyError) and error.args[:1] and error.args[0] not in config:
            raise ConfigError(f"--config: the key {error} is missing, {FUNCTION} asks for it") from error
        if "loading state_dict" in str(error):
            said = f"--weights {weights_file} does not fit the network of --config"
            raise ConfigError(f"{said}: {told(error)}") from error
        raise ConfigError(f"{FUNCTION} failed: {told(error)}") from error


def told(error: Exception) -> str:
    """An error of somebody else's code in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"


class _CheckoutFirst(MetaPathFinder):
    """Finds the common names in the checkout, though a package of that name is installed."""

    def __init__(self, repo: Path) -> None:
        self._repo = repo

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        return PathFinder.find_spec(fullname, [str(self._repo)], target) if fullname in _COMMON_NAMES else None


def _is_in(module: ModuleType, repo: Path) -> bool:
    places = [getattr(module, "__file__", None), *getattr(module, "__path__", [])]
    return any(isinstance(place, str) and Path(place).is_relative_to(repo) for place in places)
