"""How many clips go into one run."""

from __future__ import annotations

import pytest

from serving.workers.stage1_sizes import batch_sizes


@pytest.mark.fault("A8")
@pytest.mark.parametrize(
    ("max_batch", "warmed"),
    [
        (1, (1,)),
        (2, (1, 2)),
        (3, (1, 2, 3)),
        (4, (1, 2, 4)),
        (5, (1, 2, 3, 5)),
        (8, (1, 2, 4, 8)),
        (64, (1, 16, 32, 64)),
    ],
)
def test_an_accelerator_sees_few_sizes_all_of_them_warm(max_batch: int, warmed: tuple[int, ...]) -> None:
    """Away from the CPU every batch is filled up to one of at most four sizes that the start has run."""
    sizes = batch_sizes(None, max_batch, on_cpu=False)
    assert sizes.warmed == warmed
    padded = {count: sizes.padded(count) for count in range(1, max_batch + 1)}
    assert set(padded.values()) == set(warmed)
    assert all(count <= size for count, size in padded.items())
    assert all(sizes.padded(size) == size for size in warmed)


@pytest.mark.fault("A8")
def test_a_cpu_computes_nothing_for_padding() -> None:
    """On the CPU a free batch stays as long as it is; the start tries one clip and two."""
    sizes = batch_sizes(None, 8, on_cpu=True)
    assert sizes.warmed == (1, 2)
    assert [sizes.padded(count) for count in (1, 3, 8)] == [1, 3, 8]
    assert batch_sizes(None, 1, on_cpu=True).warmed == (1,)


@pytest.mark.fault("A7")
@pytest.mark.parametrize("on_cpu", [True, False])
def test_a_fixed_file_has_one_size(*, on_cpu: bool) -> None:
    """A file fixed at three clips is run with three, however many there are."""
    sizes = batch_sizes(3, 8, on_cpu=on_cpu)
    assert (sizes.warmed, sizes.largest) == ((3,), 3)
    assert [sizes.padded(count) for count in (1, 2, 3)] == [3, 3, 3]


@pytest.mark.parametrize(
    ("fixed", "count", "spans"),
    [
        (None, 0, []),
        (None, 8, [(0, 8)]),
        (None, 9, [(0, 8), (8, 9)]),
        (1, 2, [(0, 1), (1, 2)]),
        (3, 4, [(0, 3), (3, 4)]),
    ],
)
def test_runs_cover_every_clip_once(fixed: int | None, count: int, spans: list[tuple[int, int]]) -> None:
    """Clips are cut into runs of at most the largest size, in their order."""
    assert list(batch_sizes(fixed, 8, on_cpu=True).spans(count)) == spans
