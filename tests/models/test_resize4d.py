"""4-D interpolation: against loops."""

import numpy as np
from helpers import reference
from helpers.tensors import random64
from torch.autograd import gradcheck

from transformatcher.models.resize4d import resize4d


def test_equals_naive_interpolation():
    corr = random64(1, 2, 3, 3, 2)
    expected = reference.resize(corr[0].numpy(), (4, 5, 6, 3))
    np.testing.assert_allclose(resize4d(corr, (4, 5), (6, 3))[0], expected, atol=1e-12)


def test_gradcheck():
    assert gradcheck(lambda c: resize4d(c, (3, 4), (2, 5)), random64(1, 2, 3, 2, 2, grad=True))
