"""The detector's training and its export."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from pipeline_ver2.config import Stage1Config
from pipeline_ver2.errors import ConfigError
from serving.demo import detector_export, train_detector
from serving.demo.detector import Detector
from serving.demo.detector_export import TOLERANCE, check, difference, export
from serving.demo.skeleton import LABELS
from serving.demo.train_detector import Feed, Settings, Trainer
from serving.workers.stage1_model import OnnxDetector


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def settings(folder: Path, minutes: float) -> Settings:
    """A training in a folder."""
    return Settings(minutes, train_detector.LEARNING_RATE, folder / "training.pt", None, first_seed=0)


def test_feed_repeats_and_replays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches are decided by the seed; once the pool is full, variants of earlier clips join in."""
    monkeypatch.setattr(train_detector, "_POOL", 12)
    first, again = Feed(5), Feed(5)
    sizes = []
    for _ in range(3):
        batch = first.batch()
        torch.testing.assert_close(batch.halved, again.batch().halved)
        sizes.append(len(batch.targets))
        assert batch.pictures.shape == (sizes[-1], 3, 224, 224)
        assert batch.halved.shape == (sizes[-1], 3, 16, 112, 112)
    assert sizes == [3, 3, 9]


def test_training_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    """A second start has the first one's weights, averaged weights, step, seeds and clock."""
    trainer = Trainer(settings(tmp_path, 10))
    trainer.model.train()
    trainer._one_step()
    trainer.save()
    again = Trainer(settings(tmp_path, 10))
    assert (again.step, again.feed.next_seed) == (1, trainer.feed.next_seed)
    assert again.budget.done_s > 0
    torch.testing.assert_close(again.model.state_dict(), trainer.model.state_dict())
    torch.testing.assert_close(again.average.model.state_dict(), trainer.average.model.state_dict())


def test_warm_start_takes_averaged_weights_only(tmp_path: Path) -> None:
    """A restart from a finished training begins a new clock with the old average."""
    trainer = Trainer(settings(tmp_path, 10))
    trainer.model.train()
    trainer._one_step()
    trainer.save()
    start = tmp_path / "training.pt"
    warm = Trainer(Settings(10, 1e-4, tmp_path / "second.pt", start, first_seed=100))
    assert (warm.step, warm.feed.next_seed) == (0, 100)
    torch.testing.assert_close(warm.model.state_dict(), trainer.average.model.state_dict())


@pytest.mark.slow
def test_a_few_steps_learn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty steps on the same few clips bring the loss under half of what it was."""
    monkeypatch.setattr(train_detector, "_WARM_UP_STEPS", 5)
    trainer = Trainer(settings(tmp_path, 1000))
    trainer.model.train()
    batch = trainer.feed.batch()
    monkeypatch.setattr(trainer.feed, "batch", lambda: batch)
    for _ in range(20):
        trainer._one_step()
    assert np.mean(trainer.losses[-5:]) < 0.5 * np.mean(trainer.losses[:5])


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_short_training_learns_across_an_interruption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a minute of processor time, Ctrl-C half-way, the loss falls to less than half; the second run goes on."""
    monkeypatch.setattr(train_detector, "_CHECKPOINT_S", 5.0)
    first = Trainer(settings(tmp_path, 1.0))
    drawn = first.feed.batch

    def until_half() -> train_detector.Batch:
        if first.budget.share > 0.5:
            raise KeyboardInterrupt
        return drawn()

    monkeypatch.setattr(first.feed, "batch", until_half)
    with pytest.raises(KeyboardInterrupt):
        first.run()
    second = Trainer(settings(tmp_path, 1.0))
    stored = second.step
    assert 0 < stored <= first.step
    assert 0 < second.budget.share < 1
    second.run()
    assert second.step == stored + len(second.losses)
    losses = first.losses[:stored] + second.losses
    fifth = len(losses) // 5
    assert np.mean(losses[-fifth:]) < 0.5 * np.mean(losses[:fifth])


@pytest.mark.slow
def test_training_ends_with_its_budget(tmp_path: Path) -> None:
    """A training stops when its time is used and leaves a checkpoint that has nothing left to do."""
    trainer = Trainer(settings(tmp_path, 0.02))
    trainer.run()
    again = Trainer(settings(tmp_path, 0.02))
    again.run()
    assert trainer.step == again.step > 0


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Detector, Path]:
    """A network with random weights, and its ONNX file."""
    torch.manual_seed(1)
    model, path = Detector(), tmp_path_factory.mktemp("export") / "detector.onnx"
    export(model, path)
    return model, path


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
class TestExport:
    """The exported file keeps the contract."""

    @pytest.mark.parametrize("batch", [1, 3, 4])
    def test_file_answers_as_the_model(self, exported: tuple[Detector, Path], batch: int) -> None:
        """ONNX Runtime and PyTorch agree at every batch size."""
        assert difference(*exported, batch) <= TOLERANCE

    def test_other_weights_are_noticed(self, exported: tuple[Detector, Path]) -> None:
        """A file of another model does not pass the check."""
        torch.manual_seed(2)
        with pytest.raises(ConfigError, match=r"detector\.onnx"):
            check(Detector(), exported[1])

    def test_file_describes_itself_and_nothing_else(self, exported: tuple[Detector, Path]) -> None:
        """Labels, clip length, size and key frame are in the metadata; paths of the machine are not in the file."""
        proto = onnx.load(str(exported[1]))
        told = {entry.key: entry.value for entry in proto.metadata_props}
        assert json.loads(told["labels"]) == list(LABELS)
        assert json.loads(told["clip_length"]) == 16
        assert json.loads(told["image_size"]) == [224, 224]
        assert told["keyframe"] == "last"
        assert [entry.version for entry in proto.opset_import if not entry.domain] == [detector_export.OPSET]
        assert exported[1].stat().st_size < 5_600_000
        assert str(Path(__file__).parents[3]).encode() not in exported[1].read_bytes()

    def test_daemon_loads_it(self, exported: tuple[Detector, Path]) -> None:
        """The Stage 1 daemon takes the file as it takes any YOWOv3 export."""
        daemon = OnnxDetector(Stage1Config(model_path=exported[1], threads=1, provider="cpu"))
        assert (daemon.info.labels, daemon.info.image_size) == (LABELS, (224, 224))
        assert len(daemon.detect(np.zeros((2, 16, 224, 224, 3), np.uint8), 0.25, 0.45)) == 2
