"""The order of pairs, and batches whose keypoints lie on the pixels they lay on before.

The colour of a pixel says where it was: red is x and green is y, both as parts of the image; blue numbers the image.
"""

import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from transformatcher.data.coco_keypoints import AnnotatedObject
from transformatcher.data.coco_pairs import CocoPairs, objects_of
from transformatcher.data.image_cache import ImageStore
from transformatcher.data.loader import (
    Augmentation,
    Batches,
    Draws,
    Source,
    TrainingPairs,
    ahead,
    draw_focus,
    draw_sample,
    exchanged,
    open_store,
)
from transformatcher.data.synthetic import synthetic_pair
from transformatcher.images import IMAGENET_MEAN, IMAGENET_STD
from transformatcher.schema import ImagePair, PairBatch

CPU = torch.device("cpu")
SIZE = (56, 64)
STILL = Augmentation(colour=0.0, crop=0.0, focus=0.0, flip=0.0)
EVERYTHING = Augmentation(colour=0.0, crop=0.5, focus=0.5, flip=0.5)
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
    store = open_store(sources, lambda images: ImageStore(images, (96, 100), CPU, keep, threads=2))
    draws = Draws(TrainingPairs(sources, seed, n), store, SIZE, augmentation, batch, rank, world)
    return Batches(draws, store, workers)


def colours(images: torch.Tensor, kps_norm: torch.Tensor) -> np.ndarray:
    """What an input of the network shows at some points, in [0, 1]."""
    mean, std = (torch.tensor(values)[:, None, None] for values in (IMAGENET_MEAN, IMAGENET_STD))
    grid = kps_norm[:, :, None]
    sampled = F.grid_sample(images * std + mean, grid, padding_mode="border", align_corners=False)
    return sampled[..., 0].transpose(1, 2).numpy()  # (b, n, 3)


def assert_equal(ours: PairBatch, theirs: PairBatch) -> None:
    for name, value in vars(ours).items():
        assert torch.equal(value, getattr(theirs, name)), name


def assert_on_the_same_pixels(batches: Batches, epoch: int = 0) -> int:
    """Every visible keypoint shows the colour of its place in the file; returns how many samples were mirrored."""
    pairs, flipped = batches.draws.pairs, 0
    order = pairs.order(epoch)
    for number, batch in enumerate(batches.stream(epoch, 0, epoch + 1)):
        places = order[number * batches.draws.batch :]
        for side in ("src", "trg"):
            images, kps = getattr(batch, side), getattr(batch, f"{side}_kps_norm")
            sizes, seen = getattr(batch, f"{side}_sizes"), colours(images, kps)
            flipped += int((images[:, 0, :, 0] > images[:, 0, :, -1]).all(dim=1).sum())
            for row, where in zip(range(len(images)), places, strict=False):
                pair = pairs[where]
                shown = pair.visible
                assert batch.visible[row].tolist() == shown.tolist()
                h, w = sizes[row].tolist()
                expected = getattr(pair, f"{side}_kps_px")[shown] / [w, h]
                np.testing.assert_allclose(seen[row][shown][:, :2], expected, atol=0.012)
                assert kps[row][torch.from_numpy(shown)].abs().max() <= 1
    return flipped


class TestOrder:
    def test_an_epoch_of_a_list_has_every_pair_once(self):
        order = TrainingPairs([Source(ramp_pairs(7))], seed=1)
        assert len(order) == 7
        first, second = order.order(0), order.order(1)
        assert sorted(first) == sorted(second) == [(0, i) for i in range(7)]
        assert first != second
        assert order[first[0]].name == str(first[0][1])

    def test_short_epochs_use_a_list_up_before_it_begins_anew(self):
        order = TrainingPairs([Source(ramp_pairs(6))], seed=1, pairs_per_epoch=4)
        drawn = Counter(index for epoch in range(3) for _, index in order.order(epoch))
        assert drawn == dict.fromkeys(range(6), 2)

    @pytest.mark.parametrize(("shares", "n", "counts"), [((3.0, 1.0), 12, [9, 3]), ((1.0, 1.0, 1.0), 8, [3, 2, 3])])
    def test_shares(self, shares, n, counts):
        pairs = ramp_pairs(2)
        order = TrainingPairs([Source(pairs, share) for share in shares], 0, n)
        drawn = Counter(source for source, _ in order.order(3))
        assert [drawn[i] for i in range(len(shares))] == counts
        assert len(order) == n

    def test_depends_on_seed_and_epoch_alone(self):
        sources = [Source(ramp_pairs(5)), Source(ramp_pairs(9))]
        one, other = TrainingPairs(sources, 3), TrainingPairs(sources, 3)
        forwards = [one.order(epoch) for epoch in range(4)]
        assert [other.order(epoch) for epoch in reversed(range(4))] == forwards[::-1]
        assert TrainingPairs(sources, 4).order(0) != forwards[0]

    def test_an_endless_source_goes_on(self, coco: CocoPairs):
        order = TrainingPairs([Source(coco)], 0, pairs_per_epoch=5)
        assert sorted(order.order(2)) == [(0, i) for i in range(10, 15)]


class TestPixels:
    def test_nothing_happens_to_them(self):
        batches = make_batches([Source(ramp_pairs(3))])
        assert assert_on_the_same_pixels(batches) == 0
        (batch,) = batches.stream(0, 0, 1)
        assert batch.src.shape == (3, 3, *SIZE)
        assert batch.src_sizes.tolist() == [[60, 80]] * 3
        blue = [2 * int(batches.draws.pairs[where].name) for where in batches.draws.pairs.order(0)]
        np.testing.assert_allclose(colours(batch.src, batch.src_kps_norm)[:, 0, 2] * 255, blue, atol=0.6)
        np.testing.assert_allclose(colours(batch.trg, batch.trg_kps_norm)[:, 0, 2] * 255 - 1, blue, atol=0.6)

    @pytest.mark.parametrize("key", ["crop", "focus", "flip"])
    def test_each_change_alone(self, key):
        batches = make_batches([Source(ramp_pairs(6))], replace(STILL, **{key: 1.0}))
        assert assert_on_the_same_pixels(batches) == (12 if key == "flip" else 0)
        changed = next(batches.stream(0, 0, 1))
        still = next(make_batches([Source(ramp_pairs(6))]).stream(0, 0, 1))
        assert (changed.src - still.src).abs().amax(dim=(1, 2, 3)).min() > 0.1  # every one of them did change

    def test_all_changes_together(self):
        batches = make_batches([Source(ramp_pairs(12))], EVERYTHING, batch=4)
        assert 0 < assert_on_the_same_pixels(batches, epoch=1) < 24

    def test_a_pair_that_is_mirrored_already(self):
        sources = [Source(ramp_pairs(6, trg_flip=True))]
        assert assert_on_the_same_pixels(make_batches(sources)) == 6
        assert assert_on_the_same_pixels(make_batches(sources, replace(STILL, flip=1.0))) == 6  # now the sources
        assert_on_the_same_pixels(make_batches(sources, EVERYTHING))

    def test_exif_counts_where_the_annotation_says_so(self, tmp_path: Path):
        exif = Image.Exif()
        exif[0x0112] = 6  # a quarter turn clockwise
        path = tmp_path / "x.png"
        Image.fromarray(np.rot90(ramp(80, 60))).save(path, exif=exif)  # turned back, as it lies on disk
        straight = ramp(90, 50)
        pair = make_pair(0, path, straight, ((80, 60), (90, 50)), orient=True)
        assert_on_the_same_pixels(make_batches([Source([pair])], EVERYTHING, batch=1))

    def test_one_file_in_two_orientations(self, tmp_path: Path):
        """Two benchmarks on the same photos may disagree on whether the EXIF tag counts."""
        exif = Image.Exif()
        exif[0x0112] = 6
        path = tmp_path / "x.png"
        Image.fromarray(ramp(60, 80)).save(path, exif=exif)
        other = ramp(90, 50)
        stored = make_pair(0, path, other, ((60, 80), (90, 50)))
        turned = make_pair(1, path, other, ((80, 60), (90, 50)), orient=True)
        batches = make_batches([Source([stored]), Source([turned])], batch=2)
        (batch,) = batches.stream(0, 0, 1)
        sizes = {batches.draws.pairs[where].name: size.tolist() for where, size in
                 zip(batches.draws.pairs.order(0), batch.src_sizes, strict=True)}  # fmt: skip
        assert sizes == {"0": [60, 80], "1": [80, 60]}

    def test_mirrored_targets_change_names_and_places(self, coco: CocoPairs):
        coco.mirror = 1.0
        batches = make_batches([Source(coco)], replace(EVERYTHING, flip=0.0), n=6)
        assert assert_on_the_same_pixels(batches) == 6  # every target
        objects = {item.id: item for item in coco.objects}
        for index in range(6):
            pair = coco[index]
            _, trg, *_ = pair.name.split("-")
            assert pair.trg_flip
            # what the pair calls left_eye is what the file calls right_eye
            np.testing.assert_array_equal(pair.trg_kps_px, objects[trg].kps_px[[1, 0, 2, 4, 3]])
        coco.mirror = 0.0
        assert assert_on_the_same_pixels(make_batches([Source(coco)], n=6)) == 0


class TestBatches:
    @pytest.fixture
    def noisy(self) -> Augmentation:
        return Augmentation(colour=0.3, crop=0.5, focus=0.3, flip=0.5)

    def test_two_ranks_together_are_one_process(self, noisy):
        sources = [Source(ramp_pairs(9))]
        whole = list(make_batches(sources, noisy, batch=4).stream(0, 0, 2))
        parts = [list(make_batches(sources, noisy, batch=4, rank=r, world=2).stream(0, 0, 2)) for r in (0, 1)]
        assert len(whole) == len(parts[0]) == len(parts[1]) == 4  # of each epoch's nine pairs, one is left out
        for number, batch in enumerate(whole):
            for rank in (0, 1):
                for name, value in vars(parts[rank][number]).items():
                    torch.testing.assert_close(value, getattr(batch, name)[rank::2], rtol=0, atol=1e-6)

    def test_the_place_of_images_and_workers_change_nothing(self, noisy, tmp_path: Path):
        pairs = []
        for pair in ramp_pairs(4):
            paths = [tmp_path / f"{pair.name}{side}.png" for side in "ab"]
            for path, pixels in zip(paths, (pair.src_image, pair.trg_image), strict=True):
                Image.fromarray(pixels).save(path)
            pairs.append(replace(pair, src_image=paths[0], trg_image=paths[1]))
        host = list(make_batches([Source(pairs)], noisy, batch=2).stream(0, 0, 2))
        disk = make_batches([Source(pairs)], noisy, batch=2, keep="disk", workers=2).stream(0, 0, 2)
        for ours, theirs in zip(host, disk, strict=True):
            assert_equal(ours, theirs)

    def test_a_run_goes_on_in_the_middle(self, noisy):
        sources = [Source(ramp_pairs(6))]
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
        (batch,) = make_batches([Source([long, replace(short, **cut)])], EVERYTHING, batch=2).stream(0, 0, 1)
        assert sorted(batch.visible.sum(dim=1).tolist()) == [2, 4]
        assert batch.src_kps_norm.isfinite().all()

    def test_all_batches_have_one_shape(self):
        long, short = ramp_pairs(2)
        cut = {key: getattr(short, key)[:2] for key in ("src_kps_px", "trg_kps_px", "visible")}
        batches = make_batches([Source([long]), Source([replace(short, **cut)])], batch=1)
        assert [batch.src_kps_norm.shape for batch in batches.stream(0, 0, 1)] == [(1, 5, 2)] * 2

    def test_every_image_is_opened_once(self):
        first, second = ramp_pairs(2)
        seen: list[object] = []
        shared = replace(second, src_image=first.src_image)
        open_store([Source([first, shared])], lambda images: seen.extend(images) or ImageStore(images, (8, 8), CPU))
        assert len(seen) == 3


class TestFocus:
    def test_keeps_the_object_its_keypoints_and_the_least_width(self):
        rng = np.random.default_rng(0)
        for _ in range(300):
            low = rng.uniform(-1, 0.9, 2)
            high = np.minimum(low + rng.uniform(0.01, 1.5, 2), 1)
            kps = rng.uniform(-1, 1, (rng.integers(0, 4), 2))
            x0, y0, x1, y1 = draw_focus(rng, np.concatenate([low, high]), kps)
            assert abs(np.array([x0, y0, x1, y1])).max() < 1 + 1e-9
            inside = np.vstack([low, high, kps])
            assert (inside >= [x0 - 1e-9, y0 - 1e-9]).all()
            assert (inside <= [x1 + 1e-9, y1 + 1e-9]).all()
            assert min(x1 - x0, y1 - y0) > 0.6 - 1e-9

    def test_margins_are_parts_of_the_object(self):
        rng = np.random.default_rng(0)
        windows = np.stack([draw_focus(rng, np.array([-0.4, -0.4, 0.4, 0.4]), np.empty((0, 2))) for _ in range(300)])
        distances = abs(windows) - 0.4
        assert distances.min() >= 0.05 * 0.8
        assert distances.max() <= 0.6 * 0.8
        assert np.ptp(distances) > 0.4
        assert not np.allclose(windows[:, 0], -windows[:, 2])  # each edge for itself

    def test_a_box_outside_the_image_still_has_a_window(self):
        x0, y0, x1, y1 = draw_focus(np.random.default_rng(0), np.array([-3.0, 1.5, -2.0, 2.0]), np.empty((0, 2)))
        assert x1 - x0 == pytest.approx(0.6)
        assert y1 - y0 == pytest.approx(0.6)

    def test_each_image_has_its_own_box(self):
        (pair,), sizes = ramp_pairs(1), ((60, 80), (90, 50))
        for seed in range(20):
            rng = np.random.default_rng(seed)
            windows = draw_sample(pair, (0, 1), sizes, SIZE, replace(STILL, focus=1.0), rng).windows
            # both boxes span [-0.6, 0.6]; the margin is at least 0.05 of 1.2
            assert (windows * [-1, -1, 1, 1] >= 0.66 - 1e-9).all()

    def test_without_a_box_there_is_none(self):
        pair = replace(ramp_pairs(1)[0], src_bbox_px=None)
        sizes = (60, 80), (90, 50)
        sample = draw_sample(pair, (0, 1), sizes, SIZE, replace(STILL, focus=1.0), np.random.default_rng(0))
        assert sample.windows[0].tolist() == [-1, -1, 1, 1]
        assert abs(sample.windows[1]).min() < 1


class TestAhead:
    def test_the_same_items_and_so_many_ahead(self):
        made: list[int] = []
        enough = threading.Event()

        def items():
            for i in range(6):
                made.append(i)
                if len(made) == 3:
                    enough.set()
                yield i

        stream = ahead(items(), most=2)
        assert next(stream) == 0
        assert enough.wait(5)  # two more are made while the first is in use
        assert [0, *stream] == made == list(range(6))
        assert list(ahead([])) == []

    def test_errors_arrive_at_their_place(self):
        def items():
            yield 1
            raise ValueError("broken")

        stream = ahead(items())
        assert next(stream) == 1
        with pytest.raises(ValueError, match="broken"):
            next(stream)

    def test_leaving_early_ends_the_thread(self):
        before = threading.active_count()
        stream = ahead(range(1, 100))
        next(stream)
        stream.close()
        assert threading.active_count() == before


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


class TestExchanged:
    def test_all_that_belongs_to_a_side_goes_with_it(self):
        pair = replace(synthetic_pair(3)[0], src_flip=True, src_bbox_px=np.array([1.0, 2, 3, 4]), trg_bbox_px=None)
        pair = replace(pair, absent_px=np.ones((2, 2)))
        once = exchanged(pair)
        for name in ("image", "kps_px", "bbox_px", "flip"):
            assert getattr(once, f"src_{name}") is getattr(pair, f"trg_{name}")
            assert getattr(once, f"trg_{name}") is getattr(pair, f"src_{name}")
        assert once.absent_px.shape == (0, 2)  # what only the new target shows

    def test_half_of_the_samples(self):
        pairs = [synthetic_pair(seed, size=(48, 64))[0] for seed in range(40)]
        trainable = TrainingPairs([Source(pairs)], seed=0)
        store = open_store(trainable.sources, lambda images: ImageStore(images, (48, 48), CPU, "host", 1))
        draws = Draws(trainable, store, (48, 48), replace(STILL, swap=0.5), batch=40)
        samples, order = draws[0, 0], trainable.order(0)
        turned = [sample.images[0] != draws.index_of[f"array-{id(pairs[index].src_image)}", False]
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
    objects = objects_of(pairs)
    assert [item.image.stem for item in objects] == ["a", "b", "c"]
    assert objects[0].bbox_px is box
    assert objects_of([first]) == []  # pixels in memory have no file


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_workers_end_with_who_trains():
    """However that ends: a worker may be waiting to hand over a batch that nobody will take."""
    code = (
        "import os, sys, time; from transformatcher.data.loader import _let_main_decide\n"
        "if os.fork() == 0:\n    _let_main_decide(0); print(os.getpid(), flush=True); time.sleep(60)\n"
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
