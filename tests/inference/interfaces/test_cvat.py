"""The function that cvat-cli loads, judged by cvat-sdk's own types and by its driver."""

import importlib.util
import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.propagation import POINTS, make_photo
from PIL import Image

from transformatcher.errors import InputError
from transformatcher.inference.calibration import Calibration, Calibrations
from transformatcher.inference.matcher import Matcher
from transformatcher.inference.propagate_inputs import read_annotations

cvataa = pytest.importorskip("cvat_sdk.auto_annotation", reason="cvat-sdk is not installed")

from cvat_sdk import models  # noqa: E402
from cvat_sdk.auto_annotation import driver  # noqa: E402

from transformatcher.inference.interfaces import cvat  # noqa: E402

FILE = Path(cvat.__file__)
NAMES = [*POINTS, "four"]  # of which no photo shows the last


@pytest.fixture
def marked(tmp_path: Path) -> Path:
    """One annotated photo: three points, one of which is hidden, and a fourth that is not annotated."""
    make_photo(3).save(tmp_path / "a.png")
    points = [value for x, y in POINTS.values() for value in (x, y, 2)] + [0, 0, 0]
    data = {
        "images": [{"id": 1, "file_name": "a.png", "width": 200, "height": 120}],
        "categories": [{"id": 1, "name": "box", "keypoints": NAMES, "skeleton": []}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "keypoints": points, "bbox": [30, 20, 130, 80]}],
    }
    path = tmp_path / "marked.json"
    path.write_text(json.dumps(data))
    return path


@pytest.fixture
def function(matcher: Matcher, marked: Path) -> cvat.KeypointFunction:
    calibrated = Matcher(matcher.model, matcher.config, "cpu", Calibrations(Calibration(1.0, 0.5, -0.5)))
    return cvat.KeypointFunction(calibrated, read_annotations(marked, None, None))


def context(name: str = "b.png", conf_threshold: float | None = None) -> Any:
    """What CVAT gives to a function beside the image."""
    return driver._DetectionFunctionContextImpl(frame_name=name, conf_threshold=conf_threshold)


def sublabel(number: int, name: str) -> models.Sublabel:
    return models.Sublabel(name=name, id=number, type="points", attributes=[])


def label(name: str = "box", points: list[str] | None = None, kind: str = "skeleton") -> SimpleNamespace:
    """A label of a task, whose ids differ from those of the function."""
    names = NAMES if points is None else points
    sublabels = [sublabel(200 + number, name) for number, name in enumerate(names)]
    return SimpleNamespace(name=name, id=100, type=kind, attributes=[], sublabels=sublabels)


def points_of(shape: models.LabeledShapeRequest) -> np.ndarray:
    return np.array([element.points for element in shape.elements])


class TestDetect:
    def test_a_skeleton_with_all_its_points(self, function: cvat.KeypointFunction):
        (shape,) = function.detect(context(conf_threshold=0.0), make_photo(3))
        assert (str(shape.type), shape.label_id, shape.frame) == ("skeleton", 0, 0)
        assert [element.label_id for element in shape.elements] == [0, 1, 2, 3]
        assert [element.outside for element in shape.elements] == [False, False, False, True]
        np.testing.assert_allclose(points_of(shape)[:3], list(POINTS.values()), atol=8)  # a cell of the small matcher
        np.testing.assert_allclose(points_of(shape)[3], points_of(shape)[:3].mean(axis=0), atol=0.1)

    def test_points_below_the_threshold_are_outside_where_they_probably_are(self, function: cvat.KeypointFunction):
        (shape,) = function.detect(context(conf_threshold=0.0), make_photo(3))
        (estimates,) = function.propagator([np.array(make_photo(3))])
        confidence = estimates["box"].confidence
        between = float(np.sort(confidence[:3])[:2].mean())
        (fewer,) = function.detect(context(conf_threshold=between), make_photo(3))
        assert [element.outside for element in fewer.elements] == [*(confidence[:3] < between), True]
        np.testing.assert_array_equal(points_of(fewer)[:3], points_of(shape)[:3])

    def test_the_threshold_of_the_call_goes_before_that_of_the_function(self, function: cvat.KeypointFunction):
        assert function.threshold == 0.5
        function.threshold = 1.0
        assert function.detect(context(), make_photo(3)) == []
        assert len(function.detect(context(conf_threshold=0.0), make_photo(3))) == 1
        assert function.detect(context(conf_threshold=1.0), make_photo(3)) == []

    def test_a_model_without_calibration_ignores_thresholds(self, matcher: Matcher, marked: Path):
        plain = cvat.KeypointFunction(matcher, read_annotations(marked, None, None))
        (shape,) = plain.detect(context(conf_threshold=1.0), make_photo(7))
        assert [element.outside for element in shape.elements] == [False, False, False, True]

    def test_the_annotated_photo_is_left_out(self, function: cvat.KeypointFunction, caplog: pytest.LogCaptureFixture):
        assert function.detect(context("a.png", 0.0), make_photo(3)) == []
        assert "a.png: left out, as it is among the annotated photos" in caplog.text
        larger = make_photo(3).resize((400, 240))  # another photo of the same name
        assert len(function.detect(context("a.png", 0.0), larger)) == 1

    def test_a_rotated_photo_is_turned_upright_first(self, function: cvat.KeypointFunction):
        turned = make_photo(3).transpose(Image.Transpose.ROTATE_90)
        turned.getexif()[0x0112] = 6  # to be shown rotated by 90° clockwise
        (shape,) = function.detect(context(conf_threshold=0.0), turned)
        np.testing.assert_allclose(points_of(shape)[:3], list(POINTS.values()), atol=8)

    @pytest.mark.parametrize("mode", ["L", "RGBA", "P", "I;16"])
    def test_images_of_any_mode(self, function: cvat.KeypointFunction, mode: str):
        image = make_photo(3).convert("L") if mode == "I;16" else make_photo(3).convert(mode)
        if mode == "I;16":
            image = Image.fromarray(np.array(image, dtype=np.uint16) * 257)
        assert len(function.detect(context(conf_threshold=0.0), image)) == 1


class TestDriver:
    """``annotate_task`` of cvat-sdk, with a task that lies here instead of on a server."""

    @pytest.fixture
    def task(self, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
        frames = [("a.png", make_photo(3)), ("b.png", make_photo(3)), ("c.png", make_photo(7))]
        samples = [
            SimpleNamespace(frame_index=i, frame_name=name, media=SimpleNamespace(load_image=lambda image=image: image))
            for i, (name, image) in enumerate(frames)
        ]
        task = SimpleNamespace(labels=[label()], samples=samples, uploaded=[])
        monkeypatch.setattr(driver, "TaskDataset", lambda *_, **__: task)

        def upload(action: str, task_id: int, patched_labeled_data_request: Any) -> None:
            task.uploaded.append((action, task_id, patched_labeled_data_request))

        api = SimpleNamespace(partial_update_annotations=upload)
        task.client = SimpleNamespace(logger=logging.getLogger("a test"), tasks=SimpleNamespace(api=api))
        return task

    def test_it_takes_what_the_function_returns(self, function: cvat.KeypointFunction, task: SimpleNamespace):
        driver.annotate_task(task.client, 7, function, conf_threshold=0.0)
        ((action, task_id, data),) = task.uploaded
        assert (action, task_id) == ("create", 7)
        assert [shape.frame for shape in data.shapes] == [1, 2]  # a.png is annotated already
        first = json.loads(json.dumps(data.to_dict()["shapes"][0]))  # as it would be sent
        assert (first["type"], first["label_id"], first["source"]) == ("skeleton", 100, "auto")
        assert [element["label_id"] for element in first["elements"]] == [200, 201, 202, 203]
        assert [element["outside"] for element in first["elements"]] == [False, False, False, True]
        assert all(element["frame"] == 1 for element in first["elements"])

    @pytest.mark.parametrize(
        ("labels", "message"),
        [
            ([label("dog")], "label 'box' is not in dataset"),
            ([label(points=NAMES[:3])], "sublabel 'four' of label 'box' is not in dataset"),
            ([label(kind="rectangle")], "label 'box' has type 'skeleton' in the function, but 'rectangle'"),
            ([label(points=[*NAMES, "five"])], r"fewer elements than expected \(4 vs 5\)"),
        ],
        ids=["category", "a point less", "a rectangle", "a point more"],
    )
    def test_labels_of_the_task_that_differ(
        self, function: cvat.KeypointFunction, task: SimpleNamespace, labels: list[Any], message: str
    ):
        task.labels = labels
        with pytest.raises(cvataa.BadFunctionError, match=message):
            driver.annotate_task(task.client, 7, function, conf_threshold=0.0)

    def test_a_task_with_fewer_points(self, function: cvat.KeypointFunction, task: SimpleNamespace):
        task.labels = [label(points=["three", "one"])]  # in another order, too
        driver.annotate_task(task.client, 7, function, conf_threshold=0.0, allow_unmatched_labels=True)
        shape = task.uploaded[0][2].shapes[0]
        assert {element.label_id: round(element.points[0], -1) for element in shape.elements} == {200: 100, 201: 40}


@contextmanager
def loaded(*, as_file: bool) -> Iterator[ModuleType]:
    """The module as ``--function-file`` or ``--function-module`` of cvat-cli loads it."""
    if not as_file:
        yield importlib.import_module("transformatcher.inference.interfaces.cvat")
        return
    spec = importlib.util.spec_from_file_location("__cvat_function__", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module


class TestCreate:
    @pytest.mark.parametrize("as_file", [True, False])
    def test_as_cvat_cli_does(self, marked: Path, as_file: bool):
        with loaded(as_file=as_file) as module:
            function = module.create(
                references=str(marked), images_root=str(marked.parent), threshold=0.25, device="cpu"
            )
        assert function.threshold == 0.25
        assert [(item.name, item.id, item.type) for item in function.spec.labels] == [("box", 0, "skeleton")]
        assert [(item.name, item.id) for item in function.spec.labels[0].sublabels] == list(
            zip(NAMES, range(4), strict=True)
        )
        assert function.propagator.matcher.calibrated
        assert function.propagator.most == 6

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"references": "gone.json"}, "gone.json: no such file"),
            ({"category": "dog"}, "no category is called 'dog'; it has box"),
            ({"images_root": "nowhere"}, "no such image file"),
            ({"threshold": 2.0}, "threshold 2: a confidence lies between 0 and 1"),
            ({"device": "tpu9"}, "choose auto"),
        ],
    )
    def test_mistakes(self, marked: Path, options: dict[str, Any], message: str):
        with pytest.raises(InputError, match=message):
            cvat.create(**{"references": str(marked), "device": "cpu", **options})

    def test_a_threshold_without_calibration(self, matcher: Matcher, marked: Path):
        with pytest.raises(InputError, match="threshold: this model's confidence is not calibrated"):
            cvat.KeypointFunction(matcher, read_annotations(marked, None, None), 0.5)


def test_without_cvat_sdk(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "cvat_sdk", None)
    monkeypatch.setitem(sys.modules, "cvat_sdk.auto_annotation", None)
    with pytest.raises(ModuleNotFoundError, match="pip install cvat-cli"), loaded(as_file=True):
        pass
