"""Photos in memory that cannot be used: one sentence, as for files."""

import io
import pickle
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import write_image
from PIL import Image

from transformatcher.errors import InputError
from transformatcher.inference.matcher import Matcher
from transformatcher.inference.photos import check_count, to_pixels

GOOD = torch.rand(3, 48, 64)


@pytest.mark.parametrize(
    ("photo", "message"),
    [
        (GOOD[:, :0], r"expected uint8, or floats in \[0, 1\], got torch.float32 of \(3, 0, 64\)"),
        (GOOD.to(torch.complex64), "got torch.complex64"),
        (GOOD.to(torch.float8_e4m3fn), "got torch.float8_e4m3fn"),
        (GOOD > 0.5, "got torch.bool"),
        (GOOD.to("meta"), "on meta"),
        (GOOD.to_sparse(), "got torch.float32"),
        (GOOD - 1, r"must lie in \[0, 1\]"),
        (GOOD * float("nan"), r"must lie in \[0, 1\]"),
        ((GOOD * 1000).int(), r"whole numbers must lie in \[0, 255\], these are 0 to 9\d\d"),
        (-torch.ones(3, 9, 9, dtype=torch.int64), r"these are -1 to -1"),
        (torch.zeros(2, 3, 9, 9), "expected 3 × h × w"),
        (np.zeros((0, 9, 3), np.uint8), "expected uint8"),
        (np.zeros((9, 9, 3)), "expected uint8"),
        (np.zeros((9, 9), dtype=object), "expected uint8"),
        ("a\0b", "a"),
        (Path("nowhere.jpg"), "nowhere.jpg: no such image file"),
    ],
)
def test_what_is_no_photo(photo: Any, message: str):
    with pytest.raises(InputError, match=message):
        to_pixels(photo)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int64])
def test_whole_numbers_of_any_type(dtype):
    values = torch.randint(0, 128, (3, 9, 9))
    np.testing.assert_array_equal(to_pixels(values.to(dtype)), values.permute(1, 2, 0).numpy())


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF"])
def test_an_image_of_pillow_is_turned_as_its_file_is(orientation, kind, tmp_path: Path):
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / f"photo.{kind.lower()}"
    Image.fromarray(np.tile(np.arange(0, 240, 4, dtype=np.uint8), (40, 1))).save(path, exif=exif)
    with Image.open(path) as opened:
        np.testing.assert_array_equal(to_pixels(opened), to_pixels(path))
        opened.load()
        np.testing.assert_array_equal(to_pixels(opened), to_pixels(path))


def test_a_truncated_image_of_pillow(tmp_path: Path):
    path = write_image(tmp_path / "photo.jpg", (300, 400))
    path.write_bytes(path.read_bytes()[:2000])
    with Image.open(path) as opened, pytest.raises(InputError, match=r"photo\.jpg: not an image that can be decoded"):
        to_pixels(opened)
    closed = Image.open(write_image(tmp_path / "other.jpg"))
    closed.close()
    with pytest.raises(InputError, match=r"other\.jpg: not an image that can be decoded"):
        to_pixels(closed)
    with Image.open(io.BytesIO(write_image(tmp_path / "good.png").read_bytes())) as opened:
        assert to_pixels(opened).shape == (60, 80, 3)


@pytest.mark.parametrize("value", [1.5, None, "2", [], float("nan"), True, 0, -1])
def test_counts(value: Any):
    with pytest.raises(InputError, match=r"batch = .*: expected a whole number from 1"):
        check_count(value, "batch")
    assert check_count(np.int64(3), "batch") == 3


class TestMatcher:
    @pytest.mark.parametrize("batch", [0, -1, True])
    def test_a_batch_is_a_whole_number(self, matcher: Matcher, batch):
        with pytest.raises(InputError, match=r"batch = .*: expected a whole number from 1"):
            next(matcher.match_many(GOOD, [GOOD], batch=batch))

    def test_nothing_to_encode(self, matcher: Matcher):
        with pytest.raises(InputError, match="no photo to encode: the list is empty"):
            matcher.encode([])
        assert list(matcher.match_many(GOOD, [])) == []

    @pytest.mark.parametrize("name", ["picture.xyz", "picture", "picture.gif", ".png"])
    def test_an_ending_that_nothing_writes(self, matcher: Matcher, name, tmp_path: Path):
        matches = matcher.match(GOOD, GOOD, [[10, 10]])
        with pytest.raises(InputError, match=r"a picture's name ends in \.png"):
            matches.draw(tmp_path / name)
        assert list(tmp_path.iterdir()) == []

    def test_weights_that_compute_nan(self, matcher: Matcher):
        broken = pickle.loads(pickle.dumps(matcher))  # noqa: S301 (our own)
        broken.model.backbone.gain.data.fill_(float("nan"))
        with pytest.raises(InputError, match="computes infinite numbers or NaN"):
            broken.match(GOOD, GOOD, [[10, 10]])

    def test_threads_share_a_matcher(self, matcher: Matcher):
        photos = [torch.rand(3, 48, 64) for _ in range(4)]
        expected = [matcher.match(GOOD, photo, [[10, 10]]).keypoints1 for photo in photos]
        fresh = pickle.loads(pickle.dumps(matcher))  # noqa: S301 (our own)
        found: dict[int, Any] = {}

        def work(index: int) -> None:
            for _ in range(3):
                found[index] = fresh.match(GOOD, photos[index], [[10, 10]]).keypoints1

        threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for index, points in enumerate(expected):
            np.testing.assert_allclose(found[index], points, atol=1e-3)


def test_results_pickle_without_the_model():
    shipped = Matcher.from_pretrained(device="cpu")
    examples = Path(__file__).parents[2] / "src" / "transformatcher" / "examples"
    matches = shipped.match(examples / "cat_a.jpg", examples / "cat_b.jpg", [[168, 115]])
    data = pickle.dumps(matches)
    assert len(data) < 10_000_000
    again = pickle.loads(data)  # noqa: S301 (our own)
    np.testing.assert_array_equal(again.keypoints1, matches.keypoints1)
    np.testing.assert_allclose(again.pair.points([[168, 115]]).keypoints1, matches.keypoints1, atol=1e-2)


class TestContrast:
    """Grey values of more than 8 bits."""

    RAMP = np.linspace(0, 1, 60 * 80).reshape(60, 80)

    def read(self, values: np.ndarray, path: Path) -> np.ndarray:
        Image.fromarray(values).save(path)
        return to_pixels(path)[..., 0]

    @pytest.mark.parametrize("bits", [8, 9, 10, 12, 14, 16])
    def test_whole_numbers_by_their_bits(self, bits, tmp_path: Path):
        values = (self.RAMP * (2**bits - 1)).astype(np.uint16)
        for name in ("a.png", "a.tif"):
            np.testing.assert_allclose(self.read(values, tmp_path / name), 255 * self.RAMP, atol=1.5)

    @pytest.mark.parametrize("scale", [1.0, 255.0])
    def test_floats(self, scale, tmp_path: Path):
        found = self.read((self.RAMP * scale).astype(np.float32), tmp_path / "a.tif")
        np.testing.assert_allclose(found, 255 * self.RAMP, atol=1.5)

    @pytest.mark.parametrize(
        ("low", "high", "dtype"),
        [
            (-1, 1, np.float32),
            (0, 1e6, np.float32),
            (0, 1e6, np.int32),
            (-500, 500, np.int32),
            (30_000, 31_000, np.uint16),
        ],
    )
    def test_other_ranges_are_said(self, low, high, dtype, tmp_path: Path):
        with pytest.warns(UserWarning, match="from their least to their greatest value"):
            found = self.read((low + (high - low) * self.RAMP).astype(dtype), tmp_path / "a.tif")
        np.testing.assert_allclose(found, 255 * self.RAMP, atol=1.5)

    def test_one_colour_and_values_that_are_none(self, tmp_path: Path):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert (self.read(np.full((9, 9), 0.5, np.float32), tmp_path / "a.tif") == 127).all()
            assert (self.read(np.zeros((9, 9), np.uint16), tmp_path / "b.png") == 0).all()
            spotted = self.RAMP.astype(np.float32)
            spotted[3, 4] = np.nan
            assert self.read(spotted, tmp_path / "c.tif")[3, 4] == 0
        with pytest.raises(InputError, match=r"d\.tif: .*all its values are infinite or not a number"):
            self.read(np.full((9, 9), np.nan, np.float32), tmp_path / "d.tif")
