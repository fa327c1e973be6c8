"""Any COCO-keypoint file → objects, and on the fly → pairs of one category that share keypoints."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from transformatcher.data.pairs import OnProblem, box_array, masked_points, need_folder, raise_problem
from transformatcher.errors import InputError
from transformatcher.files import read_json
from transformatcher.schema import ImagePair, Size


@dataclass(frozen=True)
class AnnotatedObject:
    """One object of one image, with its keypoints in the order of its category's names."""

    id: str
    image: Path
    image_size: Size | None  # (h, w) as the file claims
    category: str
    kps_px: Float[np.ndarray, "n 2"]
    visible: Bool[np.ndarray, " n"]
    bbox_px: Float[np.ndarray, "4"] | None
    kp_names: tuple[str, ...]


def load_coco_objects(
    annotations: Path,
    images: Path,
    *,
    occluded: bool = False,
    min_keypoints: int = 1,
    inside_only: bool = True,
    on_problem: OnProblem = raise_problem,
) -> list[AnnotatedObject]:
    """A COCO-keypoint JSON file and the folder of its images → its objects.

    Args:
        annotations: the JSON file.
        images: the folder its ``file_name`` entries are relative to.
        occluded: count keypoints that are labelled but hidden (v = 1) as visible.
        min_keypoints: leave out objects with fewer visible keypoints (and crowds, always).
        inside_only: count keypoints outside their image as not visible (annotators of cut-off objects guess them).
        on_problem: called with each malformed annotation.
    """
    data = _read_coco(annotations)
    image_of, category_of = (_by_id(data, key, annotations, on_problem) for key in ("images", "categories"))
    objects = []
    ids: set[str] = set()
    for index, note in enumerate(data["annotations"]):
        where = f"{annotations}, annotation {note.get('id', f'number {index}') if isinstance(note, dict) else index}"
        try:
            if note.get("iscrowd"):
                continue
            item = _read_object(note, image_of, category_of, images, occluded, where)
        except InputError as error:
            on_problem(str(error))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            on_problem(f"{where}: malformed ({type(error).__name__}: {error})")
        else:
            if item.id in ids:
                on_problem(f"{where}: its id stands twice in the file")
                continue
            ids.add(item.id)
            if inside_only:
                item = replace(item, visible=item.visible & _inside(item))
            if item.visible.sum() >= min_keypoints:
                objects.append(item)
    return objects


def find_coco(root: Path, split: str) -> tuple[Path, Path]:
    """A folder, or the JSON file itself → (annotation file, image folder).

    Understood: ``annotations.json`` + ``images/``; ``annotations/*keypoints*<split>*.json`` + ``<split>2017/``; a JSON
    file with ``images/`` or the images themselves beside it.
    """
    if root.is_file():
        beside = root.parent / "images"
        return root, beside if beside.is_dir() else root.parent
    need_folder(root, "a folder with annotations.json and images/, or the COCO-keypoint file itself")
    if (root / "annotations.json").is_file():
        images = root / "images"
        return root / "annotations.json", images if images.is_dir() else root
    word = {"trn": "train"}.get(split, split)
    for path in sorted((root / "annotations").glob(f"*keypoints*{word}*.json")):
        for images in (root / path.stem.rsplit("_", 1)[-1], root / "images" / path.stem.rsplit("_", 1)[-1]):
            if images.is_dir():
                return path, images
    raise InputError(f"{root}: neither annotations.json nor annotations/*keypoints*{word}*.json with its image folder")


class CocoPairs:
    """Pairs drawn on the fly: the i-th is always the same for the same seed, in any order and any process.

    Both objects have one category, lie in different images and share at least ``min_shared`` visible keypoints.

    Args:
        objects: from :func:`load_coco_objects`.
        seed: of the whole sequence.
        min_shared: keypoints that must be visible in both.
        balanced: draw the category first, so that rare ones come as often as common ones.
    """

    def __init__(
        self, objects: list[AnnotatedObject], *, seed: int = 0, min_shared: int = 3, balanced: bool = True
    ) -> None:
        self.seed = seed
        self.balanced = balanced
        self.partners = shared_keypoint_partners(objects, min_shared)
        self.objects = objects
        if not self.partners:
            raise InputError(
                f"no two of the {len(objects)} annotated objects have one category, different images and at least "
                f"{min_shared} keypoints in common"
            )
        self._by_category: dict[str, list[int]] = {}
        for index in self.partners:
            self._by_category.setdefault(objects[index].category, []).append(index)

    def __getitem__(self, index: int) -> ImagePair:
        """The ``index``-th pair of the endless sequence."""
        rng = np.random.default_rng((self.seed, index))
        if self.balanced:
            sources = self._by_category[sorted(self._by_category)[rng.integers(len(self._by_category))]]
        else:
            sources = list(self.partners)
        src = int(sources[rng.integers(len(sources))])
        trg = int(rng.choice(self.partners[src]))
        return pair_of(self.objects[src], self.objects[trg])


def shared_keypoint_partners(objects: list[AnnotatedObject], min_shared: int) -> dict[int, np.ndarray]:
    """For each object that has any, the indices of those it can be paired with."""
    by_kind: dict[tuple[str, int], list[int]] = {}
    for index, item in enumerate(objects):
        by_kind.setdefault((item.category, len(item.visible)), []).append(index)
    partners = {}
    for indices in by_kind.values():
        visible = np.stack([objects[i].visible for i in indices]).astype(np.float32)
        images = np.array([str(objects[i].image) for i in indices])
        for row, index in enumerate(indices):
            allowed = (visible @ visible[row] >= min_shared) & (images != images[row])
            if allowed.any():
                partners[index] = np.array(indices)[allowed]
    return partners


def pair_of(src: AnnotatedObject, trg: AnnotatedObject) -> ImagePair:
    """Two objects of one category → a pair, visible where both are."""
    visible = src.visible & trg.visible
    return ImagePair(
        name=f"{src.id}-{trg.id}-{src.category}",
        category=src.category,
        src_image=src.image,
        trg_image=trg.image,
        src_kps_px=masked_points(src.kps_px, visible),
        trg_kps_px=masked_points(trg.kps_px, visible),
        visible=visible,
        src_bbox_px=src.bbox_px,
        trg_bbox_px=trg.bbox_px,
        kp_names=src.kp_names,
        orient=True,
    )


def _inside(item: AnnotatedObject) -> Bool[np.ndarray, " n"]:
    if item.image_size is None:
        return np.ones_like(item.visible)
    h, w = item.image_size
    x, y = item.kps_px.T
    return (x >= 0) & (x <= w) & (y >= 0) & (y <= h)


def _by_id(data: dict[str, Any], key: str, path: Path, on_problem: OnProblem) -> dict[Any, dict[str, Any]]:
    """The entries of a list by their ids, which must be there and differ."""
    entries: dict[Any, dict[str, Any]] = {}
    for entry in data[key]:
        name = entry.get("id") if isinstance(entry, dict) else None
        if not isinstance(name, int | str):
            on_problem(f"{path}: an entry of {key!r} has no usable id: {str(entry)[:60]}")
        elif name in entries:
            on_problem(f"{path}: id {name!r} stands twice in {key!r}")
        else:
            entries[name] = entry
    return entries


def _read_coco(path: Path) -> dict[str, Any]:
    data = read_json(path)
    for key in ("images", "annotations", "categories"):
        if not isinstance(data, dict) or not isinstance(data.get(key), list):
            raise InputError(f"{path}: not a COCO-keypoint file, it has no list {key!r}")
    return data


def _read_object(
    note: dict[str, Any],
    image_of: dict[int, dict[str, Any]],
    category_of: dict[int, dict[str, Any]],
    images: Path,
    occluded: bool,
    where: str,
) -> AnnotatedObject:
    image, category = image_of.get(note["image_id"]), category_of.get(note["category_id"])
    if image is None:
        raise InputError(f"{where}: no image has the id {note['image_id']!r}")
    if category is None:
        raise InputError(f"{where}: no category has the id {note['category_id']!r}")
    names = tuple(category.get("keypoints", ()))
    if not isinstance(note["keypoints"], list) or len(note["keypoints"]) % 3:
        raise InputError(f"{where}: 'keypoints' is not a list of x, y, v, x, y, v, …")
    triples = np.array(note["keypoints"], dtype=np.float64).reshape(-1, 3)
    if len(triples) != len(names):
        raise InputError(f"{where}: {len(triples)} keypoints, its category {category['name']!r} names {len(names)}")
    if not np.isfinite(triples).all():
        raise InputError(f"{where}: a keypoint is NaN or infinite")
    bbox = None
    if note.get("bbox") is not None:
        x, y, w, h = (float(value) for value in note["bbox"])
        bbox = box_array([x, y, x + w, y + h], where)
    size = (int(image["height"]), int(image["width"])) if "height" in image and "width" in image else None
    visible = triples[:, 2] >= (1 if occluded else 2)
    return AnnotatedObject(
        id=str(note["id"]),
        image=images / image["file_name"],
        image_size=size,
        category=str(category["name"]),
        kps_px=masked_points(triples[:, :2], visible),
        visible=visible,
        bbox_px=bbox,
        kp_names=names,
    )
