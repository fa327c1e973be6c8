"""A cache of one entry."""

import torch

from transformatcher.models.memo import Memo


def test_computed_again_only_for_another_key():
    memo, calls = Memo(), []

    def compute():
        calls.append(torch.is_inference_mode_enabled())
        return len(calls)

    with torch.inference_mode():
        assert [memo.get(key, compute) for key in ("a", "a", "b", "a")] == [1, 1, 2, 3]
    assert not any(calls)  # what is cached may be used in training
