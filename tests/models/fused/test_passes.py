"""The passes in PyTorch; as a whole they are tested in test_stages.py."""

import torch

from transformatcher.models.fused.passes import normalise, perpendicular


def test_perpendicular_is_a_rotation_by_90_degrees():
    matrix = torch.randn(6, 3)
    torch.testing.assert_close(perpendicular(perpendicular(matrix)), -matrix)
    torch.testing.assert_close((matrix * perpendicular(matrix)).reshape(3, 2, 3).sum(dim=1), torch.zeros(3, 3))


def test_normalise_is_layer_norm_without_gain_and_shift():
    x = torch.randn(2, 8, 5)
    expected = torch.nn.functional.layer_norm(x.transpose(1, 2), (8,)).transpose(1, 2)
    torch.testing.assert_close(normalise(x), expected)
