"""Which photo to mark next."""

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.annotation import make_photos, open_project

from transformatcher.annotation.suggestion import Descriptors, choose_next
from transformatcher.inference.cues import pooled_similarity


def unit(*values: float) -> np.ndarray:
    return np.array(values) / np.linalg.norm(values)


CROWD = [unit(1, 0.1 * i, 0) for i in range(4)]  # four alike
PAIR = [unit(0, 1, 0.1 * i) for i in range(2)]  # two alike
LONER = unit(-0.1, -0.1, 1)
ALL = np.stack([*CROWD, *PAIR, LONER])


def test_the_first_one_is_like_most_others():
    assert choose_next(ALL, None) in range(4)


def test_the_next_one_is_of_the_largest_group_without_a_reference():
    assert choose_next(ALL[1:], ALL[:1]) in (3, 4)  # one of the pair


def test_least_like_prefers_the_loner():
    assert choose_next(ALL[1:], ALL[[0, 4]], "least_like") == len(ALL) - 2


def test_many_candidates_are_thinned():
    crowd = np.repeat(ALL, 1000, axis=0)
    assert choose_next(crowd, None) < 4000


class TestDescriptors:
    def test_their_product_is_the_similarity(self, tmp_path: Path):
        with open_project(make_photos(tmp_path / "photos", {"a.png": 0})) as project:
            descriptors = Descriptors(project, "model")
            a, b = ([torch.rand(1, 8, 4, 4), torch.rand(1, 6, 2, 2)] for _ in range(2))
            product = descriptors.describe(a) @ descriptors.describe(b)
            assert product == pytest.approx(float(pooled_similarity(a, b).sum()), rel=1e-5)

    def test_they_are_kept_for_their_model_alone(self, tmp_path: Path):
        with open_project(make_photos(tmp_path / "photos", {"a.png": 0})) as project:
            (photo,) = project.photos()
            features = [torch.rand(1, 8, 4, 4)]
            descriptors = Descriptors(project, "model")
            descriptors.add({photo.id: features})
            again = Descriptors(project, "model").of(photo.id)
            np.testing.assert_allclose(again, descriptors.describe(features), atol=1e-3)
            assert Descriptors(project, "another").of(photo.id) is None
            descriptors.forget([photo.id])
            assert descriptors.of(photo.id) is None

    def test_a_suggestion_needs_photos_to_choose_from(self, tmp_path: Path):
        with open_project(make_photos(tmp_path / "photos", {"a.png": 0, "b.png": 1})) as project:
            first, second = project.photos()
            descriptors = Descriptors(project, "model")
            descriptors.suggest(set(), {first.id, second.id})
            assert descriptors.suggestion is None  # nothing is known of them
            descriptors.add({first.id: [torch.rand(1, 8, 4, 4)], second.id: [torch.rand(1, 8, 4, 4)]})
            descriptors.suggest({first.id}, {second.id})
            assert descriptors.suggestion == second.id
            descriptors.suggest({first.id, second.id}, set())
            assert descriptors.suggestion is None
