"""Batches of rows in, batches of rows out, in every form that engines use; pickled to workers."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import write_image
from helpers.bulk import SMALL

from transformatcher import PairMatcher
from transformatcher.config import model_config
from transformatcher.errors import InputError
from transformatcher.inference.matcher import Matcher
from transformatcher.models.build import build_matcher

pa = pytest.importorskip("pyarrow")
ROWS = {"src": ["0.png", "0.png", "none.png"], "trg": ["1.png", "2.png", "1.png"], "keypoints": ["5,5;9,9", None, ""]}
COLUMNS = ["pair", "src", "trg", "x0", "y0", "x1", "y1", "confidence", "is_match", "same_kind", "mirrored", "error"]


@pytest.fixture(scope="module")
def small() -> Matcher:
    torch.manual_seed(0)
    config = model_config(SMALL)
    return Matcher(build_matcher(config), config, "cpu")


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for seed in range(3):
        write_image(folder / f"{seed}.png", (30 + seed, 40 + 2 * seed), seed)
    return folder


def test_rows_of_every_form(small: Matcher, root: Path):
    match = PairMatcher(small, device="cpu", root=root)
    found = match(ROWS)
    assert list(found) == COLUMNS
    assert {len(column) for column in found.values()} == {len(found["pair"])}
    assert found["pair"][:2].tolist() == [0, 0]
    assert found["pair"][-1] == 2
    assert found["error"][-1].endswith("none.png: no such image file")
    np.testing.assert_array_equal(found["x0"][:2], [5, 9])
    expected = small.match(root / "0.png", root / "1.png", [[5, 5], [9, 9]])
    np.testing.assert_allclose(found["x1"][:2], expected.keypoints1[:, 0], atol=0.02)

    arrays = {name: np.array(values, dtype=object) for name, values in ROWS.items()}  # as Ray Data has them
    points = [np.array([[5.0, 5.0], [9.0, 9.0]]), None, []]
    for other in (match(arrays), match(ROWS | {"keypoints": points}), match(pa.table(ROWS)).to_pydict()):
        assert list(other) == COLUMNS
        np.testing.assert_array_equal(np.array(other["x1"], dtype=float), np.array(found["x1"], dtype=float))


def test_data_frames(small: Matcher, root: Path):
    pandas = pytest.importorskip("pandas")
    match = PairMatcher(small, device="cpu", root=root)
    frame = match(pandas.DataFrame(ROWS))
    assert list(frame.columns) == COLUMNS
    assert frame["src"].tolist()[:2] == ["0.png", "0.png"]
    np.testing.assert_array_equal(frame["y1"].to_numpy(), match(ROWS)["y1"])


def test_pairs_with_numbers_of_their_own(small: Matcher, root: Path):
    found = PairMatcher(small, device="cpu", root=root)(ROWS | {"pair": [70, 80, 90]})
    assert set(found["pair"]) == {70, 80, 90}
    assert len(PairMatcher(small, device="cpu", root=root)({"src": [], "trg": []})["x0"]) == 0


def test_pickled_before_and_after_its_model_is_loaded(small: Matcher, root: Path, tmp_path: Path):
    small.save_pretrained(tmp_path)
    match = PairMatcher(tmp_path, device="cpu", root=root, cache_bytes=1000)
    fresh = pickle.dumps(match)
    expected = match(ROWS)
    assert len(pickle.dumps(match)) == len(fresh) < 1500  # never with the model
    for data in (fresh, pickle.dumps(PairMatcher(small, device="cpu", root=root))):
        copied = pickle.loads(data)  # noqa: S301 (made above)
        np.testing.assert_array_equal(copied(ROWS)["x1"], expected["x1"])
        again = pickle.loads(data)  # noqa: S301
        assert again.encoder is copied.encoder  # as in a process that gets a copy with every task
        assert again.absolute().encoder is not copied.encoder


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"src": ["a"]}, "columns src and trg; trg are missing"),
        ({"a": []}, "columns src and trg; src and trg are miss"),
    ],
)
def test_batches_without_photos(rows, message: str, small: Matcher):
    with pytest.raises(InputError, match=message):
        PairMatcher(small, device="cpu")(rows)


def test_bad_options():
    with pytest.raises(InputError, match="batch 0, threads 2: both must be at least 1"):
        PairMatcher(batch=0)
