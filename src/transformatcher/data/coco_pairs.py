"""Annotated objects → pairs of one category that share keypoints, drawn on the fly."""

import re
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from transformatcher.data.coco_keypoints import AnnotatedObject
from transformatcher.data.pairs import masked_points
from transformatcher.errors import InputError
from transformatcher.schema import ImagePair


class CocoPairs:
    """Pairs drawn on the fly: the i-th is always the same for the same seed, in any order and any process.

    Both objects have one category, lie in different images and share at least ``min_shared`` visible keypoints.

    Args:
        objects: from :func:`load_coco_objects`.
        seed: of the whole sequence.
        min_shared: keypoints that must be visible in both.
        min_overlap: of the keypoints visible in either, the share that must be visible in both: a high one picks pairs
            seen from similar sides.
        balanced: draw the category first, so that rare ones come as often as common ones.
        mirror: probability that the target is mirrored, its left and right keypoints exchanged (where enough are then
            shared).
    """

    def __init__(
        self,
        objects: list[AnnotatedObject],
        *,
        seed: int = 0,
        min_shared: int = 3,
        min_overlap: float = 0.0,
        balanced: bool = True,
        mirror: float = 0.0,
    ) -> None:
        self.seed = seed
        self.balanced = balanced
        self.mirror = mirror
        self.objects = objects
        self._kinds = [kind for kind in _kinds(objects) if kind.keep_partnered(min_shared, min_overlap)]
        if not self._kinds:
            raise InputError(
                f"no two of the {len(objects)} annotated objects have one category, different images and at least "
                f"{min_shared} keypoints in common"
                + (f", {min_overlap:g} of those visible in either" if min_overlap else "")
            )
        self.images = sorted({objects[i].image for kind in self._kinds for i in kind.indices})

    def __getitem__(self, index: int) -> ImagePair:
        """The ``index``-th pair of the endless sequence."""
        rng = np.random.default_rng((self.seed, index))
        sizes = np.array([1 if self.balanced else len(kind.sources) for kind in self._kinds])
        kind = self._kinds[int(rng.choice(len(sizes), p=sizes / sizes.sum()))]
        row = int(rng.choice(kind.sources))
        mirrored = bool(rng.random() < self.mirror)
        allowed = kind.partners(row, mirrored=mirrored)
        if mirrored and not len(allowed):
            mirrored, allowed = False, kind.partners(row, mirrored=False)
        src, trg = self.objects[kind.indices[row]], self.objects[kind.indices[int(rng.choice(allowed))]]
        return pair_of(src, mirror_object(trg) if mirrored else trg, trg_flip=mirrored)


class SelfPairs:
    """Each object paired with itself, by points anywhere on it: what a matcher must know of places without a name.

    Random crops and colours make the two sides differ (see :mod:`transformatcher.data.loader`). The i-th pair is
    always the same for the same seed.

    Args:
        objects: from :func:`load_coco_objects` or :func:`objects_of`; those without a box on their image are left out.
        seed: of the sequence.
        n_points: drawn uniformly in the object's box.
    """

    def __init__(self, objects: list[AnnotatedObject], *, seed: int = 0, n_points: int = 16) -> None:
        self.objects = [item for item in objects if _box_inside(item) is not None]
        self.seed = seed
        self.n_points = n_points
        if not self.objects:
            raise InputError(f"none of the {len(objects)} annotated objects has a box to draw points in")
        self.images = sorted({item.image for item in self.objects})

    def __getitem__(self, index: int) -> ImagePair:
        """The ``index``-th pair of the endless sequence."""
        rng = np.random.default_rng((self.seed, index))
        item = self.objects[int(rng.integers(len(self.objects)))]
        box = _box_inside(item)
        assert box is not None
        points = rng.uniform(box[:2], box[2:], (self.n_points, 2))
        everywhere = np.ones(self.n_points, dtype=bool)
        anonymous = replace(item, kps_px=points, visible=everywhere, kp_names=())
        return pair_of(anonymous, anonymous)


class _Kind:
    """The objects of one category that count the same keypoints."""

    def __init__(self, indices: list[int], objects: list[AnnotatedObject]) -> None:
        self.indices = indices
        self.visible = np.stack([objects[i].visible for i in indices]).astype(np.float32)
        swap = mirrored_names(objects[indices[0]].kp_names)
        self.mirrored = np.where(swap >= 0, self.visible[:, swap], 0)
        if (swap == np.arange(len(swap))).all():  # names without sides do not say what a mirror does to them
            self.mirrored = np.zeros_like(self.visible)
        self.images = np.array([str(objects[i].image) for i in indices])
        self.sources = np.empty(0, dtype=int)
        self.min_shared, self.min_overlap = 1, 0.0

    def keep_partnered(self, min_shared: int, min_overlap: float) -> bool:
        """Set the rules; False where no two objects meet them."""
        self.min_shared, self.min_overlap = min_shared, min_overlap
        self.sources = np.array([row for row in range(len(self.indices)) if len(self.partners(row, mirrored=False))])
        return len(self.sources) > 0

    def partners(self, row: int, *, mirrored: bool) -> np.ndarray:
        """Rows of the objects that this one can be paired with."""
        candidates = self.mirrored if mirrored else self.visible
        shared = candidates @ self.visible[row]
        either = candidates.sum(axis=1) + self.visible[row].sum() - shared
        allowed = (shared >= self.min_shared) & (shared >= self.min_overlap * either)
        return np.flatnonzero(allowed & (self.images != self.images[row]))


def _kinds(objects: list[AnnotatedObject]) -> list[_Kind]:
    by_kind: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    for index, item in enumerate(objects):
        by_kind.setdefault((item.category, item.kp_names), []).append(index)
    return [_Kind(by_kind[key], objects) for key in sorted(by_kind)]


SIDES = {"l": "r", "r": "l", "left": "right", "right": "left"}


@cache
def mirrored_names(names: tuple[str, ...]) -> Int[np.ndarray, " n"]:
    """For each keypoint, the index of its mirror image: left ↔ right, the others themselves; -1 where it has none.

    Sides are words of a name (``L_Eye``, ``Top_Left_Back``, ``left ear``, ``eyeLeft``), whatever their case.
    """

    def words(name: str) -> list[str]:
        return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_]", name)]

    index = {tuple(words(name)): i for i, name in enumerate(names)}
    return np.array([index.get(tuple(SIDES.get(word, word) for word in words(name)), -1) for name in names], dtype=int)


def mirror_object(item: AnnotatedObject) -> AnnotatedObject:
    """The object as its mirrored image shows it: keypoints change names; coordinates stay those of the file."""
    swap = mirrored_names(item.kp_names)
    visible = item.visible[swap] & (swap >= 0)
    return replace(item, kps_px=masked_points(item.kps_px[swap], visible), visible=visible)


def pair_of(src: AnnotatedObject, trg: AnnotatedObject, *, trg_flip: bool = False) -> ImagePair:
    """Two objects of one category → a pair, visible where both are."""
    visible = src.visible & trg.visible
    return ImagePair(
        name=f"{src.id}-{trg.id}-{src.category}" + "-mirrored" * trg_flip,
        category=src.category,
        src_image=src.image,
        trg_image=trg.image,
        src_kps_px=masked_points(src.kps_px, visible),
        trg_kps_px=masked_points(trg.kps_px, visible),
        visible=visible,
        src_bbox_px=src.bbox_px,
        trg_bbox_px=trg.bbox_px,
        kp_names=src.kp_names,
        trg_flip=trg_flip,
        orient=src.orient,
        absent_px=src.kps_px[src.visible & ~trg.visible],
    )


def objects_of(pairs: Iterable[ImagePair]) -> list[AnnotatedObject]:
    """The objects of a list of pairs, each once: one to an image file, which must be all that a pair has."""
    found: dict[str, AnnotatedObject] = {}
    for pair in pairs:
        sides = (
            (pair.src_image, pair.src_kps_px, pair.src_bbox_px),
            (pair.trg_image, pair.trg_kps_px, pair.trg_bbox_px),
        )
        for image, kps_px, box in sides:
            if isinstance(image, Path) and str(image) not in found:
                found[str(image)] = AnnotatedObject(
                    id=image.name,
                    image=image,
                    image_size=None,
                    category=pair.category,
                    kps_px=kps_px,
                    visible=pair.visible,
                    bbox_px=box,
                    kp_names=pair.kp_names,
                    orient=pair.orient,
                )
    return list(found.values())


def _box_inside(item: AnnotatedObject) -> Float[np.ndarray, "4"] | None:
    """The part of an object's box that lies on its image; None where there is none."""
    if item.bbox_px is None:
        return None
    low, high = np.split(item.bbox_px, 2)  # boxes may reach beyond their image
    low, high = np.maximum(low, 0), high if item.image_size is None else np.minimum(high, item.image_size[::-1])
    return np.concatenate([low, high]) if (low < high).all() else None
