"""The cache of features on disk: what comes back, what goes when it is full, what a damaged file does."""

from pathlib import Path

import pytest
import torch

from transformatcher.annotation.feature_store import FeatureStore

SIZE = 2 * 3 * 4 * 4  # bytes of one entry's values, in float16


def features(seed: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [torch.randn(1, 3, 4, 4, generator=torch.Generator().manual_seed(seed)).to(dtype)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_features_come_back_in_their_type(tmp_path: Path, dtype: torch.dtype):
    FeatureStore(tmp_path / "new", 10_000).save("a", features(0, dtype))
    (loaded,) = FeatureStore(tmp_path / "new", 10_000).load("a")  # as after a restart
    assert loaded.dtype == dtype
    torch.testing.assert_close(loaded, features(0, dtype)[0], rtol=1e-3, atol=1e-6)


def test_values_beyond_float16_are_cut(tmp_path: Path):
    store = FeatureStore(tmp_path, 10_000)
    store.save("a", [torch.tensor([[[[1e30, -1e30]]]])])
    assert store.load("a")[0].flatten().tolist() == [65504.0, -65504.0]


def test_the_least_recently_used_go_first(tmp_path: Path):
    store = FeatureStore(tmp_path, 3 * SIZE)
    for seed, key in enumerate("abc"):
        store.save(key, features(seed))
    assert store.load("a") is not None
    store.save("d", features(3))
    assert [key for key in "abcd" if store.load(key) is not None] == ["a", "c", "d"]
    assert len(list(tmp_path.iterdir())) == 3


def test_what_does_not_fit_is_not_kept(tmp_path: Path):
    store = FeatureStore(tmp_path / "none", SIZE - 1)
    store.save("a", features(0))
    assert store.load("a") is None
    assert not (tmp_path / "none").exists()


def test_saved_twice_counts_once(tmp_path: Path):
    store = FeatureStore(tmp_path, 2 * SIZE)
    for _ in range(5):
        store.save("a", features(0))
    store.save("b", features(1))
    assert store.load("a") is not None


@pytest.mark.parametrize("content", [b"", b"nonsense", None])
def test_a_damaged_file_counts_as_missing(tmp_path: Path, content: bytes | None):
    store = FeatureStore(tmp_path, 10_000)
    store.save("a", features(0))
    file = tmp_path / "a.safetensors"
    file.unlink() if content is None else file.write_bytes(content)
    assert store.load("a") is None
    store.save("a", features(0))
    assert store.load("a") is not None


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path: Path):
    (tmp_path / "file").write_text("in the way")
    store = FeatureStore(tmp_path / "file" / "features", 10_000)
    store.save("a", features(0))
    assert store.load("a") is None
