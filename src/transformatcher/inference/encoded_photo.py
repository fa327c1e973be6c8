"""A photo and its features; views of it (cropped, mirrored) → their features, each computed once."""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from transformatcher.images import to_tensor
from transformatcher.inference.crops import Box
from transformatcher.models.transformatcher import Features, TransforMatcher
from transformatcher.schema import Size

ViewKey = tuple[Box | None, bool]
MAX_VIEWS = 4  # of one photo whose features are kept: its crop, its mirror image, the mirrored crop, and one more
MAX_SOURCES = 3  # photos whose views are kept; each view takes as much memory as the features of the photo


@dataclass(frozen=True, eq=False)
class EncodedPhoto:
    """A photo and its features, which can be kept and matched with many other photos."""

    pixels: UInt8[np.ndarray, "_ _ 3"]
    features: list[Tensor]  # (1, c, h, w) of each layer
    name: str = ""  # of the photo's file, if there is one
    views: dict[ViewKey, list[Tensor]] = field(default_factory=dict, repr=False)  # features of crops and mirror images
    keep_views: bool = False  # as long as the photo itself, because it will be matched again

    @property
    def size(self) -> Size:
        """(h, w) in pixels."""
        return self.pixels.shape[0], self.pixels.shape[1]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without views, and without the rest of the batch that the photo was encoded in."""
        features = [f.clone() for f in self.features]
        return EncodedPhoto, (self.pixels, features, self.name, {}, self.keep_views)


@dataclass(frozen=True)
class View:
    """A photo as the network is to see it: cropped to a box of pixels, mirrored left to right, or both."""

    photo: EncodedPhoto
    box: Box | None = None  # None: the whole photo
    mirrored: bool = False

    @property
    def key(self) -> ViewKey:
        """What distinguishes this view from others of the same photo."""
        return self.box, self.mirrored

    @property
    def features(self) -> list[Tensor] | None:
        """The view's features, (1, c, h, w) of each layer; None if they are still to be computed."""
        return self.photo.features if self.key == (None, False) else self.photo.views.get(self.key)

    def flipped(self) -> "View":
        """The same part of the photo, mirrored left to right."""
        return View(self.photo, self.box, not self.mirrored)

    def pixels(self) -> UInt8[np.ndarray, "h w 3"]:
        """The pixels of the view."""
        x0, y0, x1, y1 = self.box or (0, 0, self.photo.size[1], self.photo.size[0])
        cropped = self.photo.pixels[y0:y1, x0:x1]
        return cropped[:, ::-1].copy() if self.mirrored else cropped  # torch takes no negative strides


def encode_views(model: TransforMatcher, image_size: Size, views: Sequence[View]) -> None:
    """Compute the features of all views that have none yet, in one batch, and keep them with their photos."""
    missing: dict[tuple[int, ViewKey], View] = {}
    for view in views:
        if view.features is None:
            missing[id(view.photo), view.key] = view
        elif view.key in view.photo.views:  # to the end of the list, where the most recently used ones are
            view.photo.views[view.key] = view.photo.views.pop(view.key)
    if not missing:
        return
    device = next(model.parameters()).device
    tensors = torch.stack([to_tensor(view.pixels(), image_size) for view in missing.values()])
    features = model.encode(tensors.to(device))
    for row, view in enumerate(missing.values()):
        # A copy, because a view into the batch would keep the features of all its photos in memory.
        view.photo.views[view.key] = [f[row : row + 1].clone() for f in features]


def stack_features(views: Sequence[View]) -> Features:
    """The features of encoded views, as one batch; one view repeated is not copied."""
    features = []
    for view in views:
        assert view.features is not None
        features.append(view.features)
    if all(one is features[0] for one in features):
        return [f.expand(len(features), -1, -1, -1) for f in features[0]]
    return [torch.cat(layer) for layer in zip(*features, strict=True)]


def drop_views(photos: Sequence[EncodedPhoto], keep: int = 0) -> None:
    """Drop the features of all but the ``keep`` most recently used views of each photo."""
    for photo in photos:
        for key in list(photo.views)[: max(0, len(photo.views) - keep)]:
            del photo.views[key]


class RecentSources:
    """The sources that were matched last. They keep the features of their views, for their next targets."""

    def __init__(self) -> None:
        self._photos: list[weakref.ref[EncodedPhoto]] = []

    def keep(self, sources: Sequence[EncodedPhoto], targets: Sequence[EncodedPhoto]) -> None:
        """After a batch was matched: drop the views of its targets, and of sources that were not used lately.

        Photos whose views are to be kept keep ``MAX_VIEWS`` of them.
        """
        drop_views([photo for photo in targets if not photo.keep_views])
        drop_views([*sources, *targets], keep=MAX_VIEWS)
        sources = [photo for photo in sources if not photo.keep_views]
        new = {id(photo): photo for photo in sources}
        old = [photo for reference in self._photos if (photo := reference()) is not None and id(photo) not in new]
        recent = [*old, *new.values()]
        drop_views(recent[:-MAX_SOURCES])
        self._photos = [weakref.ref(photo) for photo in recent[-MAX_SOURCES:]]
