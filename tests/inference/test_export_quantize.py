"""Weights in fewer bits."""

import numpy as np

from transformatcher.inference.export_quantize import grouped_int8


def test_int8_is_within_half_a_step():
    values = np.random.default_rng(0).normal(size=(6, 32, 3, 3)).astype(np.float32)
    values[0, :16] = 0  # a group of zeros has a scale all the same
    whole, scales = grouped_int8(values)
    assert whole.dtype == np.int8
    assert whole.shape == (12, 16, 3, 3)
    back = (whole * scales[:, None, None, None]).reshape(values.shape)
    steps = scales.reshape(6, 2).repeat(16, axis=1)[:, :, None, None]
    assert (abs(back - values) <= steps / 2 + 1e-7).all()
    assert grouped_int8(values[:, :3])[0].shape == (6, 3, 3, 3)  # an image's three channels are one group
    assert grouped_int8(values[..., None])[0].shape == (12, 16, 3, 3, 1)
