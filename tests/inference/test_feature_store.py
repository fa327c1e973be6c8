"""The cache of features on disk: what comes back, what goes when it is full, what a damaged file does."""

from pathlib import Path

import pytest
import torch

from transformatcher.inference.feature_store import FeatureStore, as_stored

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


@pytest.fixture(scope="module")
def file_size(tmp_path_factory) -> int:
    """Of one entry, with its header."""
    folder = tmp_path_factory.mktemp("one")
    FeatureStore(folder, 10_000).save("a", features(0))
    return next(folder.iterdir()).stat().st_size


def test_the_least_recently_used_go_first(tmp_path: Path, file_size: int):
    store = FeatureStore(tmp_path, 3 * file_size)
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


def test_two_processes_share_a_folder(tmp_path: Path, file_size: int):
    one, other = (FeatureStore(tmp_path, 10 * file_size) for _ in range(2))
    for seed in range(8):
        one.save(f"one {seed}", features(seed))
        other.save(f"other {seed}", features(seed))
    assert len(list(tmp_path.iterdir())) == 10  # the limit of both together
    assert other.load("one 7") is not None
    assert one.load("other 0") is None


def test_what_comes_back_is_what_a_store_would_return(tmp_path: Path):
    fresh = [f.to(memory_format=torch.channels_last) for f in features(0, torch.bfloat16)]
    store = FeatureStore(tmp_path, 10_000)
    store.save("a", fresh)
    (loaded,), (kept,) = store.load("a"), as_stored(fresh)
    assert torch.equal(loaded, kept)
    assert loaded.stride() == kept.stride() != fresh[0].stride()


def test_saved_twice_counts_once(tmp_path: Path, file_size: int):
    store = FeatureStore(tmp_path, 2 * file_size)
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
