"""A Label Studio task, its labels and its regions ↔ an image file, keypoints and annotated objects."""

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree

import numpy as np

from transformatcher.data.coco_keypoints import AnnotatedObject, box_around
from transformatcher.data.pairs import masked_points
from transformatcher.errors import InputError
from transformatcher.inference.propagate_voting import KeypointEstimate
from transformatcher.schema import Size

POINT_WIDTH = 0.5  # how large Label Studio draws a point, in percent of the image's width
SHOWN = 120  # letters of an address in a message

Categories = Mapping[str, Sequence[str]]  # the names of each category's keypoints


@dataclass(frozen=True)
class LabelConfig:
    """What a label config says of keypoints and boxes on one image."""

    image: str  # the name of the <Image> tag
    data_key: str  # the key of a task's data where the image's address is
    keypoints: Mapping[str, str]  # label → the name of its <KeyPointLabels> tag
    boxes: Mapping[str, str]  # label → the name of its <RectangleLabels> tag

    def categories(self) -> Categories:
        """The categories where no other source names some: one for each kind of box, or one called "object"."""
        return {name: tuple(self.keypoints) for name in self.boxes or ("object",)}

    def labels_of(self, category: str, kp_names: Sequence[str]) -> dict[int, str]:
        """The label of each keypoint, by its row; rows without a label are missing.

        Capitals, spaces and punctuation do not count: ``left_eye`` is labelled "Left eye", or with its category before
        it, "cat: left eye".
        """
        labels = {_letters(label): label for label in self.keypoints}
        names = {row: (_letters(category + name), _letters(name)) for row, name in enumerate(kp_names)}
        found = {row: next((labels[n] for n in both if n in labels), None) for row, both in names.items()}
        return {row: label for row, label in found.items() if label is not None}

    def box_label(self, category: str) -> str | None:
        """The label of a category's boxes; None if there is none."""
        return next((label for label in self.boxes if _letters(label) == _letters(category)), None)


def parse_label_config(xml: str) -> LabelConfig:
    """Read a label config; of several images, the one that the first keypoints are for.

    Example:
        >>> parse_label_config('<View><Image name="i" value="$image"/><KeyPointLabels name="k" toName="i">'
        ...                    '<Label value="nose"/></KeyPointLabels></View>').keypoints
        {'nose': 'k'}
    """
    if "<!DOCTYPE" in xml or "<!ENTITY" in xml:
        raise InputError("label config: it declares a document type or entities, which no label config needs")
    try:
        root = ElementTree.fromstring(xml)
    except (ElementTree.ParseError, ValueError) as error:
        raise InputError(f"label config: not valid XML ({error})") from error
    values = {tag.get("name"): tag.get("value", "") for tag in root.iter("Image")}
    images = [name for tag in root.iter("KeyPointLabels") if (name := tag.get("toName")) in values]
    if not images:
        raise InputError(
            "label config: it has no <KeyPointLabels> for an <Image>, so there is no label to predict; add them under "
            "Settings, Labeling Interface"
        )
    image, value = images[0], values[images[0]]
    if image is None or not value.startswith("$"):
        raise InputError(
            f'label config: the <Image> {image!r} needs a value such as "$image", a key of the tasks\' data'
        )
    keypoints, boxes = (_labels(root, kind, image) for kind in ("KeyPointLabels", "RectangleLabels"))
    if not keypoints:
        raise InputError(f"label config: the <KeyPointLabels> for {image!r} have no <Label>, one for each keypoint")
    return LabelConfig(image, value[1:], keypoints, boxes)


def _labels(root: ElementTree.Element, kind: str, image: str) -> dict[str, str]:
    """Label → the name of its tag, of the tags of a kind for an image."""
    return {
        text: tag.get("name", "")
        for tag in root.iter(kind)
        if tag.get("toName") == image
        for label in tag.iter("Label")
        if (text := label.get("alias") or label.get("value"))
    }


def _letters(name: str) -> str:
    return "".join(re.findall(r"[^\W_]+", name.casefold()))


# ---------------------------------------------------------------- images


@dataclass(frozen=True)
class ImageFolders:
    """Where images are that Label Studio serves; no others are read.

    Args:
        root: what Label Studio's LOCAL_FILES_DOCUMENT_ROOT names; None: no local files.
        uploads: its folder of uploaded files, media/upload; None: no uploads.
    """

    root: Path | None = None
    uploads: Path | None = None


def find_image(task: Mapping[str, Any], config: LabelConfig, folders: ImageFolders) -> Path | bytes:
    """The image of a task: a file below one of the folders, or what a ``data:`` address holds. Nothing is fetched."""
    data = task.get("data")
    address = data.get(config.data_key) if isinstance(data, dict) else None
    if not isinstance(address, str):
        raise InputError(f"the task's data has no {config.data_key!r} with the address of one image")
    shown = printable(address if len(address) <= SHOWN else f"{address[:SHOWN]}…")
    if address.startswith("data:"):
        return _data_of(address, shown)
    try:
        parts = urlsplit(address)
        path = unquote(parts.path)
        local = path.rstrip("/").endswith("/data/local-files") and parse_qs(parts.query).get("d")
        upload = re.search(r"(?:^|/)data/upload/(.+)", path)
    except ValueError as error:
        raise InputError(f"{shown}: not an address of an image ({error})") from error
    if parts.scheme in ("", "http", "https"):
        if local:
            return _inside(folders.root, local[0], shown, "--images-root")
        if upload:
            return _inside(folders.uploads, upload[1], shown, "--uploads")
    raise InputError(
        f"{shown}: neither a local file (/data/local-files/?d=…) nor an upload (/data/upload/…) nor a data: address; "
        "nothing else is read, and nothing is fetched"
    )


def printable(text: str) -> str:
    """The text without what could change the state of a terminal, or what no file can store (half a character)."""
    return "".join(letter if letter.isprintable() else "�" for letter in text)


def _data_of(address: str, shown: str) -> bytes:
    head, comma, text = address.partition(",")
    try:
        if not comma or not head.endswith(";base64"):
            raise ValueError("no base64 there")
        return base64.b64decode(unquote(text), validate=True)
    except (binascii.Error, ValueError) as error:
        raise InputError(f"{shown}: not an image in base64 ({error})") from error


def _inside(folder: Path | None, name: str, shown: str, option: str) -> Path:
    """A file by its name in a folder; links are followed first, and what lies outside is not looked at."""
    if folder is None:
        raise InputError(f"{shown}: where such files are is not known; name their folder by {option}")
    try:
        root = folder.resolve()
        path = (root / name).resolve()
        inside = path.is_relative_to(root)
        if inside and path.is_file():
            return path
    except (OSError, ValueError) as error:  # a name too long, or one that no file can have
        raise InputError(f"{shown}: no file can have this name") from error
    if not inside:
        raise InputError(f"{shown}: lies outside {option} {folder}, and is not read")
    raise InputError(f"{shown}: no such file in {option} {folder}")


# ---------------------------------------------------------------- predictions


def to_prediction(
    estimates: Mapping[str, KeypointEstimate], categories: Categories, config: LabelConfig, size: Size, threshold: float
) -> dict[str, Any]:
    """Estimated keypoints → what Label Studio shows: ``result``, regions in percent of the image, and ``score``.

    Each object found is a box, if there is a label for it, and its points. The score is the mean confidence of all
    keypoints that a reference shows, found or not, so that sorting by it puts first what needs a look.

    Args:
        estimates: by category, in pixels of an image of this size.
        categories: of the references.
        config: what the keypoints are called in Label Studio.
        size: (h, w) of the image.
        threshold: keypoints of less confidence are left out.
    """
    regions: list[dict[str, Any]] = []
    confidence: list[float] = []
    for number, (category, estimate) in enumerate(estimates.items()):
        labels = config.labels_of(category, categories[category])
        shown = {row: label for row, label in labels.items() if estimate.confidence[row] > 0}
        confidence += [float(estimate.confidence[row]) for row in shown]
        found = {row: label for row, label in shown.items() if estimate.confidence[row] >= threshold}
        if found:
            regions += _object_regions(str(number), category, estimate, found, config, size)
    return {"result": regions, "score": round(float(np.mean(confidence)), 4) if confidence else 0.0}


def _object_regions(
    number: str, category: str, estimate: KeypointEstimate, found: Mapping[int, str], config: LabelConfig, size: Size
) -> list[dict[str, Any]]:
    """The box of an object, and its points inside it."""
    h, w = size
    common = {"to_name": config.image, "original_width": w, "original_height": h, "image_rotation": 0}
    points = estimate.kps_px.clip(0, np.array([w, h], dtype=float))
    regions: list[dict[str, Any]] = []
    box_label, box_id = config.box_label(category), f"{number}-box"
    if box_label is not None:
        x, y, width, height = (box_around(points[list(found)], size) / [w, h, w, h] * 100).round(4).tolist()
        value = {"x": x, "y": y, "width": width, "height": height, "rotation": 0, "rectanglelabels": [box_label]}
        score = round(float(estimate.confidence[list(found)].mean()), 4)
        regions.append(
            {"id": box_id, "type": "rectanglelabels", "from_name": config.boxes[box_label], "value": value}
            | common
            | {"score": score}
        )
    for row, label in found.items():
        x, y = (points[row] / [w, h] * 100).round(4).tolist()
        region = {
            "id": f"{number}-{row}",
            "type": "keypointlabels",
            "from_name": config.keypoints[label],
            "value": {"x": x, "y": y, "width": POINT_WIDTH, "keypointlabels": [label]},
            "score": round(float(estimate.confidence[row]), 4),
        }
        regions.append(region | common | ({"parentID": box_id} if box_label is not None else {}))
    return regions


# ---------------------------------------------------------------- annotations


def read_objects(
    result: Any, name: str, image: Path, size: Size, config: LabelConfig, categories: Categories
) -> list[AnnotatedObject]:
    """The regions of an annotation → its objects with keypoints. Regions of other kinds and labels are left out.

    Points that were dragged into a box in Label Studio's list of regions belong to it, all others to one object.

    Args:
        result: the regions.
        name: of the annotation, for messages; it becomes the objects' id.
        image: the file.
        size: (h, w) of what its percents are of.
        config: of the annotation's project.
        categories: that objects can be of.
    """
    if not isinstance(result, list) or not all(isinstance(region, dict) for region in result):
        raise InputError(f"{name}: its result is not a list of regions")
    known = {label for category, names in categories.items() for label in config.labels_of(category, names).values()}
    labelled = {str(region.get("id")): _first_label(region, "rectanglelabels") for region in result}
    boxes = {key: label for key, label in labelled.items() if label in config.boxes}
    groups: dict[str, dict[str, tuple[float, float]]] = {}  # by the box that the points belong to; "": none
    for region in result:
        label = _first_label(region, "keypointlabels")
        if label is None or label not in known or region.get("to_name") != config.image:
            continue
        if region.get("image_rotation"):
            raise InputError(f"{name}: the image was rotated in Label Studio; such annotations are no references")
        parent = str(region.get("parentID"))
        group = groups.setdefault(parent if parent in boxes else "", {})
        if label in group:
            raise InputError(
                f"{name}: two points are labelled {label!r}; give each object a box, and drag its points into that box "
                "in the list of regions"
            )
        group[label] = _position(region, name)
    objects = []
    for number, (parent, points) in enumerate(groups.items()):
        only = next(iter(boxes.values())) if len(boxes) == 1 else None  # one box: the points are its object's
        category = _category_of(set(points), boxes.get(parent, only), config, categories)
        if category is None:
            raise InputError(f"{name}: no category has all of its keypoints ({', '.join(sorted(points))})")
        labels = config.labels_of(category, categories[category])
        visible = np.array([labels.get(row) in points for row in range(len(categories[category]))])
        percent = np.array([points.get(labels.get(row, ""), (0.0, 0.0)) for row in range(len(visible))], dtype=float)
        kps_px = masked_points(percent / 100 * [size[1], size[0]], visible)
        kp_names = tuple(categories[category])
        objects.append(AnnotatedObject(f"{name}-{number}", image, size, category, kps_px, visible, None, kp_names))
    return objects


def _first_label(region: Mapping[str, Any], kind: str) -> str | None:
    """The label of a region of a kind; None for regions of other kinds."""
    value = region.get("value")
    labels = value.get(kind) if region.get("type") == kind and isinstance(value, dict) else None
    return labels[0] if isinstance(labels, list) and labels and isinstance(labels[0], str) else None


def _position(region: Mapping[str, Any], name: str) -> tuple[float, float]:
    try:
        x, y = float(region["value"]["x"]), float(region["value"]["y"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{name}: a point has no position") from error
    if not (0 <= x <= 100 and 0 <= y <= 100):  # NaN, too
        raise InputError(f"{name}: the point at {x:g} %, {y:g} % lies outside the image")
    return x, y


def _category_of(labels: set[str], box: str | None, config: LabelConfig, categories: Categories) -> str | None:
    """The category that has all of these labels: that of the box, or the first."""
    fitting = [name for name, names in categories.items() if labels <= set(config.labels_of(name, names).values())]
    named = [name for name in fitting if box is not None and config.box_label(name) == box]
    return next(iter(named or fitting), None)
