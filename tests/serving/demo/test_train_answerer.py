"""The training of the answerer: the loss falls, and an interrupted run goes on."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from serving.demo import train_answerer
from serving.demo.answerer import load
from serving.demo.answerer_forward import Batch, Losses, plain
from serving.demo.train_answerer import AGAIN, FIRST, Training, train
from serving.demo.training import Budget


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """The machine is shared."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of 4 instead of 32, and little to watch."""
    monkeypatch.setattr(train_answerer, "BATCH", 4)
    monkeypatch.setattr(train_answerer, "_WATCHED", (2, 1))


def test_the_pace_warms_up_cools_down_and_brings_in_pairs() -> None:
    """The rate rises over the first steps and falls to 2 %; pairs come gradually, or at once in a second run."""
    assert FIRST.rate(0, 0) < 0.01 < FIRST.rate(0, 10_000) == 1.0
    assert FIRST.rate(1, 10_000) == pytest.approx(0.02)
    assert FIRST.two_share(0) == pytest.approx(0.05)
    assert pytest.approx([FIRST.two_share(0.4), FIRST.two_share(1), AGAIN.two_share(0)]) == [0.4] * 3


@pytest.mark.usefixtures("small")
def test_a_run_goes_on_where_its_checkpoint_was(tmp_path: Path) -> None:
    """Weights, average, step and clock come back; the next batch is the one that would have come."""
    run = Training(FIRST, 100, plain())
    for batch in itertools.islice(run.batches(), 2):
        run.learn(batch)
    run.budget = Budget(100, 12.5)
    run.store(tmp_path / "run.pt")
    other = Training(FIRST, 100, plain())
    other.resume(tmp_path / "run.pt")
    assert (other.step, other.seen) == (2, 2)
    assert 12.5 <= other.budget.done_s < 100
    for ours, theirs in (
        (run.model.state_dict(), other.model.state_dict()),
        (run.teacher.state_dict(), other.teacher.state_dict()),
        (run.average.model.state_dict(), other.average.model.state_dict()),
    ):
        assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    assert torch.equal(next(run.batches()).images[:2], next(other.batches()).images[:2])
    assert list(tmp_path.iterdir()) == [tmp_path / "run.pt"]


@pytest.mark.usefixtures("small")
def test_a_second_run_takes_the_average_and_other_batches(tmp_path: Path) -> None:
    """`--again` starts at step 0 from the averaged weights, with scenes the first run has not seen."""
    run = Training(FIRST, 100, plain())
    first = next(run.batches())
    run.learn(first)
    run.store(tmp_path / "run.pt")
    again = Training(AGAIN, 100, plain())
    again.take_weights(tmp_path / "run.pt")
    name = "lm_head.weight"
    assert (again.step, again.seen) == (0, 1)
    assert torch.equal(again.model.state_dict()[name], run.average.model.state_dict()[name])
    assert not torch.equal(first.images, next(again.batches()).images)


@pytest.mark.usefixtures("small")
def test_a_step_with_a_broken_gradient_is_left_out() -> None:
    """A gradient that is not finite leaves the weights as they were, and is counted."""
    run = Training(FIRST, 100, plain())
    batch = next(run.batches())
    with torch.no_grad():
        run.teacher.points.bias.fill_(float("nan"))
    before = run.model.state_dict()["lm_head.weight"].clone()
    run.learn(batch)
    assert run.skipped == 1
    assert torch.equal(before, run.model.state_dict()["lm_head.weight"])


class Watched(Training):
    """A run of a minute and a half that keeps its losses, and ends like Ctrl-C when so much of its time is used."""

    def __init__(self, until: float) -> None:
        super().__init__(FIRST, 90, plain())
        self.until = until
        self.found: list[float] = []

    def learn(self, batch: Batch) -> Losses:
        """One step, unless it is time to end."""
        if self.budget.share > self.until:
            raise KeyboardInterrupt
        parts = super().learn(batch)
        self.found.append(float(parts.answer.detach()))
        return parts


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("small")
def test_a_short_training_learns_across_an_interruption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In 90 s of processor time, Ctrl-C half-way, the answers' loss falls to less than half; the second run goes on."""
    monkeypatch.setattr(train_answerer, "BATCH", 8)
    monkeypatch.setattr(train_answerer, "_CHECKPOINT_EVERY_S", 5.0)
    out, checkpoint = tmp_path / "model", tmp_path / "run.pt"
    first = Watched(until=0.5)
    with pytest.raises(KeyboardInterrupt):
        train(first, out, checkpoint)
    assert not out.exists()
    second = Watched(until=2)
    second.resume(checkpoint)
    stored = second.step
    assert 0 < stored <= first.step
    train(second, out, checkpoint)
    assert second.budget.share == 1
    assert (out / "model.safetensors").exists()
    losses = first.found[:stored] + second.found
    fifth = len(losses) // 5
    assert sum(losses[-fifth:]) < 0.5 * sum(losses[:fifth])


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_what_comes_out_can_be_loaded(tmp_path: Path) -> None:
    """When the time is used up the averaged model is saved, and the run can be started from again."""
    run = Training(FIRST, 0.01, plain())
    train(run, tmp_path / "model", tmp_path / "run.pt")
    loaded = load(tmp_path / "model").model.state_dict()
    name = "model.visual.merger.linear_fc2.weight"
    assert torch.equal(loaded[name], run.average.model.state_dict()[name].bfloat16())
    again = Training(AGAIN, 100, plain())
    again.take_weights(tmp_path / "run.pt")
    assert again.seen == run.seen
