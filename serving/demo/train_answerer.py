"""Trains the embedded answerer: `python -m serving.demo.train_answerer --threads 2`, about an hour on two cores.

Muon for the matrices, AdamW for the rest. The batches are drawn on the fly. An interrupted run goes on
where its last checkpoint left it; `--again` starts a new, gentler run from the weights of a finished one.
"""

from __future__ import annotations

import argparse
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
from serving.demo.training import Average, Budget, load_checkpoint, save_checkpoint
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
_PARTS = ("model", "teacher", "average", "muon", "adam")


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

    def __init__(self, pace: Pace, total_s: float, blocks: Blocks) -> None:
        torch.manual_seed(_SEED)
        self.pace, self.blocks = pace, blocks
        self.budget = Budget(total_s)
        self.tokenizer = make_tokenizer()
        self.model = build_model(self.tokenizer).train()
        self.teacher = Teacher(self.model.model.language_model.config.hidden_size, len(LABELS))
        self.average = Average(self.model, _EMA)
        self.muon, self.adam = _optimisers(self.model, self.teacher, pace)
        self.step = 0
        self.seen = 0  # batches in all, those of the run it started from included
        self.skipped = 0

    def batches(self) -> Iterator[Batch]:
        """Training batches from where the run stands."""
        shares = (self.pace.two_share(self.budget.share) for _ in itertools.count())
        return batches(self.tokenizer, BATCH, self.seen, shares)

    def learn(self, batch: Batch) -> Losses:
        """One step; a step whose gradient is not finite is left out."""
        progress = self.budget.share
        with torch.autocast("cpu", torch.bfloat16):
            parts = losses(self.model, self.teacher, batch, self.blocks)
        self.pace.total(parts, progress).backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_([*self.model.parameters(), *self.teacher.parameters()], _CLIP)
        if torch.isfinite(norm):
            self._follow(self.pace.rate(progress, self.step))
        else:
            self.skipped += 1
        for optimiser in (self.muon, self.adam):
            optimiser.zero_grad(set_to_none=True)
        self.step += 1
        self.seen += 1
        return parts

    def accuracy(self, watched: list[Batch]) -> float:
        """Share of right actions of the averaged model on fixed batches, the words before the action given."""
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            right = [losses(self.average.model, self.teacher, batch, plain()).right for batch in watched]
        return float(torch.stack(right).mean())

    def store(self, path: Path) -> None:
        """Write a checkpoint."""
        parts = {name: getattr(self, name).state_dict() for name in _PARTS}
        save_checkpoint(path, {**parts, "step": self.step, "seen": self.seen, "done_s": self.budget.done_s})

    def resume(self, path: Path) -> None:
        """Go on from a checkpoint."""
        state = load_checkpoint(path)
        for name in _PARTS:
            getattr(self, name).load_state_dict(state[name])
        self.step, self.seen = state["step"], state["seen"]
        self.budget = Budget(self.budget.total_s, state["done_s"])
        log.info("resumed at step %d, %.1f min", self.step, state["done_s"] / 60)

    def take_weights(self, path: Path) -> None:
        """Start from the averaged weights of another run's checkpoint."""
        state = load_checkpoint(path)
        for model in (self.model, self.average.model):
            model.load_state_dict(state["average"]["model"])
        self.teacher.load_state_dict(state["teacher"])
        self.seen = state["seen"]
        log.info("starts from the weights of %s, step %d", path, state["step"])

    def compile(self) -> None:
        """Learn from one batch of each image size, without the clock: compiling is no training."""
        done_s = self.budget.done_s
        for batch in _one_of_each_size(self.batches()):
            self.learn(batch)
        self.budget = Budget(self.budget.total_s, done_s)
        log.info("ready at step %d", self.step)

    def _follow(self, rate: float) -> None:
        for optimiser, peak in ((self.muon, self.pace.muon), (self.adam, self.pace.adam)):
            for group in optimiser.param_groups:
                group["lr"] = peak * rate
            optimiser.step()
        self.average.update(self.model)


def train(run: Training, out: Path, checkpoint: Path) -> None:
    """Train until the time is used up, then save the averaged model into `out`."""
    watched = fixed_batches(run.tokenizer, *_WATCHED)
    run.compile()
    stored_s, looks, tally = run.budget.done_s, 1 + math.floor(run.budget.share * _LOOKS), _Tally()
    for batch in run.batches():
        tally.add(run.learn(batch))
        done_s, share = run.budget.done_s, run.budget.share
        if run.step % _LOG_EVERY == 0:
            log.info("%3.0f %% step %d skipped %d %s", 100 * share, run.step, run.skipped, tally)
            tally = _Tally()
        if share * _LOOKS >= looks:
            looks += 1
            log.info("watched accuracy %.3f at %.1f min", run.accuracy(watched), done_s / 60)
        if done_s - stored_s > _CHECKPOINT_EVERY_S or share >= 1:
            stored_s = done_s
            run.store(checkpoint)
        if share >= 1:
            break
    save(run.average.model, run.tokenizer, out)
    log.info("saved %s", out)


class _Tally:
    """Mean losses and speed since the last log line."""

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self.count = 0
        self.sums = torch.zeros(6)

    def add(self, parts: Losses) -> None:
        values = (parts.answer, parts.action, parts.points, parts.persons, parts.pooled, parts.right)
        self.sums += torch.stack([value.detach().float() for value in values])
        self.count += 1

    def __str__(self) -> str:
        names = ("answer", "action", "points", "persons", "pooled", "right")
        means = (self.sums / max(1, self.count)).tolist()
        speed = self.count * BATCH / (time.perf_counter() - self.start)
        return f"{speed:.1f} samples/s " + " ".join(
            f"{name} {mean:.3f}" for name, mean in zip(names, means, strict=True)
        )


def _one_of_each_size(source: Iterator[Batch], most: int = 40) -> Iterator[Batch]:
    sizes: set[torch.Size] = set()
    for batch in itertools.islice(source, most):
        if batch.images.shape not in sizes:
            sizes.add(batch.images.shape)
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
    parser.add_argument("--minutes", type=float, default=75, help="of processor time; the learning rates fall over it")
    parser.add_argument("--out", type=Path, default=MODEL_FOLDER, help="folder for the model")
    parser.add_argument("--checkpoint", type=Path, default=CHECKPOINT)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--again", type=Path, help="checkpoint of a finished run to start from")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s [%(levelname)s] %(message)s")
    torch.set_num_threads(arguments.threads)
    cv2.setNumThreads(1)
    blocks = compiled() if shutil.which("g++") else plain()
    run = Training(AGAIN if arguments.again else FIRST, arguments.minutes * 60, blocks)
    if arguments.checkpoint.exists():
        run.resume(arguments.checkpoint)
    elif arguments.again:
        run.take_weights(arguments.again)
    train(run, arguments.out, arguments.checkpoint)


if __name__ == "__main__":
    main()
