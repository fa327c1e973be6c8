"""Features of a frozen backbone are computed once, and a training with them ends where one without does."""

import copy
from pathlib import Path

import pytest
import torch
from helpers.training import tiny_tables, write_benchmark

from transformatcher.config import run_config
from transformatcher.training.feature_cache import FeatureCache
from transformatcher.training.trainer import FEATURES, Trainer

CPU = torch.device("cpu")


class Halves(torch.nn.Module):
    """Two layers of features; counts the images that it sees."""

    seen = 0

    def forward(self, images: torch.Tensor) -> list[torch.Tensor]:
        self.seen += len(images)
        return [images[..., ::2, ::2] / 3, images.mean(dim=(2, 3), keepdim=True)]


def test_each_image_is_computed_once(tmp_path: Path):
    cache, backbone = FeatureCache(tmp_path / "features", 10**8), Halves()
    images = torch.rand(3, 3, 8, 8)
    images[2] = images[0]  # twice in one batch
    first = cache(backbone, images)
    again = FeatureCache(tmp_path / "features", 10**8)(backbone, images[[2, 1]])  # another process
    assert backbone.seen == cache.computed == 2
    for layer, expected, repeated in zip(first, backbone(images), again, strict=True):
        torch.testing.assert_close(layer, expected, rtol=1e-3, atol=1e-4)  # of float16
        assert torch.equal(layer[[2, 1]], repeated)


def test_without_room_everything_is_computed(tmp_path: Path):
    cache, backbone = FeatureCache(tmp_path / "features", 10), Halves()
    images = torch.rand(2, 3, 8, 8)
    for _ in range(2):
        torch.testing.assert_close(cache(backbone, images)[0], images[..., ::2, ::2] / 3, rtol=1e-3, atol=1e-4)
    assert cache.computed == 4
    assert copy.deepcopy(cache) is cache


@pytest.fixture(scope="module")
def benchmark(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_benchmark(tmp_path_factory.mktemp("data") / "PF-PASCAL")


def frozen(benchmark: Path, **data: float) -> dict:
    tables = tiny_tables(benchmark, lr_backbone=0.0)
    tables["data"] |= {"p_color": 0.0, "p_crop": 0.0, **data}
    return tables


def test_a_frozen_training_sees_each_photo_once(benchmark: Path, tmp_path: Path):
    """8 training and 4 validation pairs are 24 photos, in two epochs and three validations."""
    tables = frozen(benchmark)
    trainer = Trainer(run_config(tables), tmp_path / "cached", CPU, pictures=False)
    cached = trainer.fit()
    cache = trainer.model.feature_cache
    assert isinstance(cache, FeatureCache)
    assert cache.computed == 24
    assert len(list((tmp_path / "cached" / FEATURES).iterdir())) == 24
    tables["train"]["feature_cache_gb"] = 0.0
    plain = Trainer(run_config(tables), tmp_path / "plain", CPU, pictures=False).fit()
    for ours, theirs in zip(cached.metrics[1:], plain.metrics[1:], strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=0.02)


@pytest.mark.parametrize("changes", [{"p_color": 0.1}, {"p_crop": 0.1}, {"p_object_crop": 0.1}])
def test_images_that_change_at_random_are_not_cached(benchmark: Path, tmp_path: Path, changes):
    trainer = Trainer(run_config(frozen(benchmark, **changes)), tmp_path, CPU, pictures=False)
    assert trainer.model.feature_cache is None


def test_a_backbone_that_learns_is_not_cached(benchmark: Path, tmp_path: Path):
    tables = frozen(benchmark)
    tables["train"]["lr_backbone"] = 1e-5
    assert Trainer(run_config(tables), tmp_path, CPU, pictures=False).model.feature_cache is None
