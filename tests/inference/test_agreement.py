"""Where the other points of an object expect a point."""

import pytest
import torch

from transformatcher.coords import grid_norm
from transformatcher.inference.agreement import FLOOR, MIN_POINTS, agreement_prior, expected_from_others

AFFINE = torch.tensor([[0.8, 0.1], [-0.2, 0.9], [0.1, -0.05]])  # (x, y, 1) → (x, y), near the identity
WEIGHT = 100.0  # of a point: so much that the pull towards the identity does not matter


@pytest.fixture
def points() -> torch.Tensor:
    return torch.rand(1, 9, 2) * 2 - 1


def mapped(points: torch.Tensor) -> torch.Tensor:
    return torch.cat([points, torch.ones_like(points[..., :1])], dim=-1) @ AFFINE


def test_an_outlier_is_expected_where_the_others_say(points: torch.Tensor):
    true = mapped(points)
    found = true.clone()
    found[0, 4] += torch.tensor([0.9, -0.7])
    expected = expected_from_others(points, found, torch.full((1, 9), WEIGHT))
    torch.testing.assert_close(expected[0, 4], true[0, 4].double(), atol=0.01, rtol=0)
    torch.testing.assert_close(expected, true.double(), atol=0.05, rtol=0)  # nor does it pull the others


def test_points_without_weight_change_nothing(points: torch.Tensor):
    weight = torch.full((1, 9), WEIGHT)
    weight[0, 6:] = 0
    moved = mapped(points)
    moved[0, 6:] = 5.0
    cells = grid_norm((6, 7), like=points)
    for function in (expected_from_others, lambda *given: agreement_prior(cells, *given)):
        torch.testing.assert_close(
            function(points, moved, weight)[:, :6], function(points[:, :6], moved[:, :6], weight[:, :6])
        )


def test_few_and_unsure_points_stay_where_they_are(points: torch.Tensor):
    """The less the others weigh, the nearer to the identity."""
    turned = -points
    distances = [
        (expected_from_others(points, turned, torch.full((1, 9), weight)) - points).norm(dim=-1).mean().item()
        for weight in (1e-3, 0.05, WEIGHT)
    ]
    assert distances[0] < 0.05
    assert distances == sorted(distances)
    assert distances[2] > 0.5


class TestPrior:
    cells = grid_norm((41, 41), like=torch.zeros(()))

    def test_highest_where_a_point_is_expected(self, points: torch.Tensor):
        found = mapped(points)
        found[0, 4] += torch.tensor([0.9, -0.7])
        prior = agreement_prior(self.cells, points, found, torch.full((1, 9), WEIGHT))
        best = self.cells.flatten(0, 1)[prior[0, 4].argmax()]
        torch.testing.assert_close(best, mapped(points)[0, 4], atol=0.05, rtol=0)  # a cell is 0.05
        assert prior.amin() == pytest.approx(torch.tensor(FLOOR).log().item(), abs=1e-3)

    def test_wide_where_the_points_do_not_agree(self, points: torch.Tensor):
        weight = torch.full((1, 9), WEIGHT)
        found = mapped(points)
        narrow, wide = (
            agreement_prior(self.cells, points, target, weight).exp().mean()
            for target in (found + 0.02 * torch.randn_like(found), torch.rand_like(found) * 2 - 1)
        )
        assert wide > 3 * narrow

    def test_none_with_few_points(self, points: torch.Tensor):
        weight = torch.full((2, 9), WEIGHT)
        weight[0, MIN_POINTS - 1 :] = 0
        weight[1, MIN_POINTS:] = 0
        prior = agreement_prior(self.cells, *(side.expand(2, -1, -1) for side in (points, mapped(points))), weight)
        assert not prior[0].any()
        assert prior[1].any()
