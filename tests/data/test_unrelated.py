"""Pairs of which nothing in the one photo is in the other."""

from dataclasses import replace

import numpy as np
import pytest

from transformatcher.data.synthetic import synthetic_pair
from transformatcher.data.unrelated import unrelated_pairs
from transformatcher.errors import InputError
from transformatcher.schema import ImagePair


@pytest.fixture(scope="module")
def pairs() -> list[ImagePair]:
    kinds = ["cat", "cat", "dog", "cat", "cow", "dog"]
    return [
        replace(synthetic_pair(seed, (20, 24))[0], category=kind, trg_flip=seed % 2 == 1, difficulty={"scale": 1})
        for seed, kind in enumerate(kinds)
    ]


def test_the_target_is_of_another_category(pairs: list[ImagePair]):
    drawn = unrelated_pairs(pairs)
    kind = {pair.name: pair.category for pair in pairs}
    by_name = {pair.name: pair for pair in pairs}
    for pair, given in zip(drawn, pairs, strict=True):
        own, other = pair.name.split(" / ")
        assert own == given.name
        assert kind[other] != given.category == pair.category
        assert pair.trg_image is by_name[other].trg_image
        assert pair.trg_flip == by_name[other].trg_flip
        np.testing.assert_array_equal(pair.trg_bbox_px, by_name[other].trg_bbox_px)
        assert pair.src_image is given.src_image
        np.testing.assert_array_equal(pair.src_kps_px, given.src_kps_px)
        assert not pair.difficulty  # the factors were those of the old target
    assert len({pair.name for pair in drawn}) == len(pairs)


def test_drawn_by_a_seed(pairs: list[ImagePair]):
    def names(seed: int) -> list[str]:
        return [pair.name for pair in unrelated_pairs(pairs * 3, seed)]

    assert names(1) == names(1) != names(2)


def test_one_category_has_no_other(pairs: list[ImagePair]):
    with pytest.raises(InputError, match="need at least two categories"):
        unrelated_pairs([pair for pair in pairs if pair.category == "cat"])
