"""An annotation file and its references → which photos are predicted for which categories, and which are left alone.

An image that a run has looked through says so in the file: ``"predicted": {category: {"references": fingerprint,
"found": whether there was an object}}``. It is predicted anew when the references or the settings have changed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformatcher.data.coco_keypoints import AnnotatedObject
from transformatcher.inference.propagate_inputs import Annotations, ImageState, References, hash_files
from transformatcher.run_folder import hash_json

Names = Mapping[str, Sequence[str]]  # of photos → categories


@dataclass(frozen=True)
class Plan:
    """What there is to do."""

    wanted: Names  # photos to be predicted
    kept: Sequence[str]  # photos that are predicted already
    annotated: Sequence[str]  # photos that a person has annotated

    @property
    def categories(self) -> set[str]:
        """All categories that some photo is predicted for."""
        return {category for wanted in self.wanted.values() for category in wanted}


def make_plan(
    source: Annotations, root: Path, names: Sequence[str], fingerprints: Mapping[str, str], *, again: bool = False
) -> Plan:
    """What there is to do for some photos.

    Args:
        source: what is known already.
        root: that the names are relative to.
        names: of the photos.
        fingerprints: of the references of each category that is predicted.
        again: predict what is predicted already, too.
    """
    states = source.states()
    wanted: dict[str, list[str]] = {}
    kept: list[str] = []
    annotated: list[str] = []
    for name in names:
        state = states.get((root / name).resolve(), ImageState())
        if categories := wanted_categories(state, fingerprints, again=again):
            wanted[name] = categories
        else:
            (annotated if state.marked else kept).append(name)
    return Plan(wanted, kept, annotated)


def wanted_categories(state: ImageState, fingerprints: Mapping[str, str], *, again: bool = False) -> list[str]:
    """The categories that an image is to be predicted for.

    Images that a person annotated by hand have none. An image that was predicted has no more than the categories of
    which no person has corrected the object, or removed it.
    """
    if state.marked and not state.predicted:
        return []
    categories = []
    for category, fingerprint in fingerprints.items():
        before = state.predicted.get(category)
        if category in state.marked:
            continue
        if isinstance(before, dict) and not again:
            removed = before.get("found") and category not in state.annotated
            if removed or before.get("references") == fingerprint:
                continue
        categories.append(category)
    return categories


# ---------------------------------------------------------------- fingerprints


def fingerprint_references(references: References, settings: Mapping[str, Any]) -> dict[str, str]:
    """For each category, a hash of its references, of their photos, and of all settings that predictions depend on."""
    images = {item.image for group in references.values() for item in group}
    hashes = {image: hash_files([image]) for image in images}
    return {
        name: hash_json([settings, [[*_describe(item), hashes[item.image]] for item in group]])
        for name, group in references.items()
    }


def hash_references(references: References) -> str:
    """A hash of what a person has marked."""
    return hash_json([[name, [_describe(item) for item in group]] for name, group in references.items()])


def _describe(item: AnnotatedObject) -> list[Any]:
    return [item.id, item.kp_names, item.visible.tolist(), item.kps_px[item.visible].tolist()]
