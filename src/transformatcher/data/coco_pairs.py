"""Annotated objects → pairs of two objects of one category, drawn at random."""

import re
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Float, Int

from transformatcher.data.coco_keypoints import AnnotatedObject
from transformatcher.data.pairs import masked_points
from transformatcher.errors import InputError
from transformatcher.schema import ImagePair

Facing = Literal["same", "opposite"]

# Two objects show the same sides if their visible keypoints overlap so much (intersection over union) and, with the
# names of left and right swapped in one of them, so little; and if they have about so many in common.
SAME_SIDES, OTHER_SIDES, MIN_FACING = 0.6, 0.3, 4
MIN_FACING_SIZE = 0.4  # of their boxes' longer side, as a part of the image's
MAX_REPEATED, MAX_REPEATED_OF_EACH = 1000, 20  # draws in a row that bring no new pair: in all, and for each one drawn


class CocoPairs:
    """An endless sequence of random pairs. Item i depends on the seed and i alone, in any order and any process.

    Both objects of a pair have one category, are in different images and share visible keypoints.

    Args:
        objects: from :func:`transformatcher.data.coco_keypoints.load_coco_objects`.
        seed: of the whole sequence.
        min_shared: how many keypoints must be visible in both objects.
        min_overlap: intersection over union of the two sets of visible keypoints, at least; a high value selects
            objects that are seen from similar viewpoints.
        balanced: draw the category first, so that rare categories are as frequent as common ones.
        mirror: probability that the target is mirrored, its left and right keypoints exchanged; only where enough
            keypoints are then shared.
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
        groups = group_by_category(objects)
        self._groups = [group for group in groups if group.keep_partnered(min_shared, min_overlap)]
        if not self._groups:
            raise InputError(
                f"no two of the {len(objects)} annotated objects have one category, different images and at least "
                f"{min_shared} keypoints in common"
                + (f", {min_overlap:g} of those visible in either" if min_overlap else "")
            )
        self.images = sorted({objects[i].image for group in self._groups for i in group.indices})

    def __getitem__(self, index: int) -> ImagePair:
        """Pair number ``index`` of the sequence."""
        rng = np.random.default_rng((self.seed, index))
        sizes = np.array([1 if self.balanced else len(group.sources) for group in self._groups])
        group = self._groups[int(rng.choice(len(sizes), p=sizes / sizes.sum()))]
        row = int(rng.choice(group.sources))
        mirrored = bool(rng.random() < self.mirror)
        allowed = group.partners(row, mirrored=mirrored)
        if mirrored and not len(allowed):
            mirrored, allowed = False, group.partners(row, mirrored=False)
        src, trg = self.objects[group.indices[row]], self.objects[group.indices[int(rng.choice(allowed))]]
        return make_pair(src, mirror_object(trg) if mirrored else trg, trg_flip=mirrored)


def draw_pairs(objects: list[AnnotatedObject], count: int, seed: int = 0) -> list[ImagePair]:
    """The first ``count`` different pairs of the sequence that ``seed`` draws; fewer where there are no more."""
    sequence = CocoPairs(objects, seed=seed)
    return _different((sequence[index] for index in range(10 * count)), count)


def _different(pairs: Iterable[ImagePair], count: int) -> list[ImagePair]:
    """The first ``count`` pairs of different names; fewer where long stretches bring no other name any more."""
    drawn: dict[str, ImagePair] = {}
    repeated = 0
    for pair in pairs:
        repeated = repeated + 1 if pair.name in drawn else 0
        drawn.setdefault(pair.name, pair)
        if len(drawn) == count or repeated > MAX_REPEATED + MAX_REPEATED_OF_EACH * len(drawn):
            break
    return list(drawn.values())


def draw_facing_pairs(objects: list[AnnotatedObject], count: int, facing: Facing, seed: int = 0) -> list[ImagePair]:
    """Random pairs that show the same sides of their objects, or opposite sides.

    Which sides an object shows is seen from its visible left and right keypoints, so only categories with such names
    have pairs. Of pairs that show opposite sides, the target's left and right keypoints swap names: the pair asks where
    the left front wheel would be if the target were the mirror image of what it is. Small objects are left out.
    """
    large = [item for item in objects if relative_size(item) >= MIN_FACING_SIZE]
    groups = [
        (group, rows)
        for group in group_by_category(large)
        if (rows := [row for row in range(len(group.indices)) if len(group.facing(row, facing))])
    ]
    if not groups:
        raise InputError(
            f"no two of the {len(objects)} annotated objects show {facing} sides of one kind of thing; the names of "
            "keypoints must tell left from right"
        )
    rng = np.random.default_rng(seed)

    def draw() -> ImagePair:
        group, rows = groups[int(rng.integers(len(groups)))]
        row = int(rng.choice(rows))
        src, trg = large[group.indices[row]], large[group.indices[int(rng.choice(group.facing(row, facing)))]]
        return make_pair(src, mirror_object(trg) if facing == "opposite" else trg)

    return _different((draw() for _ in range(10 * count)), count)


class SelfPairs:
    """An endless sequence of objects paired with themselves by random points, not only named keypoints.

    Random crops and colours make the two images differ (see :mod:`transformatcher.data.loader`). Item i depends on the
    seed and i alone.

    Args:
        objects: from :func:`transformatcher.data.coco_keypoints.load_coco_objects` or :func:`unique_objects`; those
            without a box on their image are left out.
        seed: of the sequence.
        n_points: how many points are drawn, uniformly in the object's box.
    """

    def __init__(self, objects: list[AnnotatedObject], *, seed: int = 0, n_points: int = 16) -> None:
        self.objects = [item for item in objects if _box_inside(item) is not None]
        self.seed = seed
        self.n_points = n_points
        if not self.objects:
            raise InputError(f"none of the {len(objects)} annotated objects has a box to draw points in")
        self.images = sorted({item.image for item in self.objects})

    def __getitem__(self, index: int) -> ImagePair:
        """Pair number ``index`` of the sequence."""
        rng = np.random.default_rng((self.seed, index))
        item = self.objects[int(rng.integers(len(self.objects)))]
        box = _box_inside(item)
        assert box is not None
        points = rng.uniform(box[:2], box[2:], (self.n_points, 2))
        everywhere = np.ones(self.n_points, dtype=bool)
        anonymous = replace(item, kps_px=points, visible=everywhere, kp_names=())
        return make_pair(anonymous, anonymous)


class CategoryGroup:
    """The objects of one category with the same names of keypoints, as arrays with a row for each object."""

    def __init__(self, indices: list[int], objects: list[AnnotatedObject]) -> None:
        self.indices = indices
        self.visible = np.stack([objects[i].visible for i in indices]).astype(np.float32)
        swap = mirrored_names(objects[indices[0]].kp_names)
        self.mirrored = np.where(swap >= 0, self.visible[:, swap], 0)
        if (swap == np.arange(len(swap))).all():  # names without left and right do not tell what mirroring changes
            self.mirrored = np.zeros_like(self.visible)
        self.images = np.array([str(objects[i].image) for i in indices])
        self.sources = np.empty(0, dtype=int)
        self.min_shared, self.min_overlap = 1, 0.0

    def keep_partnered(self, min_shared: int, min_overlap: float) -> bool:
        """Set the rules for pairs; False if no two objects meet them."""
        self.min_shared, self.min_overlap = min_shared, min_overlap
        self.sources = np.array([row for row in range(len(self.indices)) if len(self.partners(row, mirrored=False))])
        return len(self.sources) > 0

    def partners(self, row: int, *, mirrored: bool) -> np.ndarray:
        """Rows of the objects that the object of ``row`` can be paired with."""
        candidates = self.mirrored if mirrored else self.visible
        shared = candidates @ self.visible[row]
        either = candidates.sum(axis=1) + self.visible[row].sum() - shared
        allowed = (shared >= self.min_shared) & (shared >= self.min_overlap * either)
        return np.flatnonzero(allowed & (self.images != self.images[row]))

    def facing(self, row: int, facing: Facing) -> np.ndarray:
        """Rows of the objects that clearly show the same sides as the object of ``row``, or the opposite ones."""
        own = self.visible[row]
        overlaps = []
        for others in (self.visible, self.mirrored):
            shared = others @ own
            overlaps.append(shared / np.maximum(others.sum(axis=1) + own.sum() - shared, 1))
        wanted, other = overlaps if facing == "same" else reversed(overlaps)
        kept = (wanted >= SAME_SIDES) & (other <= OTHER_SIDES) & (self.images != self.images[row])
        return np.flatnonzero(kept & (wanted * own.sum() >= MIN_FACING))


def group_by_category(objects: list[AnnotatedObject]) -> list[CategoryGroup]:
    """The objects by category and names of keypoints, in alphabetical order."""
    groups: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    for index, item in enumerate(objects):
        groups.setdefault((item.category, item.kp_names), []).append(index)
    return [CategoryGroup(groups[key], objects) for key in sorted(groups)]


SIDES = {"l": "r", "r": "l", "left": "right", "right": "left"}


@lru_cache(maxsize=256)  # on the page, people choose the names
def mirrored_names(names: tuple[str, ...]) -> Int[np.ndarray, " n"]:
    """For each keypoint, the index of its mirror image: left ↔ right, the others themselves; -1 if it has none.

    Sides are words of a name (``L_Eye``, ``Top_Left_Back``, ``left ear``, ``eyeLeft``), whatever their case.
    """

    def words(name: str) -> list[str]:
        return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_]", name)]

    index = {tuple(words(name)): i for i, name in enumerate(names)}
    return np.array([index.get(tuple(SIDES.get(word, word) for word in words(name)), -1) for name in names], dtype=int)


def mirror_object(item: AnnotatedObject) -> AnnotatedObject:
    """The object as the mirrored image shows it: left and right keypoints swap names, coordinates stay."""
    swap = mirrored_names(item.kp_names)
    visible = item.visible[swap] & (swap >= 0)
    return replace(item, kps_px=masked_points(item.kps_px[swap], visible), visible=visible)


def twin_indices(names: tuple[str, ...]) -> tuple[int, ...]:
    """For each keypoint, the index of its twin on the other side of the object, by their names; -1 if it has none."""
    swap = mirrored_names(names).tolist()
    return tuple(-1 if twin == own else twin for own, twin in enumerate(swap))


def make_pair(src: AnnotatedObject, trg: AnnotatedObject, *, trg_flip: bool = False) -> ImagePair:
    """Two objects of one category → a pair; a keypoint is visible where both objects show it."""
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
        twins=twin_indices(src.kp_names),
    )


def unique_objects(pairs: Iterable[ImagePair]) -> list[AnnotatedObject]:
    """The objects of a list of pairs, one for each image file; images that are arrays are left out."""
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


def relative_size(annotated: AnnotatedObject) -> float:
    """The longer side of an object's box divided by that of its image; 1 where either is unknown."""
    if annotated.bbox_px is None or annotated.image_size is None:
        return 1.0
    x0, y0, x1, y1 = annotated.bbox_px
    return float(max(x1 - x0, y1 - y0) / max(annotated.image_size))


def _box_inside(item: AnnotatedObject) -> Float[np.ndarray, "4"] | None:
    """The part of an object's box inside its image, as x0, y0, x1, y1; None if there is none."""
    if item.bbox_px is None:
        return None
    low, high = np.split(item.bbox_px, 2)  # boxes may reach beyond their image
    low, high = np.maximum(low, 0), high if item.image_size is None else np.minimum(high, item.image_size[::-1])
    return np.concatenate([low, high]) if (low < high).all() else None
