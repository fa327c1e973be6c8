"""Annotated pairs → pairs whose photos show different kinds of things, on which nothing can be found."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from transformatcher.errors import InputError
from transformatcher.schema import ImagePair


def unrelated_pairs(pairs: Sequence[ImagePair], seed: int = 0) -> list[ImagePair]:
    """Every pair with the target of a pair of another category, drawn at random.

    The source's keypoints stay as they are, so the target has the points of another object: whatever is predicted for
    them is wrong.
    """
    if len({pair.category for pair in pairs}) < 2:
        raise InputError("unrelated pairs need at least two categories; all pairs given are of one")
    rng = np.random.default_rng(seed)
    drawn = []
    for pair in pairs:
        other = pair
        while other.category == pair.category:
            other = pairs[int(rng.integers(len(pairs)))]
        drawn.append(
            replace(
                pair,
                name=f"{pair.name} / {other.name}",
                trg_image=other.trg_image,
                trg_flip=other.trg_flip,
                trg_bbox_px=other.trg_bbox_px,
                absent_px=np.zeros((0, 2)),
                difficulty={},
            )
        )
    return drawn
