"""Project → the photos that still need predictions, and which of them comes first."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from transformatcher.annotation.project import Project
from transformatcher.annotation.records import Category, PixelBox
from transformatcher.annotation.references import Reference, fingerprint


@dataclass(frozen=True)
class Target:
    """An object to be predicted, or a photo on which one is to be looked for."""

    photo_id: int
    path: str
    instance_id: int | None  # None: nobody has said yet that there is an object
    category_id: int | None  # None: the object may be of any category
    box: PixelBox | None
    fresh: bool  # it was predicted, with the references as they are now
    sureness: float | None  # the least confidence of its last prediction

    def references(self, references: Mapping[int, Sequence[Reference]]) -> dict[int, list[Reference]]:
        """Those that may vote on it, by category: of other photos, and of its category if that is known."""
        others = {c: [r for r in group if self._may_vote(r)] for c, group in self._likely(references).items()}
        return {category: group for category, group in others.items() if group}

    def has_references(self, references: Mapping[int, Sequence[Reference]]) -> bool:
        """Whether any may vote on it."""
        return any(self._may_vote(reference) for group in self._likely(references).values() for reference in group)

    def _likely(self, references: Mapping[int, Sequence[Reference]]) -> Mapping[int, Sequence[Reference]]:
        return references if self.category_id is None else {self.category_id: references.get(self.category_id, ())}

    def _may_vote(self, reference: Reference) -> bool:
        return reference.region.photo_id != self.photo_id


def find_targets(
    project: Project,
    categories: Collection[Category],
    references: Mapping[int, Sequence[Reference]],
    model: str,
) -> list[Target]:
    """All that can be predicted now: objects that nobody has reviewed, and photos without an object.

    An object that the program has added itself may be of any category until it has a mark or a box.

    Args:
        project: is read.
        categories: of the project.
        references: by category.
        model: names the model that predicts.
    """
    stamps = {category: fingerprint(model, group) for category, group in references.items()}
    any_stamp = fingerprint(model, [r for group in references.values() for r in group])
    n_keypoints = {category.id: len(category.keypoints) for category in categories}
    found = []
    for row in project.database.rows(
        """SELECT p.id, p.path, i.id AS instance_id, i.category_id, i.x0, i.y0, i.x1, i.y1, d.voters,
                  i.automatic, (SELECT COUNT(*) FROM mark m WHERE m.instance_id = i.id) AS marks,
                  (SELECT MIN(q.confidence) FROM prediction q WHERE q.instance_id = i.id) AS sureness
           FROM photo p LEFT JOIN instance i ON i.photo_id = p.id LEFT JOIN predicted d ON d.instance_id = i.id
           WHERE p.problem IS NULL AND NOT p.skipped AND i.reviewed_at IS NULL ORDER BY p.path, i.id"""
    ):
        box = None if row["x0"] is None else (row["x0"], row["y0"], row["x1"], row["y1"])
        open_category = row["instance_id"] is None or (row["automatic"] and not row["marks"] and box is None)
        category_id = None if open_category else row["category_id"]
        stamp = any_stamp if open_category else stamps.get(row["category_id"])
        if not open_category and row["marks"] >= n_keypoints[row["category_id"]]:
            continue
        target = Target(
            row["id"], row["path"], row["instance_id"], category_id, box, row["voters"] == stamp, row["sureness"]
        )
        if target.has_references(references):
            found.append(target)
    return found


def in_order(targets: Collection[Target], in_view: Collection[int]) -> list[Target]:
    """Those to be predicted: photos on the screen first, then those never predicted, then the least sure."""
    waiting = [target for target in targets if not target.fresh]
    never = -1.0  # less sure than any prediction

    def order(target: Target) -> tuple[bool, float]:
        return target.photo_id not in in_view, never if target.sureness is None else target.sureness

    return sorted(waiting, key=order)
