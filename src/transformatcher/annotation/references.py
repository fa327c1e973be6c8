"""Project → references: the objects whose keypoints a person, or an imported file, has set. They vote on all others."""

import json
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from jaxtyping import Bool, Float

from transformatcher.annotation.project import Project
from transformatcher.annotation.records import VISIBLE, Category, PixelBox
from transformatcher.inference.crops import Box
from transformatcher.run_folder import hash_json
from transformatcher.schema import Size

MAX_REMEMBERED = 20_000  # references, about 1 kB each
BOX_MARGIN = 0.1  # around a drawn box, of its longer side: boxes are drawn tightly


@dataclass(frozen=True)
class Region:
    """The part of a photo that an object is looked for in."""

    photo_id: int
    path: str
    digest: str
    size: Size  # (h, w) of the photo
    box: PixelBox | None = None  # as it was drawn; None: the whole photo

    @cached_property
    def crop(self) -> Box:
        """x0, y0, x1, y1 in whole pixels: the box with a margin, inside the photo."""
        h, w = self.size
        if self.box is None:
            return 0, 0, w, h
        x0, y0, x1, y1 = self.box
        margin = BOX_MARGIN * max(x1 - x0, y1 - y0)
        return (
            max(0, int(np.floor(x0 - margin))), max(0, int(np.floor(y0 - margin))),
            min(w, int(np.ceil(x1 + margin))), min(h, int(np.ceil(y1 + margin))),
        )  # fmt: skip

    @property
    def key(self) -> str:
        """Names the pixels of the region, whatever the photo's path."""
        return self.digest[:32] if self.box is None else f"{self.digest[:32]}-{'-'.join(map(str, self.crop))}"

    @property
    def offset(self) -> Float[np.ndarray, "2"]:
        """The upper left corner, in pixels of the photo."""
        return np.array(self.crop[:2], dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Reference:
    """An object with keypoints, in the order of its category, in pixels of its region."""

    id: int  # of the instance
    category_id: int
    region: Region
    kps_px: Float[np.ndarray, "n 2"]
    visible: Bool[np.ndarray, " n"]
    state: str  # changes with all that its votes depend on


def find_references(
    project: Project, categories: Collection[Category], instance_ids: Collection[int] | None = None
) -> list[Reference]:
    """All objects with at least one visible keypoint, of photos that can be read; or those of them with some ids."""
    by_id = {category.id: category for category in categories}
    chosen = "" if instance_ids is None else "AND instance_id IN (SELECT value FROM json_each(?))"
    ids = () if instance_ids is None else (json.dumps(sorted(instance_ids)),)
    marks: dict[int, list[tuple[int, tuple[float, float]]]] = {}
    query = f"""SELECT instance_id, keypoint_id, x, y FROM mark WHERE visibility = ? {chosen}
                ORDER BY instance_id, keypoint_id"""
    for row in project.database.rows(query, VISIBLE, *ids):
        marks.setdefault(row["instance_id"], []).append((row["keypoint_id"], (row["x"], row["y"])))
    rows = project.database.rows(
        f"""SELECT i.id AS instance_id, i.category_id, i.x0, i.y0, i.x1, i.y1, p.id, p.path, p.digest, p.width, p.height
            FROM instance i JOIN photo p ON p.id = i.photo_id
            WHERE p.problem IS NULL AND p.digest IS NOT NULL AND p.width IS NOT NULL
              AND i.id IN (SELECT instance_id FROM mark WHERE visibility = ? {chosen}) ORDER BY i.id""",
        VISIBLE,
        *ids,
    )
    references = []
    for row in rows:
        box = None if row["x0"] is None else (row["x0"], row["y0"], row["x1"], row["y1"])
        region = Region(row["id"], row["path"], row["digest"], (row["height"], row["width"]), box)
        found = tuple(marks.get(row["instance_id"], ()))
        references.append(_reference(row["instance_id"], by_id[row["category_id"]], region, found))
    return [reference for reference in references if reference.visible.any()]


@lru_cache(MAX_REMEMBERED)  # after an edit, all others are as they were
def _reference(
    instance_id: int, category: Category, region: Region, marks: tuple[tuple[int, tuple[float, float]], ...]
) -> Reference:
    x0, y0, x1, y1 = region.crop
    known = dict(marks)
    kps_px = np.array([known.get(keypoint.id, (-1.0, -1.0)) for keypoint in category.keypoints], dtype=np.float64)
    kps_px = kps_px.reshape(-1, 2)
    inside = (kps_px >= (x0, y0)).all(axis=1) & (kps_px <= (x1, y1)).all(axis=1)
    there = np.array([keypoint.id in known for keypoint in category.keypoints], dtype=bool)
    names = [(keypoint.id, keypoint.name) for keypoint in category.keypoints]
    state = hash_json([region.key, marks, names])
    return Reference(instance_id, category.id, region, kps_px - region.offset, there & inside, state)


def fingerprint(model: str, references: Collection[Reference]) -> str:
    """Changes with the model and the references: what was predicted with another fingerprint is out of date."""
    return hash_json([model, *sorted((reference.id, reference.state) for reference in references)])
