"""Views of photos: cropped, mirrored, each encoded once."""

import numpy as np
import pytest
import torch
from helpers.passes import matcher_in_passes, texture

from transformatcher.images import to_tensor
from transformatcher.inference.encoded_photo import (
    MAX_SOURCES,
    EncodedPhoto,
    RecentSources,
    View,
    ViewKey,
    drop_views,
    encode_views,
    stack_features,
)
from transformatcher.inference.matcher import Matcher

BOX = (40, 20, 200, 180)
SIZE = (96, 96)


@pytest.fixture(scope="module")
def matcher() -> Matcher:
    return matcher_in_passes()


@pytest.fixture
def photos(matcher: Matcher) -> list[EncodedPhoto]:
    return matcher.encode([texture(0), texture(1)])


@pytest.fixture
def batches(matcher: Matcher, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the batches that the model encodes."""
    encode, sizes = matcher.network.encode, []
    monkeypatch.setattr(matcher.network, "encode", lambda images: sizes.append(len(images)) or encode(images))
    return sizes


def test_pixels_of_a_view():
    picture = texture(0)
    photo = EncodedPhoto(picture, [])
    np.testing.assert_array_equal(View(photo).pixels(), picture)
    np.testing.assert_array_equal(View(photo, BOX).pixels(), picture[20:180, 40:200])
    np.testing.assert_array_equal(View(photo, BOX, mirrored=True).pixels(), picture[20:180, 40:200][:, ::-1])
    np.testing.assert_array_equal(View(photo, mirrored=True).flipped().pixels(), picture)


def test_each_view_is_computed_once(matcher: Matcher, photos: list[EncodedPhoto], batches: list[int]):
    a, b = photos
    views = [View(a), View(a, BOX), View(a, BOX), View(b, BOX), View(a, BOX).flipped(), View(b)]
    encode_views(matcher.network, SIZE, views)
    assert batches == [3]  # whole photos were encoded before, and one crop is asked for twice
    encode_views(matcher.network, SIZE, views)
    assert batches == [3]
    for view in views:
        alone = matcher.model.encode(to_tensor(view.pixels(), SIZE)[None])
        for ours, theirs in zip(view.features, alone, strict=True):
            torch.testing.assert_close(ours, theirs)


def test_features_of_views_keep_no_batch_in_memory(matcher: Matcher, photos: list[EncodedPhoto]):
    views = [View(photo, BOX) for photo in photos]
    encode_views(matcher.network, SIZE, views)
    for view in views:
        assert all(f.untyped_storage().nbytes() == f.numel() * f.element_size() for f in view.features)


def test_stacked(photos: list[EncodedPhoto]):
    a, b = (View(photo) for photo in photos)
    both = stack_features([a, b, a])
    for layer, (one, other) in enumerate(zip(a.features, b.features, strict=True)):
        assert torch.equal(both[layer], torch.cat([one, other, one]))
    again = stack_features([a, a])
    assert again[0].shape[0] == 2
    assert again[0].data_ptr() == a.features[0].data_ptr()  # one view repeated is not copied


KEYS: list[ViewKey] = [((0, 0, n, n), False) for n in range(1, 7)]


def test_the_newest_views_stay():
    a, b = (EncodedPhoto(texture(0), [], views={key: [] for key in KEYS[:n]}) for n in (6, 1))
    drop_views([a, b], keep=4)
    assert list(a.views) == KEYS[2:]
    assert list(b.views) == KEYS[:1]
    drop_views([a, b])
    assert not a.views
    assert not b.views


def test_views_that_were_used_again_stay(matcher: Matcher, photos: list[EncodedPhoto]):
    photo = photos[0]
    mirrored = View(photo, mirrored=True)
    encode_views(
        matcher.network, matcher.config.image_size, [mirrored, View(photo, (0, 0, 9, 9)), View(photo, (0, 0, 8, 8))]
    )
    encode_views(matcher.network, matcher.config.image_size, [mirrored])
    drop_views([photo], keep=1)
    assert list(photo.views) == [mirrored.key]


def test_only_recent_sources_keep_their_views():
    """Also where a photo is long gone, and where one is a source in several batches."""
    recent = RecentSources()
    photos = [EncodedPhoto(texture(0), [], views={KEYS[0]: []}) for _ in range(MAX_SOURCES + 2)]
    target = EncodedPhoto(texture(0), [], views={KEYS[0]: []})
    recent.keep([EncodedPhoto(texture(0), [])], [])
    for photo in photos:
        recent.keep([photos[0]], [])
        recent.keep([photo, photo], [target])
    assert not target.views
    assert [bool(photo.views) for photo in photos] == [True, *[False] * 2, *[True] * (MAX_SOURCES - 1)]


def test_a_mirrored_crop_of_one_pixel(matcher: Matcher):
    (photo,) = matcher.encode([texture(0, (4, 4))])
    views = [View(photo, (3, 3, 4, 4), mirrored) for mirrored in (False, True)]
    encode_views(matcher.network, matcher.config.image_size, views)
    for one, other in zip(*(view.features for view in views), strict=True):
        torch.testing.assert_close(one, other)
