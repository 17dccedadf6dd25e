"""What a training on a time budget needs: a clock that survives interruptions, averaged weights, safe checkpoints.

The clock counts the process's processor time: a training comes out alike on a busy and on a quiet machine.
"""

from __future__ import annotations

import copy
import pickle
import time
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from pipeline_ver2.errors import ConfigError

Model = TypeVar("Model", bound=nn.Module)


class Budget:
    """Processor seconds of training done and allowed; `done_s` goes into checkpoints."""

    def __init__(self, total_s: float, done_s: float = 0.0) -> None:
        self.total_s = total_s
        self._before_s = done_s
        self._started = time.process_time()

    @property
    def done_s(self) -> float:
        """Processor seconds used, in this process and before."""
        return self._before_s + time.process_time() - self._started

    @property
    def share(self) -> float:
        """Share of the budget used, 0..1."""
        return min(1.0, self.done_s / self.total_s)


class Average(Generic[Model]):
    """Exponential moving average of a model's weights and buffers, in `model`."""

    def __init__(self, model: Model, decay: float) -> None:
        self.model: Model = copy.deepcopy(model)
        self.model.eval().requires_grad_(requires_grad=False)
        self._decay = decay
        self._steps = 0

    def update(self, model: Model) -> None:
        """Take one step towards the model; the first steps are larger, to forget the random start."""
        self._steps += 1
        decay = min(self._decay, (1 + self._steps) / (10 + self._steps))
        current = model.state_dict()
        for name, value in self.model.state_dict().items():
            if value.dtype.is_floating_point:
                value.lerp_(current[name], 1 - decay)
            else:
                value.copy_(current[name])

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"model": self.model.state_dict(), "steps": self._steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """From a checkpoint."""
        self.model.load_state_dict(state["model"])
        self._steps = state["steps"]


def save_checkpoint(path: Path, content: dict[str, Any]) -> None:
    """Write a checkpoint whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    torch.save(content, partial)
    partial.replace(path)


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint.

    Raises:
        ConfigError: The file is missing or no checkpoint.
    """
    try:
        content: dict[str, Any] = torch.load(path, weights_only=True)
    except (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError) as error:
        raise ConfigError(f"{path} cannot be read as a checkpoint: {error}") from error
    return content


def clip_gradients(model: nn.Module, limit: float) -> bool:
    """Scale gradients to a norm of at most `limit`; False if they are not finite and the step must be left out."""
    norm: Tensor = nn.utils.clip_grad_norm_(model.parameters(), limit)
    return bool(torch.isfinite(norm))
