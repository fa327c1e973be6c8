"""The keys, shapes and types of kornia's LoFTR; beside the real one where it is installed."""

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.passes import matcher_in_passes
from PIL import Image

from transformatcher.data.synthetic import synthetic_pair
from transformatcher.errors import InputError
from transformatcher.inference.calibration import Calibration, Calibrations
from transformatcher.inference.interfaces.kornia import KorniaMatcher
from transformatcher.inference.matcher import Matcher

KEYS = {"keypoints0", "keypoints1", "confidence", "batch_indexes"}


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    """Two pairs of the size that the small matcher looks at, so that nothing is resized: (2, 2, 3, 96, 96)."""
    pairs = [synthetic_pair(seed, size=(96, 96))[0] for seed in (1, 2)]
    pixels = np.stack([[pair.src_image for pair in pairs], [pair.trg_image for pair in pairs]])
    return torch.from_numpy(pixels).permute(0, 1, 4, 2, 3) / 255


@pytest.fixture
def module(matcher: Matcher) -> KorniaMatcher:
    module = KorniaMatcher(Matcher(matcher.model, matcher.config, "cpu", Calibrations(Calibration(1.0, 0.5, -0.5))))
    module.model.backbone.eval()
    yield module
    module.model.backbone.train()


def test_each_pair_of_a_batch_as_by_itself(module: KorniaMatcher, images: torch.Tensor):
    out = module({"image0": images[0], "image1": images[1]})
    assert out.keys() == KEYS
    for number in range(2):
        alone = module({"image0": images[0, number : number + 1], "image1": images[1, number : number + 1]})
        mine = out["batch_indexes"] == number
        for key in ("keypoints0", "keypoints1", "confidence"):
            torch.testing.assert_close(out[key][mine], alone[key])


def test_the_same_matches_as_matcher_match():
    """Of the shipped model: random weights at a low temperature have near-ties, which any rounding may turn."""
    shipped = Matcher.from_pretrained(device="cpu")
    pair, _ = synthetic_pair(1, size=shipped.config.image_size)  # so that nothing is resized
    src, trg = (torch.from_numpy(image).permute(2, 0, 1) / 255 for image in (pair.src_image, pair.trg_image))
    out, alone = KorniaMatcher(shipped)({"image0": src[None], "image1": trg[None]}), shipped.match(src, trg)
    assert len(alone.keypoints0)
    for key in ("keypoints0", "keypoints1", "confidence"):
        np.testing.assert_allclose(out[key], getattr(alone, key), rtol=1e-3, atol=1e-3)


def test_sizes_may_differ_and_points_are_pixels_of_the_originals(module: KorniaMatcher):
    image0, image1 = torch.rand(2, 3, 50, 80), torch.rand(2, 1, 120, 70)
    out = module({"image0": image0, "image1": image1})
    assert out["keypoints0"].dtype == out["confidence"].dtype == torch.float32
    assert out["batch_indexes"].dtype == torch.int64
    for key, (w, h) in (("keypoints0", (80, 50)), ("keypoints1", (70, 120))):
        assert ((out[key] >= 0) & (out[key] <= torch.tensor([w, h]))).all()
    assert (out["keypoints0"].amax(0) > torch.tensor([40, 25])).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_in_several_passes(images: torch.Tensor, dtype: torch.dtype):
    matcher = matcher_in_passes(try_mirrored=True)
    out = KorniaMatcher(matcher).to(dtype)({"image0": images[0].to(dtype), "image1": images[0].flip(3).to(dtype)})
    assert out["keypoints1"].dtype == dtype
    expected = out["keypoints0"] * torch.tensor([-1, 1]) + torch.tensor([96, 0])  # mirrored
    assert len(expected) > 50
    assert (out["keypoints1"] - expected).norm(dim=1).median() < 8  # a cell


def test_threshold(module: KorniaMatcher, images: torch.Tensor):
    data = {"image0": images[0], "image1": images[1]}
    every = module(data)["confidence"]
    module.threshold = float(every.median())
    sure = module(data)["confidence"]
    assert 0 < len(sure) < len(every)
    module.threshold = 1.1
    assert {key: len(value) for key, value in module(data).items()} == dict.fromkeys(KEYS, 0)


def test_a_module_like_others(module: KorniaMatcher, images: torch.Tensor):
    assert not module.training
    out = module.double()({"image0": images[0].double(), "image1": images[1].double()})
    assert {value.dtype for value in out.values()} == {torch.float64, torch.int64}
    module.float()
    assert any(name.startswith("model.backbone") for name, _ in module.named_parameters())


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"image0": torch.rand(1, 3, 50, 50)}, "image1 is missing; given: image0"),
        ({"image0": torch.rand(2, 3, 9, 9), "image1": torch.rand(1, 3, 9, 9)}, "the same batch size, got 2 and 1"),
        (
            {"image0": torch.rand(3, 9, 9)},
            r"image0: expected floats of b × 1 or 3 × h × w, got torch.float32 \(3, 9, 9\)",
        ),
        ({"image0": torch.zeros(1, 3, 9, 9, dtype=torch.uint8)}, "got torch.uint8"),
        ({"image0": torch.full((1, 3, 9, 9), 255.0)}, r"image0: values must lie in \[0, 1\]"),
        ({"image0": torch.rand(1, 3, 9, 9), "mask0": torch.ones(1, 9, 9)}, "mask0: only image0 and image1"),
    ],
    ids=["one", "uneven", "no batch", "bytes", "too large", "mask"],
)
def test_bad_input(module: KorniaMatcher, data, message):
    with pytest.raises(InputError, match=message):
        module(data)


def test_the_shipped_model_is_the_default():
    out = KorniaMatcher(threshold=0.5)({"image0": torch.rand(1, 3, 64, 48), "image1": torch.rand(1, 3, 48, 64)})
    assert out.keys() == KEYS


@pytest.mark.filterwarnings("default")
class TestBesideKornia:
    def test_the_same_keys_ranks_and_types_as_loftr(self, module: KorniaMatcher, images: torch.Tensor):
        feature = pytest.importorskip("kornia.feature", reason="kornia is not installed")
        data = {"image0": images[0].mean(1, keepdim=True), "image1": images[1].mean(1, keepdim=True)}
        with torch.no_grad():
            theirs = feature.LoFTR(pretrained=None).eval()(data)
        ours = module(data)
        assert ours.keys() == theirs.keys()
        for key, value in theirs.items():
            assert (ours[key].dim(), ours[key].dtype) == (value.dim(), value.dtype), key
            assert ours[key].shape[1:] == value.shape[1:], key

    def test_its_geometry_takes_our_points(self):
        geometry = pytest.importorskip("kornia.geometry", reason="kornia is not installed")
        photo = Path(__file__).parents[3] / "src" / "transformatcher" / "examples" / "cat_a.jpg"
        image = torch.from_numpy(np.array(Image.open(photo))).permute(2, 0, 1)[None] / 255
        shipped = KorniaMatcher()
        # Of half the size, but not mirrored: its RANSAC leaves out all samples that a homography would mirror.
        out = shipped({"image0": image, "image1": image[..., ::2, ::2]})
        points0, points1 = out["keypoints0"], out["keypoints1"]
        assert len(points0) > 20
        homography, inliers = geometry.ransac.RANSAC("homography", inl_th=20.0)(points0, points1)
        assert homography.shape == (3, 3)
        assert inliers.sum() > 10
