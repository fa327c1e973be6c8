"""Decoded once or when asked for: the same pixels, and the sizes that annotations count in."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import write_image
from PIL import Image

from transformatcher.data.image_cache import ImageCache, choose_cache_device
from transformatcher.errors import InputError

CPU = torch.device("cpu")


@pytest.fixture
def images(tmp_path: Path) -> list[tuple[Path | np.ndarray, bool]]:
    """A file, pixels in memory, and a file that its EXIF tag turns: once turned, once as it lies on disk."""
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = write_image(tmp_path / "turned.jpg", (40, 70), seed=1)
    with Image.open(turned) as picture:
        picture.save(turned, exif=exif)
    array = np.random.default_rng(2).integers(0, 255, (33, 21, 3), dtype=np.uint8)
    return [(write_image(tmp_path / "a.png"), False), (array, False), (turned, True), (turned, False)]


def test_all_places_give_the_same(images):
    host, disk, device = (ImageCache(images, (24, 32), CPU, keep, threads=2) for keep in ("host", "disk", "device"))
    assert (
        host.original_sizes == disk.original_sizes == device.original_sizes == [(60, 80), (33, 21), (70, 40), (40, 70)]
    )
    wanted = [2, 0, 0, 3, 1]  # any order, some twice
    assert host(wanted).shape == (5, 3, 24, 32)
    assert torch.equal(host(wanted), disk(wanted))
    assert torch.equal(host(wanted), device(wanted))
    assert torch.equal(host(wanted)[1], host([0])[0])
    assert not torch.equal(host([2]), host([3]))


def test_a_canvas_is_the_picture(images):
    pixels = ImageCache(images, (33, 21), CPU)([1])[0]
    np.testing.assert_array_equal(pixels.permute(1, 2, 0), images[1][0])  # its own size: nothing is resized


def test_decoding_is_tracked_and_only_where_it_happens(images):
    seen: list[tuple[int, int]] = []
    ImageCache(images, (8, 8), CPU, "host", track=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]


@pytest.mark.parametrize("keep", ["host", "disk"])
def test_a_missing_image_is_named_at_once(images, tmp_path: Path, keep):
    with pytest.raises(InputError, match=r"gone\.jpg: no such image file"):
        ImageCache([*images, (tmp_path / "gone.jpg", True)], (8, 8), CPU, keep)


def test_room_on_the_host_is_half_of_what_is_free(monkeypatch: pytest.MonkeyPatch):
    free = {"SC_AVPHYS_PAGES": 10, "SC_PAGE_SIZE": 600}
    monkeypatch.setattr(os, "sysconf", free.__getitem__)
    assert choose_cache_device(10, (10, 10), CPU) == "host"  # 10 · 3 · 10 · 10 = 3000 bytes
    assert choose_cache_device(11, (10, 10), CPU) == "disk"


def test_a_system_that_does_not_tell(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(os, "sysconf")
    assert choose_cache_device(10**6, (1000, 1000), CPU) == "host"


def test_the_device_comes_first(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (6000, 9999))
    assert choose_cache_device(10, (10, 10), torch.device("cuda")) == "device"
    assert choose_cache_device(11, (10, 10), torch.device("cuda")) == "host"
