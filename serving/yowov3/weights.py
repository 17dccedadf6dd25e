"""Reads a checkpoint and puts it into a network, all of it or not at all."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch

from pipeline_ver2.errors import ConfigError

_WRAPPERS = ("state_dict", "model")
_PARALLEL = "module."
_NAMED = 3

Weights = dict[str, torch.Tensor]


def read_weights(file: Path) -> Weights:
    """The tensors of a checkpoint by the names of a network's parts.

    A plain state dict, or one under the key `state_dict` or `model`; the prefix that training on several GPUs leaves
    is taken off. Only tensors are unpickled, never code.

    Raises:
        ConfigError: The file cannot be read, or holds something else.
    """
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except OSError as error:
        raise ConfigError(f"--weights {file} cannot be read: {error.strerror or error}") from error
    except pickle.UnpicklingError as error:
        raise ConfigError(
            f"--weights {file} holds more than tensors, and loading that can run code. If you trust it, write its "
            "state dict alone into another file: torch.save(torch.load(FILE, weights_only=False)['model']"
            ".state_dict(), NEW), or whatever its state dict is called"
        ) from error
    except (RuntimeError, EOFError, ValueError) as error:
        raise ConfigError(f"--weights {file} is no PyTorch checkpoint: {' '.join(str(error).split())[:200]}") from error
    state = _state_of(content)
    if state is None:
        held = f"the keys {some(map(str, content))}" if isinstance(content, dict) else type(content).__name__
        raise ConfigError(f"--weights {file}: expected a state dict, alone or as state_dict or model, found {held}")
    return state


def _state_of(content: object) -> Weights | None:
    wrapped = [content[key] for key in _WRAPPERS if key in content] if isinstance(content, Mapping) else []
    for state in (*wrapped, content):
        if isinstance(state, Mapping) and state and all(isinstance(value, torch.Tensor) for value in state.values()):
            parallel = all(name.startswith(_PARALLEL) for name in state)
            return {name.removeprefix(_PARALLEL) if parallel else name: value for name, value in state.items()}
    return None


def load_strictly(network: torch.nn.Module, weights: Weights, file: Path) -> None:
    """Put a checkpoint into a network.

    Raises:
        ConfigError: A tensor is missing, is too much, or has another shape; the message names some.
    """
    wanted = network.state_dict()
    problems = {
        "missing": wanted.keys() - weights.keys(),
        "unexpected": weights.keys() - wanted.keys(),
        "of another shape": {
            name for name in wanted.keys() & weights.keys() if wanted[name].shape != weights[name].shape
        },
    }
    told = [f"{len(names)} {problem} ({some(sorted(names))})" for problem, names in problems.items() if names]
    if told:
        raise ConfigError(f"--weights {file} does not fit the network of --config: {', '.join(told)}")
    network.load_state_dict(weights)


def some(names: Iterable[str]) -> str:
    """The first few of many names."""
    listed = list(names)
    return ", ".join(listed[:_NAMED]) + (", …" if len(listed) > _NAMED else "")
