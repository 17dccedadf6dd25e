"""Trains the embedded answerer: `python -m serving.demo.train_answerer --minutes 50`.

Muon for the matrices, AdamW for the rest, on one core. The batches are drawn on the fly. An interrupted run goes on
where its last checkpoint left it; `--again` starts a new, gentler run from the weights of a finished one.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import logging
import math
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import cv2
import torch
from torch import Tensor, nn

from serving.demo.answerer import MODEL_FOLDER, build_model, save
from serving.demo.answerer_data import batches, fixed_batches, make_tokenizer
from serving.demo.answerer_forward import Batch, Blocks, Losses, Teacher, compiled, losses, plain
from serving.demo.world import LABELS

log = logging.getLogger("train_answerer")

BATCH = 32
CHECKPOINT = Path("out/answerer_training.pt")

_SEED = 20_26
_WARM_UP_STEPS = 150
_EMA = 0.998
_CLIP = 1.0
_WATCHED = (24, 10)
_CHECKPOINT_EVERY_S = 60.0
_LOOKS = 10
_LOG_EVERY = 50


@dataclass(frozen=True, slots=True)
class Pace:
    """Peak learning rates, and whether people come in twos only gradually and the teacher's say fades."""

    muon: float
    adam: float
    from_scratch: bool

    def rate(self, progress: float, step: int) -> float:
        """Share of the peak learning rate."""
        cosine = 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
        return cosine * min(1.0, (step + 1) / _WARM_UP_STEPS)

    def two_share(self, progress: float) -> float:
        """Share of scenes with two people."""
        return 0.05 + 0.35 * min(1.0, progress / 0.4) if self.from_scratch else 0.4

    def total(self, parts: Losses, progress: float) -> Tensor:
        """The loss to follow."""
        fading = max(0.0, 1 - progress) if self.from_scratch else 0.0
        taught = (0.3 + 0.7 * fading) * parts.points + (0.3 + 0.4 * fading) * parts.persons
        return parts.answer + taught + 0.5 * fading * parts.pooled


FIRST = Pace(muon=2e-3, adam=1.2e-3, from_scratch=True)
AGAIN = Pace(muon=1.4e-3, adam=8e-4, from_scratch=False)


class Training:
    """A run: model, teacher, moving average, optimisers, and how far it has come."""

    def __init__(self, pace: Pace, budget_s: float, blocks: Blocks) -> None:
        torch.manual_seed(_SEED)
        self.pace, self.budget_s, self.blocks = pace, budget_s, blocks
        self.tokenizer = make_tokenizer()
        self.model = build_model(self.tokenizer).train()
        self.teacher = Teacher(self.model.config.text_config.hidden_size, len(LABELS))
        self.average = copy.deepcopy(self.model)
        self.optimisers = _optimisers(self.model, self.teacher, pace)
        self.step = 0
        self.elapsed_s = 0.0
        self.skipped = 0

    @property
    def progress(self) -> float:
        """0 at the start, 1 when the time is used up."""
        return self.elapsed_s / self.budget_s

    def batches(self) -> Iterator[Batch]:
        """Training batches from where the run stands."""
        shares = (self.pace.two_share(self.progress) for _ in itertools.count())
        first = self.step if self.pace.from_scratch else self.step + 1_000_000
        return batches(self.tokenizer, BATCH, first, shares)

    def learn(self, batch: Batch) -> Losses:
        """One step; a step whose gradient is not finite is left out."""
        with torch.autocast("cpu", torch.bfloat16):
            parts = losses(self.model, self.teacher, batch, self.blocks)
        loss = self.pace.total(parts, self.progress)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_([*self.model.parameters(), *self.teacher.parameters()], _CLIP)
        rate = self.pace.rate(self.progress, self.step)
        for optimiser, peak in zip(self.optimisers, (self.pace.muon, self.pace.adam), strict=True):
            for group in optimiser.param_groups:
                group["lr"] = peak * rate
            if torch.isfinite(norm):
                optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        self.skipped += int(not torch.isfinite(norm))
        self.step += 1
        self._follow()
        return parts

    def accuracy(self, watched: list[Batch]) -> float:
        """Share of right actions of the averaged model on fixed batches, the words before the action given."""
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            right = [losses(self.average, self.teacher, batch, plain()).right for batch in watched]
        return float(torch.stack(right).mean())

    def store(self, path: Path) -> None:
        """Write a checkpoint; the old one stays until the new one is whole."""
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(".new")
        state = {name: getattr(self, name).state_dict() for name in ("model", "teacher", "average")}
        optimisers = [optimiser.state_dict() for optimiser in self.optimisers]
        torch.save({**state, "optimisers": optimisers, "step": self.step, "elapsed_s": self.elapsed_s}, fresh)
        fresh.replace(path)

    def resume(self, path: Path) -> None:
        """Go on from a checkpoint."""
        state = torch.load(path, weights_only=True)
        for name in ("model", "teacher", "average"):
            getattr(self, name).load_state_dict(state[name])
        for optimiser, saved in zip(self.optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(saved)
        self.step, self.elapsed_s = state["step"], state["elapsed_s"]
        log.info("resumed at step %d, %.1f min", self.step, self.elapsed_s / 60)

    def take_weights(self, path: Path) -> None:
        """Start from the averaged weights of another run's checkpoint."""
        state = torch.load(path, weights_only=True)
        for model in (self.model, self.average):
            model.load_state_dict(state["average"])
        self.teacher.load_state_dict(state["teacher"])
        log.info("starts from the weights of %s, step %d", path, state["step"])

    def _follow(self) -> None:
        keep = min(_EMA, (1 + self.step) / (10 + self.step))
        with torch.no_grad():
            for mean, weight in zip(self.average.parameters(), self.model.parameters(), strict=True):
                mean.lerp_(weight, 1 - keep)


def train(training: Training, out: Path, checkpoint: Path) -> None:
    """Train until the time is used up, then save the averaged model into `out`."""
    watched = fixed_batches(training.tokenizer, *_WATCHED)
    for seen_before in _shapes(training.batches()):
        training.learn(seen_before)
    log.info("ready after step %d", training.step)
    stored_s, looks, tally = training.elapsed_s, 1 + math.floor(training.progress * _LOOKS), _Tally()
    for batch in training.batches():
        start = time.perf_counter()
        tally.add(training.learn(batch))
        training.elapsed_s += time.perf_counter() - start + tally.waited(start)
        if training.step % _LOG_EVERY == 0:
            log.info("%3.0f %% step %d skipped %d %s", 100 * training.progress, training.step, training.skipped, tally)
            tally = _Tally()
        if training.progress * _LOOKS >= looks:
            looks += 1
            log.info("watched accuracy %.3f at %.1f min", training.accuracy(watched), training.elapsed_s / 60)
            tally.mark = time.perf_counter()
        if training.elapsed_s - stored_s > _CHECKPOINT_EVERY_S or training.progress >= 1:
            stored_s = training.elapsed_s
            training.store(checkpoint)
        if training.progress >= 1:
            break
    save(training.average, training.tokenizer, out)
    log.info("saved %s", out)


class _Tally:
    """Mean losses and speed since the last log line."""

    def __init__(self) -> None:
        self.mark = self.start = time.perf_counter()
        self.count = 0
        self.sums = torch.zeros(6)

    def add(self, parts: Losses) -> None:
        values = (parts.answer, parts.action, parts.points, parts.persons, parts.pooled, parts.right)
        self.sums += torch.stack([value.detach().float() for value in values])
        self.count += 1

    def waited(self, start: float) -> float:
        """Seconds between the end of the step before and the start of this one: the batch was being drawn."""
        waited, self.mark = start - self.mark, time.perf_counter()
        return waited

    def __str__(self) -> str:
        names = ("answer", "action", "points", "persons", "pooled", "right")
        means = (self.sums / max(1, self.count)).tolist()
        speed = self.count * BATCH / (time.perf_counter() - self.start)
        return f"{speed:.1f} samples/s " + " ".join(
            f"{name} {mean:.3f}" for name, mean in zip(names, means, strict=True)
        )


def _shapes(source: Iterator[Batch], most: int = 40) -> Iterator[Batch]:
    """The first batch of each image size, so that compiling is over before the clock starts."""
    sizes: set[tuple[int, ...]] = set()
    for batch in itertools.islice(source, most):
        if batch.images.shape not in sizes:
            sizes.add(tuple(batch.images.shape))
            yield batch
        if len(sizes) > 1:
            return


def _optimisers(
    model: nn.Module, teacher: nn.Module, pace: Pace
) -> tuple[torch.optim.Optimizer, torch.optim.Optimizer]:
    matrices, kernels, others = [], [], []
    for name, weight in model.named_parameters():
        if weight.ndim == 2 and ("layers." in name or "blocks." in name or "merger." in name):
            matrices.append(weight)
        elif weight.ndim > 1:
            kernels.append(weight)
        else:
            others.append(weight)
    muon = torch.optim.Muon(matrices, lr=pace.muon, momentum=0.95, weight_decay=0.05, adjust_lr_fn="match_rms_adamw")
    decayed = {"params": [*kernels, *teacher.parameters()], "weight_decay": 0.05}
    adam = torch.optim.AdamW([decayed, {"params": others, "weight_decay": 0.0}], lr=pace.adam, betas=(0.9, 0.98))
    return muon, adam


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=50)
    parser.add_argument("--out", type=Path, default=MODEL_FOLDER, help="folder for the model")
    parser.add_argument("--checkpoint", type=Path, default=CHECKPOINT)
    parser.add_argument("--again", type=Path, help="checkpoint of a finished run to start from")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s [%(levelname)s] %(message)s")
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    blocks = compiled() if shutil.which("g++") else plain()
    training = Training(AGAIN if arguments.again else FIRST, arguments.minutes * 60, blocks)
    if arguments.checkpoint.exists():
        training.resume(arguments.checkpoint)
    elif arguments.again:
        training.take_weights(arguments.again)
    train(training, arguments.out, arguments.checkpoint)


if __name__ == "__main__":
    main()
