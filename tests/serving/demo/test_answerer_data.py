"""Slots and training batches of the answerer: repeatable, true, and made as the product makes them."""

from __future__ import annotations

import itertools
import json
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from transformers.models.qwen3_5.tokenization_qwen3_5 import Qwen3_5Tokenizer

from pipeline_ver2.prompts import NOBODY
from serving.demo import seeds
from serving.demo.answerer_data import Sample, batches, fixed_batches, make_sample, make_tokenizer, mirrored
from serving.demo.answerer_forward import Batch
from serving.demo.answerer_slots import Slot, Truth, sample_findings, sample_slot, sample_take, slot_truth
from serving.demo.skeleton import JOINTS
from serving.demo.world import LABELS, Action, Person

SIZE = (128, 224)


@pytest.fixture(scope="module")
def tokenizer() -> Qwen3_5Tokenizer:
    """The answerer's tokenizer."""
    return make_tokenizer()


def slots(count: int, **shares: float) -> list[Slot]:
    """Slots of the training seeds."""
    return [sample_slot(seeds.generator(seeds.TRAIN, number), (36, 64), **shares) for number in range(count)]


def person(actor: int, action: Action, visible: float = 1.0) -> Person:
    """One person in one picture."""
    return Person(actor, action, (0.1, 0.2, 0.3, 0.9), visible, np.full((len(JOINTS), 2), 0.5))


def equal(first: Batch, second: Batch) -> bool:
    """Whether two batches hold the same numbers."""
    return all(
        torch.equal(torch.nan_to_num(getattr(first, part.name)), torch.nan_to_num(getattr(second, part.name)))
        for part in fields(Batch)
    )


def test_the_same_seed_gives_the_same_slot_and_another_seed_another() -> None:
    """Pictures, times, findings and truth all come from the seed."""
    first, again = slots(2), slots(2)
    assert np.array_equal(first[0].frames, again[0].frames)
    assert (first[0].times_s, first[0].findings, first[0].truth) == (
        again[0].times_s,
        again[0].findings,
        again[0].truth,
    )
    assert first[0].times_s != first[1].times_s


def test_the_same_numbers_give_the_same_batches(tokenizer: Qwen3_5Tokenizer) -> None:
    """A run that goes on at batch 1 draws the same new slots, the first half of the batch, as the run before."""
    whole = list(itertools.islice(batches(tokenizer, 4, 0, itertools.repeat(0.3)), 2))
    again = list(itertools.islice(batches(tokenizer, 4, 0, itertools.repeat(0.3)), 2))
    assert equal(whole[0], again[0])
    assert equal(whole[1], again[1])
    later = next(batches(tokenizer, 4, 1, itertools.repeat(0.3)))
    assert torch.equal(whole[1].images[:2], later.images[:2])
    assert torch.equal(whole[1].action[:2], later.action[:2])


def test_watched_batches_are_not_trained_on(tokenizer: Qwen3_5Tokenizer) -> None:
    """The batches to watch by differ from the first training batch and have the usual shape."""
    watched = fixed_batches(tokenizer, 2, 5)
    assert [(2, 3, *size, 3) for size in (*[SIZE] * 4, (128, 192))] == [tuple(batch.images.shape) for batch in watched]
    assert not torch.equal(watched[0].action, watched[1].action) or not torch.equal(
        watched[0].images, watched[1].images
    )


@pytest.mark.parametrize(
    ("shown", "expected", "described"),
    [
        ([[], [], []], NOBODY, "Nobody is seen."),
        ([[("walk", 0)], [("walk", 0)], []], "walk", "One person walks."),
        ([[("walk", 0)], [("run", 0)], [("run", 0)]], "run", "One person runs."),
        (
            [[("stand", 0), ("fall", 1)], [("stand", 0), ("fall", 1)], []],
            "fall",
            "Two persons; the most notable one falls.",
        ),
        ([[("stand", 0), ("fall", 1)], [("stand", 0)], []], "stand", "One person stands."),
    ],
)
def test_the_right_answer(shown: list[list[tuple[Action, int]]], expected: str, described: str) -> None:
    """The most notable action of those who are seen in two pictures, and how many they are."""
    truth = slot_truth([[person(actor, action) for action, actor in picture] for picture in shown])
    assert (expected, described) == (truth.action, truth.description)
    assert {"action": expected, "description": described} == json.loads(truth.answer)
    assert " " not in truth.answer.split("description")[0]


def test_who_is_hardly_seen_does_not_count() -> None:
    """A person whose box is mostly hidden is nobody."""
    assert Truth(NOBODY, {}) == slot_truth([[person(0, "run", visible=0.2)]] * 3)


def test_shares_of_slots_are_as_wanted() -> None:
    """About 8 % are empty, about 6 % repeat a picture, and a repeated picture has the same time and findings."""
    drawn = slots(150)
    empty = np.mean([not any(slot.persons) for slot in drawn])
    repeated = np.mean([any(slot.repeated) for slot in drawn])
    assert 0.02 < empty < 0.16
    assert 0.01 < repeated < 0.14
    for slot in drawn:
        assert len(slot.frames) == len(slot.findings) == 3
        assert not slot.repeated[0]
        for index in (1, 2):
            same = slot.times_s[index] == slot.times_s[index - 1]
            assert same == slot.repeated[index]
            assert not same or slot.findings[index] == slot.findings[index - 1]


def test_times_are_those_of_keyframes_eleven_grid_frames_apart() -> None:
    """About 0.37 s apart, up to hours into the source."""
    drawn = [slot for slot in slots(80) if not any(slot.repeated)]
    steps = np.array([np.diff(slot.times_s) for slot in drawn])
    assert abs(steps.mean() - 11 / 30) < 0.01
    assert (np.abs(steps - 11 / 30) < 0.11).all()
    assert max(slot.times_s[0] for slot in drawn) > 1000


def test_wrong_findings_are_wrong_and_sound_sure() -> None:
    """Honest findings mostly name the right action; wrong ones mostly lack it, at scores that are no lower."""
    named: dict[bool, list[bool]] = {False: [], True: []}
    scores: dict[bool, list[float]] = {False: [], True: []}
    for number, wrong in itertools.product(range(200), (False, True)):
        rng = seeds.generator(seeds.TRAIN, number)
        take = sample_take(rng, 16 / 9, two_share=0.3)
        persons = [take.scene.persons_at(time_s, (36, 64)) for time_s in take.times_s]
        truth = slot_truth(persons)
        labels = [one.labels for found in sample_findings(rng, persons, wrong=wrong) for one in found]
        if truth.actors:
            named[wrong].append(truth.action in {label.name for one in labels for label in one})
            scores[wrong] += [one[0].score for one in labels]
    assert np.mean(named[False]) > 0.85
    assert np.mean(named[True]) < 0.4
    assert abs(np.mean(scores[False]) - np.mean(scores[True])) < 0.05


def test_findings_of_nobody_are_mostly_none() -> None:
    """An honest detector seldom sees a person where there is none."""
    rng = np.random.default_rng(0)
    found = [any(sample_findings(rng, [[], [], []], wrong=False)) for _ in range(200)]
    assert np.mean(found) < 0.2


def test_a_mirrored_slot_is_true_too() -> None:
    """Left is right: pictures, boxes and joints are turned over together; turning twice gives the joints back."""
    slot = next(slot for slot in slots(20) if any(slot.persons))
    rng = np.random.default_rng(1)
    turned = mirrored(rng, slot)
    channels = [sorted(frame[:, ::-1].reshape(-1, 3).sum(0).tolist()) for frame in turned.frames]
    assert [sorted(frame.reshape(-1, 3).sum(0).tolist()) for frame in slot.frames] == channels
    assert turned.truth == slot.truth == slot_truth(turned.persons)
    for before, after in zip(slot.persons, turned.persons, strict=True):
        for one, other in zip(before, after, strict=True):
            left, right = JOINTS.index("left_hand"), JOINTS.index("right_hand")
            assert np.allclose(one.joints[left] * (-1, 1) + (1, 0), other.joints[right])
            assert other.box[0] == pytest.approx(1 - one.box[2])
    twice = mirrored(rng, turned)
    assert all(
        np.allclose(one.joints, other.joints)
        for before, after in zip(slot.persons, twice.persons, strict=True)
        for one, other in zip(before, after, strict=True)
    )


def test_a_sample_points_at_the_people(tokenizer: Qwen3_5Tokenizer) -> None:
    """Joints are in pixels of the picture, with an action for each picture and one for the slot."""
    seen = [person(0, "wave"), person(1, "stand", visible=0.1)]
    frames = (np.zeros((*SIZE, 3), np.uint8),) * 3
    base = replace(slots(1)[0], frames=frames, persons=(tuple(seen),) * 3, truth=slot_truth([seen] * 3))
    sample: Sample = make_sample(tokenizer, base)
    assert np.allclose(sample.joints[:, 0], (112, 64))
    assert np.isnan(sample.joints[:, 1]).all()
    assert [[LABELS.index("wave"), -100]] * 3 == sample.acts.tolist()
    assert [LABELS.index("wave"), -100] == sample.overall.tolist()
    assert sample.action == LABELS.index("wave")
    assert len(sample.image_at) == 3 * 28
