"""Numbers that tell right matches from wrong ones."""

import math

import pytest
import torch

from transformatcher.inference.cues import (
    MIN_DISTANCE,
    MIN_PEAK,
    PAIR_CUES,
    POINT_CUES,
    PairCues,
    PointCues,
    pooled_similarity,
    runner_up_gap,
)


def cues(b: int = 2, n: int = 5, **changes: torch.Tensor) -> PointCues:
    names = ("peak", "gap", "cycle", "first_cycle", "shift", "moved", "similarity", "contrast")
    values = {name: torch.rand(b, n) for name in names}
    return PointCues.of(**(values | changes))


def column(values: torch.Tensor, names: tuple[str, ...], name: str) -> torch.Tensor:
    return values[..., names.index(name)]


def test_logarithms_of_what_is_not_too_small():
    peak, shift = torch.tensor([[0.5, 0.0]]), torch.tensor([[0.3, 0.0]])
    values = cues(1, 2, peak=peak, shift=shift).values
    assert values.shape == (1, 2, len(POINT_CUES))
    assert column(values, POINT_CUES, "log_peak")[0].tolist() == pytest.approx([math.log(0.5), math.log(MIN_PEAK)])
    assert column(values, POINT_CUES, "log_shift")[0].tolist() == pytest.approx([math.log(0.3), math.log(MIN_DISTANCE)])


def test_the_mean_of_the_points_that_are_asked_for_together():
    together = torch.tensor([[True, True, False], [False, False, False]])
    cycle = torch.tensor([[0.1, 0.4, 0.9], [0.2, 0.3, 0.5]])
    means = column(cues(2, 3, cycle=cycle, together=together).values, POINT_CUES, "log_cycle_together").exp()
    torch.testing.assert_close(means.float(), torch.tensor([[0.2, 0.2, 0.9], [0.2, 0.3, 0.5]]))
    values = cues(2, 3, cycle=cycle).values
    assert torch.equal(column(values, POINT_CUES, "log_cycle_together"), column(values, POINT_CUES, "log_cycle"))


def test_a_pair_is_the_mean_of_its_points():
    points, pooled = cues(), torch.tensor([[0.1, 0.2], [0.3, 0.4]])
    values = PairCues.of(points, pooled, torch.tensor([1.0, 1.5])).values
    assert values.shape == (2, len(PAIR_CUES))
    for name, own in (
        ("log_peak", "pair_log_peak"), ("gap", "pair_gap"), ("log_cycle", "pair_log_cycle"),
        ("similarity", "pair_similarity"),
    ):  # fmt: skip
        of_points, of_pair = column(points.values, POINT_CUES, name), column(values, PAIR_CUES, own)
        torch.testing.assert_close(of_pair, of_points.mean(dim=1))
    torch.testing.assert_close(values[:, 4:6], pooled.double())
    assert column(values, PAIR_CUES, "log_enlargement").tolist() == pytest.approx([0, math.log(1.5)])
    assert column(values, PAIR_CUES, "matched_once").tolist() == [1, 0]


def test_lists_of_points_are_joined():
    one, other = cues(n=2), cues(n=3)
    assert torch.equal(PointCues.joined([one, other]).values, torch.cat([one.values, other.values], dim=1))


def test_the_gap_is_to_a_peak_elsewhere():
    scores = torch.zeros(1, 3, 30, 30)
    scores[0, :, 10, 10] = 5.0
    scores[0, 0, 12, 12] = 4.0  # beside the best: the same peak
    scores[0, 1, 10, 25] = 4.0  # another one
    assert runner_up_gap(scores)[0].tolist() == [5, 1, 5]
    assert runner_up_gap(torch.rand(1, 2, 4, 4)).tolist() == [[0, 0]]  # there is no elsewhere


def test_pooled_features_of_the_deepest_fine_and_of_the_deepest_layer():
    src = [torch.rand(2, 4, 8, 8), torch.rand(2, 5, 8, 8), torch.rand(2, 6, 4, 4)]
    trg = [torch.rand(2, 4, 8, 8), 3 * src[1].flip(3), -src[2]]
    torch.testing.assert_close(pooled_similarity(src, trg), torch.tensor([[1.0, -1.0]] * 2))
