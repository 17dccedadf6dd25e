"""Trains the embedded detector: `python -m serving.demo.train_detector`, about an hour on one core.

The same command goes on after an interruption, from its last checkpoint. Convolutions run in bfloat16, in the memory
layout that is fastest for it; weights, optimiser and loss stay in float32.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from serving.demo import seeds
from serving.demo.detector import Detector, normalised
from serving.demo.detector_data import TrainingView, sample_clip, training_view
from serving.demo.detector_export import check, export
from serving.demo.detector_loss import Target, loss
from serving.demo.training import Average, Budget, clip_gradients, load_checkpoint, save_checkpoint

logger = logging.getLogger(__name__)

LEARNING_RATE = 1.5e-3
_FRESH, _REPLAYED = 3, 6
_POOL = 240
# Falls look most varied and are learned last, so they are drawn twice as often as they come.
_FALL_EVERY = 6
_WARM_UP_STEPS = 150
_CHECKPOINT_S = 60.0
_LOG_STEPS = 50


@dataclass(frozen=True, slots=True)
class Settings:
    """What a training is told: its budget, learning rate and files; `start` holds weights to begin with."""

    minutes: float
    learning_rate: float
    checkpoint: Path
    start: Path | None
    first_seed: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Input of `Detector.raw`, and what it should say."""

    pictures: Tensor
    halved: Tensor
    targets: list[Target]


class Feed:
    """Batches, drawn on the fly: new clips, and two variants of each a while later, as drawing is expensive."""

    def __init__(self, next_seed: int) -> None:
        self.next_seed = next_seed
        self._pool: list[TrainingView] = []

    def batch(self) -> Batch:
        """The next batch."""
        chooser = np.random.default_rng(self.next_seed)
        views = [self._draw() for _ in range(_FRESH)]
        variants = [variant for view in views for variant in (view.mirrored(), view.recoloured())]
        if len(self._pool) >= _POOL:
            views += [self._pool.pop(int(chooser.integers(len(self._pool)))) for _ in range(_REPLAYED)]
        self._pool.extend(variants)
        pictures = torch.from_numpy(np.stack([view.picture for view in views]))
        halved = torch.from_numpy(np.stack([view.halved for view in views]))
        targets = [Target(torch.from_numpy(view.boxes), torch.from_numpy(view.actions)) for view in views]
        return Batch(
            normalised(pictures).permute(0, 3, 1, 2),
            normalised(halved).permute(0, 4, 1, 2, 3),
            targets,
        )

    def _draw(self) -> TrainingView:
        falling = self.next_seed % _FALL_EVERY == 0
        sample = sample_clip(seeds.generator(seeds.TRAIN, self.next_seed), falling=falling)
        self.next_seed += 1
        return training_view(sample)


class Trainer:
    """One training: model, averaged weights, optimiser, feed and clock."""

    def __init__(self, settings: Settings) -> None:
        torch.manual_seed(settings.first_seed)
        self.settings = settings
        self.model = _channels_last(Detector())
        if settings.start is not None:
            self.model.load_state_dict(load_checkpoint(settings.start)["average"]["model"])
        self.average = Average(self.model, decay=0.998)
        self.feed = Feed(settings.first_seed)
        self.step = 0
        self.losses: list[float] = []
        self.optimiser = _optimiser(self.model, settings.learning_rate)
        done_s = self._resume() if settings.checkpoint.exists() else 0.0
        self.budget = Budget(settings.minutes * 60, done_s)

    def run(self) -> None:
        """Train until the budget is used."""
        self.model.train()
        saved = shown = time.monotonic()
        clips = 0
        while self.budget.share < 1:
            clips += self._one_step()
            now = time.monotonic()
            if self.step % _LOG_STEPS == 0:
                recent = float(np.mean(self.losses[-_LOG_STEPS:]))
                logger.info(
                    "step %d, %.1f min of %.1f, loss %.3f, %.1f clips/s",
                    self.step, self.budget.done_s / 60, self.settings.minutes, recent, clips / (now - shown),
                )  # fmt: skip
                shown, clips = now, 0
            if now - saved > _CHECKPOINT_S:
                self.save()
                saved = now
        self.save()

    def _one_step(self) -> int:
        batch = self.feed.batch()
        for group in self.optimiser.param_groups:
            warm = min(1.0, (self.step + 1) / _WARM_UP_STEPS)
            group["lr"] = self.settings.learning_rate * warm * (1 - self.budget.share)
        with torch.autocast("cpu", torch.bfloat16):
            boxes, logits = self.model.raw(batch.pictures, batch.halved)
        value = loss(boxes.float(), logits.float(), self.model.anchors, batch.targets)
        self.optimiser.zero_grad(set_to_none=True)
        value.backward()  # type: ignore[no-untyped-call]
        if clip_gradients(self.model, 10):
            self.optimiser.step()
            self.average.update(self.model)
        else:
            logger.warning("step %d left out: its gradients are not finite", self.step)
        self.losses.append(value.item())
        self.step += 1
        return len(batch.targets)

    def save(self) -> None:
        """Write the checkpoint."""
        content = {
            "model": self.model.state_dict(),
            "average": self.average.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "next_seed": self.feed.next_seed,
            "step": self.step,
            "done_s": self.budget.done_s,
        }
        save_checkpoint(self.settings.checkpoint, content)

    def _resume(self) -> float:
        state = load_checkpoint(self.settings.checkpoint)
        self.model.load_state_dict(state["model"])
        self.average.load_state_dict(state["average"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.feed.next_seed = state["next_seed"]
        self.step = state["step"]
        logger.info("going on at step %d from %s", self.step, self.settings.checkpoint)
        return float(state["done_s"])


def _channels_last(model: Detector) -> Detector:
    """Lay the kernels out channels last, as the pictures are."""
    layouts = {4: torch.channels_last, 5: torch.channels_last_3d}
    for kernel in model.parameters():
        if kernel.ndim in layouts:
            kernel.data = kernel.data.contiguous(memory_format=layouts[kernel.ndim])
    return model


def _optimiser(model: Detector, learning_rate: float) -> torch.optim.Optimizer:
    matrices = [value for value in model.parameters() if value.ndim > 1]
    others = [value for value in model.parameters() if value.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": 0.02}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.99))


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, export and check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--minutes", type=float, default=60.0, help="processor time; the learning rate falls to 0 over it"
    )
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "models" / "detector.onnx")
    parser.add_argument(
        "--checkpoint", type=Path, default=Path("work/train_detector.pt"), help="goes on from it if it exists"
    )
    parser.add_argument(
        "--start", type=Path, help="checkpoint of a finished training whose averaged weights to start from"
    )
    parser.add_argument("--learning-rate", type=float, default=LEARNING_RATE)
    parser.add_argument("--first-seed", type=int, default=0, help="index of the first training seed")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s [%(levelname)s] %(message)s")
    torch.set_num_threads(options.threads)
    settings = Settings(options.minutes, options.learning_rate, options.checkpoint, options.start, options.first_seed)
    trainer = Trainer(settings)
    trainer.run()
    export(trainer.average.model, options.out)
    check(trainer.average.model, options.out)
    logger.info("wrote %s", options.out)


if __name__ == "__main__":
    main()
