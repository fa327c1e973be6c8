"""The order of pairs, and batches whose keypoints stay on their pixels.

The colour of a pixel encodes its position in the file: red is x and green is y, both as fractions; blue is the image.
"""

import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from transformatcher.data.augment import Augmentation
from transformatcher.data.coco_keypoints import AnnotatedObject
from transformatcher.data.coco_pairs import CocoPairs, unique_objects
from transformatcher.data.loader import (
    BatchLoader,
    SampleDataset,
    TrainingPairs,
    WeightedPairs,
    _key,
    build_image_cache,
)
from transformatcher.data.synthetic import synthetic_pair
from transformatcher.images import IMAGENET_MEAN, IMAGENET_STD
from transformatcher.schema import ImagePair, PairBatch

CPU = torch.device("cpu")
SIZE = (56, 64)
STILL = Augmentation(p_color=0.0, p_crop=0.0, p_object_crop=0.0, p_flip=0.0)
EVERYTHING = Augmentation(p_color=0.0, p_crop=0.5, p_object_crop=0.5, p_flip=0.5)
NAMES = ("left_eye", "right_eye", "nose", "left_paw", "right_paw")


def ramp(h: int, w: int, blue: int = 0) -> np.ndarray:
    xs, ys = (np.arange(w) + 0.5) / w * 255, (np.arange(h) + 0.5) / h * 255
    red, green = np.meshgrid(xs, ys)
    return np.stack([red, green, np.full_like(red, blue)], axis=-1).round().astype(np.uint8)


def make_pair(number: int, src: np.ndarray | Path, trg: np.ndarray | Path, sizes, **changes) -> ImagePair:
    """Five keypoints, the last of them hidden, within the middle of both images."""
    rng = np.random.default_rng(number)
    boxes = [np.array([0.2 * w, 0.2 * h, 0.8 * w, 0.8 * h]) for h, w in sizes]
    src_kps, trg_kps = (rng.uniform(0.25, 0.75, (5, 2)) * [w, h] for h, w in sizes)
    return ImagePair(
        str(number), "cat", src, trg, src_kps, trg_kps, np.arange(5) < 4, *boxes, **changes
    )  # fmt: skip


def ramp_pairs(n: int, **changes) -> list[ImagePair]:
    sizes = (60, 80), (90, 50)
    return [
        make_pair(i, ramp(*sizes[0], blue=2 * i), ramp(*sizes[1], blue=2 * i + 1), sizes, **changes) for i in range(n)
    ]


def make_batches(sources, augmentation=STILL, batch=3, rank=0, world=1, keep="host", seed=5, n=None, workers=0):
    cache = build_image_cache(sources, (96, 100), CPU, keep, threads=2)
    dataset = SampleDataset(TrainingPairs(sources, seed, n), cache, SIZE, augmentation, batch, rank, world)
    return BatchLoader(dataset, cache, workers)


def original_size(batches: BatchLoader, pair: ImagePair, side: str) -> tuple[int, int]:
    """(h, w) of a pair's source or target, as the cache found it."""
    dataset = batches.dataset
    return dataset.original_sizes[dataset.index_of[_key(getattr(pair, f"{side}_image"), pair.orient)]]


def colours(images: torch.Tensor, kps_norm: torch.Tensor) -> np.ndarray:
    """What an input of the network shows at some points, in [0, 1]."""
    mean, std = (torch.tensor(values)[:, None, None] for values in (IMAGENET_MEAN, IMAGENET_STD))
    grid = kps_norm[:, :, None]
    sampled = F.grid_sample(images * std + mean, grid, padding_mode="border", align_corners=False)
    return sampled[..., 0].transpose(1, 2).numpy()  # (b, n, 3)


def assert_equal(ours: PairBatch, theirs: PairBatch) -> None:
    for name, value in vars(ours).items():
        assert torch.equal(value, getattr(theirs, name)), name


def assert_on_the_same_pixels(batches: BatchLoader, epoch: int = 0) -> int:
    """Every visible keypoint shows the colour of its position in the file; returns how many samples were mirrored."""
    pairs, flipped = batches.dataset.pairs, 0
    order = pairs.order(epoch)
    for number, batch in enumerate(batches.stream(epoch, 0, epoch + 1)):
        entries = order[number * batches.dataset.batch_size :]
        for side in ("src", "trg"):
            images, kps = getattr(batch, side), getattr(batch, f"{side}_kps_norm")
            seen = colours(images, kps)
            flipped += int((images[:, 0, :, 0] > images[:, 0, :, -1]).all(dim=1).sum())
            for row, entry in zip(range(len(images)), entries, strict=False):
                pair = pairs[entry]
                shown = pair.visible
                assert batch.visible[row].tolist() == shown.tolist()
                h, w = original_size(batches, pair, side)
                expected = getattr(pair, f"{side}_kps_px")[shown] / [w, h]
                np.testing.assert_allclose(seen[row][shown][:, :2], expected, atol=0.012)
                assert kps[row][torch.from_numpy(shown)].abs().max() <= 1
    return flipped


class TestOrder:
    def test_an_epoch_of_a_list_has_every_pair_once(self):
        order = TrainingPairs([WeightedPairs(ramp_pairs(7))], seed=1)
        assert len(order) == 7
        first, second = order.order(0), order.order(1)
        assert sorted(first) == sorted(second) == [(0, i) for i in range(7)]
        assert first != second
        assert order[first[0]].name == str(first[0][1])

    def test_short_epochs_use_a_list_up_before_it_begins_anew(self):
        order = TrainingPairs([WeightedPairs(ramp_pairs(6))], seed=1, pairs_per_epoch=4)
        drawn = Counter(index for epoch in range(3) for _, index in order.order(epoch))
        assert drawn == dict.fromkeys(range(6), 2)

    @pytest.mark.parametrize(("shares", "n", "counts"), [((3.0, 1.0), 12, [9, 3]), ((1.0, 1.0, 1.0), 8, [3, 2, 3])])
    def test_shares(self, shares, n, counts):
        pairs = ramp_pairs(2)
        order = TrainingPairs([WeightedPairs(pairs, share) for share in shares], 0, n)
        drawn = Counter(source for source, _ in order.order(3))
        assert [drawn[i] for i in range(len(shares))] == counts
        assert len(order) == n

    def test_depends_on_seed_and_epoch_alone(self):
        sources = [WeightedPairs(ramp_pairs(5)), WeightedPairs(ramp_pairs(9))]
        one, other = TrainingPairs(sources, 3), TrainingPairs(sources, 3)
        forwards = [one.order(epoch) for epoch in range(4)]
        assert [other.order(epoch) for epoch in reversed(range(4))] == forwards[::-1]
        assert TrainingPairs(sources, 4).order(0) != forwards[0]

    def test_an_endless_source_goes_on(self, coco: CocoPairs):
        order = TrainingPairs([WeightedPairs(coco)], 0, pairs_per_epoch=5)
        assert sorted(order.order(2)) == [(0, i) for i in range(10, 15)]


class TestPixels:
    def test_nothing_happens_to_them(self):
        batches = make_batches([WeightedPairs(ramp_pairs(3))])
        assert assert_on_the_same_pixels(batches) == 0
        (batch,) = batches.stream(0, 0, 1)
        assert batch.src.shape == (3, 3, *SIZE)
        blue = [2 * int(batches.dataset.pairs[where].name) for where in batches.dataset.pairs.order(0)]
        np.testing.assert_allclose(colours(batch.src, batch.src_kps_norm)[:, 0, 2] * 255, blue, atol=0.6)
        np.testing.assert_allclose(colours(batch.trg, batch.trg_kps_norm)[:, 0, 2] * 255 - 1, blue, atol=0.6)

    @pytest.mark.parametrize("key", ["p_crop", "p_object_crop", "p_flip"])
    def test_each_change_alone(self, key):
        batches = make_batches([WeightedPairs(ramp_pairs(6))], replace(STILL, **{key: 1.0}))
        assert assert_on_the_same_pixels(batches) == (12 if key == "p_flip" else 0)
        changed = next(batches.stream(0, 0, 1))
        still = next(make_batches([WeightedPairs(ramp_pairs(6))]).stream(0, 0, 1))
        assert (changed.src - still.src).abs().amax(dim=(1, 2, 3)).min() > 0.1  # every one of them did change

    def test_all_changes_together(self):
        batches = make_batches([WeightedPairs(ramp_pairs(12))], EVERYTHING, batch=4)
        assert 0 < assert_on_the_same_pixels(batches, epoch=1) < 24

    def test_a_pair_that_is_mirrored_already(self):
        sources = [WeightedPairs(ramp_pairs(6, trg_flip=True))]
        assert assert_on_the_same_pixels(make_batches(sources)) == 6
        assert assert_on_the_same_pixels(make_batches(sources, replace(STILL, p_flip=1.0))) == 6  # now the sources
        assert_on_the_same_pixels(make_batches(sources, EVERYTHING))

    def test_exif_counts_where_the_annotation_says_so(self, tmp_path: Path):
        exif = Image.Exif()
        exif[0x0112] = 6  # a quarter turn clockwise
        path = tmp_path / "x.png"
        Image.fromarray(np.rot90(ramp(80, 60))).save(path, exif=exif)  # turned back, as it lies on disk
        straight = ramp(90, 50)
        pair = make_pair(0, path, straight, ((80, 60), (90, 50)), orient=True)
        assert_on_the_same_pixels(make_batches([WeightedPairs([pair])], EVERYTHING, batch=1))

    def test_one_file_in_two_orientations(self, tmp_path: Path):
        """Two benchmarks on the same photos may disagree on whether the EXIF tag counts."""
        exif = Image.Exif()
        exif[0x0112] = 6
        path = tmp_path / "x.png"
        Image.fromarray(ramp(60, 80)).save(path, exif=exif)
        other = ramp(90, 50)
        stored = make_pair(0, path, other, ((60, 80), (90, 50)))
        turned = make_pair(1, path, other, ((80, 60), (90, 50)), orient=True)
        batches = make_batches([WeightedPairs([stored]), WeightedPairs([turned])], batch=2)
        assert original_size(batches, stored, "src") == (60, 80)
        assert original_size(batches, turned, "src") == (80, 60)
        assert len({sample.images[0] for sample in batches.dataset[0, 0]}) == 2

    def test_mirrored_targets_change_names_and_places(self, coco: CocoPairs):
        coco.mirror = 1.0
        batches = make_batches([WeightedPairs(coco)], replace(EVERYTHING, p_flip=0.0), n=6)
        assert assert_on_the_same_pixels(batches) == 6  # every target
        objects = {item.id: item for item in coco.objects}
        for index in range(6):
            pair = coco[index]
            _, trg, *_ = pair.name.split("-")
            assert pair.trg_flip
            # what the pair calls left_eye is what the file calls right_eye
            np.testing.assert_array_equal(pair.trg_kps_px, objects[trg].kps_px[[1, 0, 2, 4, 3]])
        coco.mirror = 0.0
        assert assert_on_the_same_pixels(make_batches([WeightedPairs(coco)], n=6)) == 0


class TestBatchLoader:
    @pytest.fixture
    def noisy(self) -> Augmentation:
        return Augmentation(p_color=0.3, p_crop=0.5, p_object_crop=0.3, p_flip=0.5)

    def test_two_ranks_together_are_one_process(self, noisy):
        sources = [WeightedPairs(ramp_pairs(9))]
        whole = list(make_batches(sources, noisy, batch=4).stream(0, 0, 2))
        parts = [list(make_batches(sources, noisy, batch=4, rank=r, world=2).stream(0, 0, 2)) for r in (0, 1)]
        assert len(whole) == len(parts[0]) == len(parts[1]) == 4  # of each epoch's nine pairs, one is left out
        for number, batch in enumerate(whole):
            for rank in (0, 1):
                for name, value in vars(parts[rank][number]).items():
                    torch.testing.assert_close(value, getattr(batch, name)[rank::2], rtol=0, atol=1e-6)

    def test_cache_location_and_workers_change_nothing(self, noisy, tmp_path: Path):
        pairs = []
        for pair in ramp_pairs(4):
            paths = [tmp_path / f"{pair.name}{side}.png" for side in "ab"]
            for path, pixels in zip(paths, (pair.src_image, pair.trg_image), strict=True):
                Image.fromarray(pixels).save(path)
            pairs.append(replace(pair, src_image=paths[0], trg_image=paths[1]))
        host = list(make_batches([WeightedPairs(pairs)], noisy, batch=2).stream(0, 0, 2))
        disk = make_batches([WeightedPairs(pairs)], noisy, batch=2, keep="disk", workers=2).stream(0, 0, 2)
        for ours, theirs in zip(host, disk, strict=True):
            assert_equal(ours, theirs)

    def test_a_run_goes_on_in_the_middle(self, noisy):
        sources = [WeightedPairs(ramp_pairs(6))]
        whole = list(make_batches(sources, noisy, batch=2).stream(0, 0, 3))
        rest = list(make_batches(sources, noisy, batch=2).stream(1, 2, 3))
        assert (len(whole), len(rest)) == (9, 4)
        for ours, theirs in zip(rest, whole[5:], strict=True):
            assert_equal(ours, theirs)
        other = next(make_batches(sources, noisy, batch=2, seed=6).stream(0, 0, 1))
        assert not torch.equal(other.src, whole[0].src)

    def test_shorter_lists_of_keypoints_are_filled_and_masked(self):
        long, short = ramp_pairs(2)
        cut = {key: getattr(short, key)[:2] for key in ("src_kps_px", "trg_kps_px", "visible")}
        (batch,) = make_batches([WeightedPairs([long, replace(short, **cut)])], EVERYTHING, batch=2).stream(0, 0, 1)
        assert sorted(batch.visible.sum(dim=1).tolist()) == [2, 4]
        assert batch.src_kps_norm.isfinite().all()

    def test_all_batches_have_one_shape(self):
        long, short = ramp_pairs(2)
        cut = {key: getattr(short, key)[:2] for key in ("src_kps_px", "trg_kps_px", "visible")}
        batches = make_batches([WeightedPairs([long]), WeightedPairs([replace(short, **cut)])], batch=1)
        assert [batch.src_kps_norm.shape for batch in batches.stream(0, 0, 1)] == [(1, 5, 2)] * 2

    def test_every_image_is_opened_once(self):
        first, second = ramp_pairs(2)
        shared = replace(second, src_image=first.src_image)
        assert len(build_image_cache([WeightedPairs([first, shared])], (8, 8), CPU).images) == 3


@pytest.fixture
def coco(tmp_path: Path) -> CocoPairs:
    """Four objects in as many images, all keypoints visible."""
    objects = []
    for number, (h, w) in enumerate([(60, 80), (90, 50), (64, 64), (50, 100)]):
        path = tmp_path / f"{number}.png"
        Image.fromarray(ramp(h, w, blue=number)).save(path)
        kps = np.random.default_rng(number).uniform(0.25, 0.75, (5, 2)) * [w, h]
        box = np.array([0.2 * w, 0.2 * h, 0.8 * w, 0.8 * h])
        objects.append(AnnotatedObject(str(number), path, (h, w), "cat", kps, np.ones(5, dtype=bool), box, NAMES))
    return CocoPairs(objects)


class TestSwap:
    def test_half_of_the_samples(self):
        pairs = [synthetic_pair(seed, size=(48, 64))[0] for seed in range(40)]
        trainable = TrainingPairs([WeightedPairs(pairs)], seed=0)
        cache = build_image_cache(trainable.sources, (48, 48), CPU, "host", threads=1)
        dataset = SampleDataset(trainable, cache, (48, 48), replace(STILL, p_swap=0.5), batch_size=40)
        samples, order = dataset[0, 0], trainable.order(0)
        turned = [sample.images[0] != dataset.index_of[f"array-{id(pairs[index].src_image)}", False]
                  for sample, (_, index) in zip(samples, order, strict=True)]  # fmt: skip
        assert 10 < sum(turned) < 30


def test_objects_of_pairs_come_once(tmp_path):
    for name in "abc":
        Image.fromarray(ramp(20, 30)).save(tmp_path / f"{name}.png")
    first = synthetic_pair(0)[0]
    box = np.array([2.0, 3, 20, 15])
    pairs = [
        replace(first, src_image=tmp_path / a, trg_image=tmp_path / b, src_bbox_px=box, trg_bbox_px=None)
        for a, b in (("a.png", "b.png"), ("b.png", "c.png"), ("c.png", "a.png"))
    ]
    objects = unique_objects(pairs)
    assert [item.image.stem for item in objects] == ["a", "b", "c"]
    assert objects[0].bbox_px is box
    assert unique_objects([first]) == []  # pixels in memory have no file


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_workers_end_with_who_trains():
    """However that ends: a worker may be waiting to hand over a batch that nobody will take."""
    code = (
        "import os, sys, time; from transformatcher.data.loader import _init_worker\n"
        "if os.fork() == 0:\n    _init_worker(0); print(os.getpid(), flush=True); time.sleep(60)\n"
        "os.wait()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        worker = int(process.stdout.readline())
        process.kill()
        process.stdout.close()
    deadline = time.monotonic() + 20
    while Path(f"/proc/{worker}/stat").exists() and time.monotonic() < deadline:
        if Path(f"/proc/{worker}/stat").read_text().split()[2] == "Z":
            break
        time.sleep(0.1)
    else:
        assert not Path(f"/proc/{worker}").exists()
