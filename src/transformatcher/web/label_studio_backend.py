"""Tasks and annotations of Label Studio → predictions, by references that grow while annotations arrive."""

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from transformatcher import __version__
from transformatcher.data.coco_keypoints import AnnotatedObject
from transformatcher.errors import InputError
from transformatcher.images import image_size
from transformatcher.inference.interfaces.label_studio import (
    Categories,
    ImageFolders,
    LabelConfig,
    find_image,
    parse_label_config,
    printable,
    read_objects,
    to_prediction,
)
from transformatcher.inference.matcher import Matcher
from transformatcher.inference.photos import to_pixels
from transformatcher.inference.propagate import MOST_REFERENCES, KeypointPropagator
from transformatcher.inference.propagate_inputs import References
from transformatcher.models.weights_io import hash_tensors
from transformatcher.schema import Size
from transformatcher.web.errors import RequestError
from transformatcher.web.listen import print_line
from transformatcher.web.uploads import read_upload

MAX_LEARNED = 64  # annotations that came from Label Studio and are references; the oldest go first
MAX_REMEMBERED = 2000  # predictions, for the retry of a request that took Label Studio too long
MAX_PIXELS = 50_000_000  # of an image in a data: address
FAILED = "transformatcher: no prediction, its terminal says why"  # the model version of a task that has none


@dataclass(frozen=True)
class Learned:
    """An annotation that Label Studio has sent."""

    project: str
    image: Path
    result: Sequence[Mapping[str, Any]]


class LabelStudioBackend:
    """Predicts tasks from references: those of a file, and annotations of the same project that arrive meanwhile.

    Args:
        matcher: finds the points.
        references: of a file; none: only annotations that arrive are.
        folders: where the tasks' images are.
        threshold: keypoints of less confidence are left out.
        most_references: how many references vote on an image, those that look most like it; None: all.
        log: called with one line for each task without a prediction and each annotation.
    """

    def __init__(
        self,
        matcher: Matcher,
        references: References,
        folders: ImageFolders,
        threshold: float,
        most_references: int | None = MOST_REFERENCES,
        log: Callable[[str], None] = print_line,
    ) -> None:
        self.matcher, self.references, self.folders = matcher, references, folders
        self.threshold, self.most_references = threshold, most_references
        self._log = log
        self._learned: OrderedDict[str, Learned] = OrderedDict()  # by the annotation's id
        self._lock = threading.Lock()  # of what was learned: annotations arrive while predictions are made
        self._photos = KeypointPropagator(matcher, references, most_references).photos
        self._remembered: OrderedDict[str, dict[str, Any]] = OrderedDict()
        objects = [(item.id, str(item.image), item.kps_px.tolist()) for group in references.values() for item in group]
        self._base = _digest(hash_tensors(matcher.model.state_dict()), objects, threshold, most_references)

    # ------------------------------------------------------------ what Label Studio asks for

    def model_version(self, project: Any) -> str:
        """A name that changes with the references, as Label Studio predicts again what has another version."""
        with self._lock:
            learned = [(key, item.result) for key, item in self._learned.items() if item.project == _id_of(project)]
        count = sum(map(len, self.references.values())) + len(learned)
        many = "reference" if count == 1 else "references"
        return f"transformatcher {__version__}, {count} {many}, {_digest(self._base, learned)[:8]}"

    def predict(self, tasks: Sequence[Any], label_config: str, project: Any) -> dict[str, Any]:
        """Label Studio's answer: one prediction for each task; one without regions for a task that has none. Slow."""
        config, version = parse_label_config(label_config), self.model_version(project)
        references = self._all_references(config, _id_of(project))
        if not references:
            raise InputError(
                "no reference yet: annotate an image in Label Studio, or start this server with a file of references"
            )
        _check_labels(config, references)
        propagator = self._propagator(references)
        results = []
        for number, task in enumerate(tasks):
            name = f"task {task.get('id', number)}" if isinstance(task, dict) else f"task {number}"
            try:
                if not isinstance(task, dict):
                    raise InputError("not an object with data")
                prediction = self._predict_task(task, config, label_config, version, propagator)
                results.append(prediction | {"model_version": version})
            except InputError as error:
                self.log(f"{name}: {error}")
                results.append({"result": [], "score": 0.0, "model_version": FAILED, "error": str(error)})
        return {"results": results, "model_version": version}

    def learn(self, annotation: Mapping[str, Any], task: Mapping[str, Any], project: Mapping[str, Any]) -> int:
        """Make an annotation a reference, and return how many of its project are; none if it has no keypoints."""
        key, project_id = printable(str(annotation.get("id"))), _id_of(project.get("id"))
        self.forget([key])  # of an annotation that was corrected, the old points must not vote
        if annotation.get("was_cancelled"):
            return self._count(project_id)
        config = parse_label_config(str(project.get("label_config", "")))
        image = find_image(task, config, self.folders)
        if isinstance(image, bytes):
            raise InputError(f"annotation {key}: images in data: addresses are predicted, but are no references")
        learned = Learned(project_id, image, annotation.get("result") or [])
        if self._objects_of(key, learned, config):
            with self._lock:
                self._learned[key] = learned
                while len(self._learned) > MAX_LEARNED:
                    self._learned.popitem(last=False)
        return self._count(project_id)

    def forget(self, keys: Sequence[str]) -> None:
        """Annotations with these ids are references no more."""
        with self._lock:
            for key in keys:
                self._learned.pop(key, None)

    def log(self, text: str) -> None:
        """Log a line."""
        self._log(printable(text))

    # ------------------------------------------------------------ inside

    def _count(self, project: str) -> int:
        with self._lock:
            return sum(item.project == project for item in self._learned.values())

    def _categories(self, config: LabelConfig) -> Categories:
        """The categories of the file; without one, those of the labels."""
        return {name: group[0].kp_names for name, group in self.references.items()} or config.categories()

    def _objects_of(self, key: str, item: Learned, config: LabelConfig) -> list[AnnotatedObject]:
        categories, size = self._categories(config), image_size(item.image)
        return read_objects(item.result, f"annotation {key}", item.image, size, config, categories)

    def _all_references(self, config: LabelConfig, project: str) -> dict[str, list[AnnotatedObject]]:
        """The references by category: those of the file, and what was learned of this project."""
        references = {name: list(group) for name, group in self.references.items()}
        with self._lock:
            learned = [(key, item) for key, item in self._learned.items() if item.project == project]
        for key, item in learned:
            try:
                for found in self._objects_of(key, item, config):
                    references.setdefault(found.category, []).append(found)
            except InputError as error:  # its image or its label is gone since
                self.log(str(error))
        return references

    def _propagator(self, references: References) -> KeypointPropagator:
        """What predicts from these references; their photos stay encoded, those of other references go."""
        images = {item.image for group in references.values() for item in group}
        kept = {item.image for group in self.references.values() for item in group}
        with self._lock:
            kept |= {item.image for item in self._learned.values()}
        self._photos = {path: photo for path, photo in self._photos.items() if path in kept | images}
        for path in sorted(images - self._photos.keys()):
            self._photos[path] = self.matcher.encode([path], keep_views=True)[0]
        return KeypointPropagator(self.matcher, references, self.most_references, self._photos)

    def _predict_task(
        self, task: Mapping[str, Any], config: LabelConfig, label_config: str, version: str,
        propagator: KeypointPropagator,
    ) -> dict[str, Any]:  # fmt: skip
        image = find_image(task, config, self.folders)
        state = [str(image), image.stat().st_mtime_ns] if isinstance(image, Path) else _hash(image)
        key = _digest(state, label_config, version)
        if key not in self._remembered:
            pixels, size = _read(image)
            scale = np.array([size[1] / pixels.shape[1], size[0] / pixels.shape[0]])
            (estimates,) = propagator([pixels])
            scaled = {name: replace(estimate, kps_px=estimate.kps_px * scale) for name, estimate in estimates.items()}
            categories = {name: group[0].kp_names for name, group in propagator.references.items()}
            self._remembered[key] = to_prediction(scaled, categories, config, size, self.threshold)
        self._remembered.move_to_end(key)
        while len(self._remembered) > MAX_REMEMBERED:
            self._remembered.popitem(last=False)
        return self._remembered[key]


def _read(image: Path | bytes) -> tuple[UInt8[np.ndarray, "_ _ 3"], Size]:
    """The pixels of an image, perhaps scaled down, and the (h, w) of the original."""
    if isinstance(image, Path):
        pixels = to_pixels(image)
        return pixels, (pixels.shape[0], pixels.shape[1])
    try:
        upload = read_upload(image, "the data: address", MAX_PIXELS)
    except RequestError as error:  # too many pixels
        raise InputError(str(error.detail)) from error
    return to_pixels(upload.pixels), upload.size


def _check_labels(config: LabelConfig, references: References) -> None:
    """Raise an error if no label is a keypoint of a reference."""
    if any(config.labels_of(name, group[0].kp_names) for name, group in references.items()):
        return
    names = sorted({name for group in references.values() for name in group[0].kp_names})
    raise InputError(
        f"label config: none of its labels ({', '.join(config.keypoints)}) is a keypoint of the references "
        f"({', '.join(names)}); give both the same names"
    )


def _id_of(project: Any) -> str:
    """The id of a project, which requests for predictions write as "id.time of creation"."""
    return str(project).partition(".")[0]


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _digest(*parts: Any) -> str:
    return _hash(json.dumps(parts, sort_keys=True, default=str).encode())
