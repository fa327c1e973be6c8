"""Label configs, addresses of images, predictions and annotations; beside label-studio-sdk where it is installed."""

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from transformatcher.errors import InputError
from transformatcher.inference.interfaces.label_studio import (
    ImageFolders,
    LabelConfig,
    find_image,
    parse_label_config,
    read_objects,
    to_prediction,
)
from transformatcher.inference.propagate_voting import KeypointEstimate

XML = """<View>
  <!-- two kinds of animals -->
  <Image name="img" value="$photo"/>
  <KeyPointLabels name="kp" toName="img">
    <Label value="Left eye"/><Label value="dog: nose"/><Label value="Nose"/>
  </KeyPointLabels>
  <RectangleLabels name="box" toName="img"><Label value="Cat"/><Label value="Dog"/></RectangleLabels>
  <KeyPointLabels name="other" toName="another"><Label value="tail"/></KeyPointLabels>
</View>"""
CATEGORIES = {"cat": ("left_eye", "nose", "tail"), "dog": ("nose",)}
SIZE = (100, 200)


@pytest.fixture(scope="module")
def config() -> LabelConfig:
    return parse_label_config(XML)


def estimate(points: list[list[float]], confidence: list[float]) -> KeypointEstimate:
    return KeypointEstimate(np.array(points, dtype=float), np.array(confidence), np.zeros(len(points), dtype=int))


def point(label: str, x: float, y: float, **more: Any) -> dict[str, Any]:
    """A region as Label Studio sends it."""
    value = {"x": x, "y": y, "width": 0.5, "keypointlabels": [label]}
    return {"id": f"{label}{x}", "type": "keypointlabels", "from_name": "kp", "to_name": "img", "value": value} | more


def box(label: str, name: str) -> dict[str, Any]:
    value = {"x": 1, "y": 1, "width": 50, "height": 50, "rotation": 0, "rectanglelabels": [label]}
    return {"id": name, "type": "rectanglelabels", "from_name": "box", "to_name": "img", "value": value}


class TestLabelConfig:
    def test_tags_and_labels_of_the_image(self, config: LabelConfig):
        assert (config.image, config.data_key) == ("img", "photo")
        assert config.keypoints == {"Left eye": "kp", "dog: nose": "kp", "Nose": "kp"}
        assert config.boxes == {"Cat": "box", "Dog": "box"}

    def test_labels_are_keypoints_however_they_are_spelled(self, config: LabelConfig):
        assert config.labels_of("cat", CATEGORIES["cat"]) == {0: "Left eye", 1: "Nose"}
        assert config.labels_of("dog", ("nose", "leftEye")) == {0: "dog: nose", 1: "Left eye"}
        assert (config.box_label("cat"), config.box_label("CAT"), config.box_label("horse")) == ("Cat", "Cat", None)

    def test_categories_where_no_file_names_some(self, config: LabelConfig):
        assert config.categories() == dict.fromkeys(("Cat", "Dog"), ("Left eye", "dog: nose", "Nose"))
        bare = parse_label_config(XML.replace("RectangleLabels", "Other"))
        assert list(bare.categories()) == ["object"]

    def test_an_alias_is_what_results_have(self):
        assert "le" in parse_label_config(XML.replace('value="Left eye"', 'value="Left eye" alias="le"')).keypoints

    @pytest.mark.parametrize(
        ("xml", "message"),
        [
            ("<View>", "not valid XML"),
            ("", "not valid XML"),
            ("\ud800", "not valid XML"),
            ('<!DOCTYPE x [<!ENTITY a "b">]><View>&a;</View>', "declares a document type or entities"),
            (XML.replace("KeyPointLabels", "BrushLabels"), "no <KeyPointLabels> for an <Image>"),
            (XML.replace("<Image", "<Text"), "no <KeyPointLabels> for an <Image>"),
            (XML.replace("$photo", "https://example.org/a.jpg"), 'needs a value such as "\\$image"'),
            (XML.replace("<Label ", "<Choice "), "'img' have no <Label>"),
        ],
    )
    def test_configs_without_keypoints(self, xml: str, message: str):
        with pytest.raises(InputError, match=message):
            parse_label_config(xml)


class TestFindImage:
    @pytest.fixture
    def folders(self, tmp_path: Path) -> ImageFolders:
        for name in ("root/sub/a b.jpg", "uploads/1/ab-c.jpg", "secret.jpg", "root-too/x.jpg"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(b"x")
        (tmp_path / "root" / "out.jpg").symlink_to(tmp_path / "secret.jpg")
        return ImageFolders(tmp_path / "root", tmp_path / "uploads")

    @pytest.mark.parametrize(
        ("address", "name"),
        [
            ("/data/local-files/?d=sub/a%20b.jpg", "root/sub/a b.jpg"),
            ("/data/local-files?d=sub%2Fa+b.jpg", "root/sub/a b.jpg"),
            ("http://localhost:8080/data/local-files/?d=sub/../sub/a%20b.jpg", "root/sub/a b.jpg"),
            ("/data/upload/1/ab-c.jpg", "uploads/1/ab-c.jpg"),
            ("https://label.example.org/studio/data/upload/1/ab-c.jpg", "uploads/1/ab-c.jpg"),
        ],
    )
    def test_files(self, folders: ImageFolders, config: LabelConfig, tmp_path: Path, address: str, name: str):
        assert find_image({"data": {"photo": address}}, config, folders) == (tmp_path / name).resolve()

    @pytest.mark.parametrize(
        "address",
        [
            "/data/local-files/?d=../secret.jpg",
            "/data/local-files/?d=/etc/passwd",
            "/data/local-files/?d=%2e%2e%2fsecret.jpg",
            "/data/local-files/?d=../root-too/x.jpg",  # its name begins as the folder's
            "/data/local-files/?d=out.jpg",  # a link
            "/data/local-files/?d=../gone.jpg",  # whether it is there is not told
            "/data/upload/../secret.jpg",
            "/data/upload/%2e%2e/secret.jpg",
            "/data/upload//etc/passwd",
        ],
    )
    def test_what_lies_outside_is_not_read(self, folders: ImageFolders, config: LabelConfig, address: str):
        with pytest.raises(InputError, match=r"lies outside --(images-root|uploads) .*, and is not read"):
            find_image({"data": {"photo": address}}, config, folders)

    @pytest.mark.parametrize(
        "address",
        [
            "s3://bucket/a.jpg",
            "gs://bucket/a.jpg",
            "https://example.org/a.jpg",
            "file:///etc/passwd",
            "file:///data/upload/1/ab-c.jpg",
            "/tasks/7/resolve/?fileuri=czM6Ly9h",
            "/data/local-files/",
            "a.jpg",
            "",
            "x" * 9999,
        ],
    )
    def test_nothing_is_fetched(self, folders: ImageFolders, config: LabelConfig, address: str):
        with pytest.raises(InputError, match="nothing else is read, and nothing is fetched") as caught:
            find_image({"data": {"photo": address}}, config, folders)
        assert len(str(caught.value)) < 320

    @pytest.mark.parametrize(
        ("address", "message"),
        [
            ("/data/local-files/?d=sub/gone.jpg", "no such file in --images-root"),
            ("/data/local-files/?d=sub", "no such file in --images-root"),
            ("/data/local-files/?d=a%00b", "no file can have this name"),
            (f"/data/local-files/?d={'a' * 5000}", "no file can have this name"),
            ("http://[/data/upload/1/a.jpg", "not an address of an image"),
            ("data:image/png;base64,%%%", "not an image in base64"),
            ("data:image/png,abc", "not an image in base64"),
            (None, "no 'photo' with the address of one image"),
            (["/data/upload/1/a.jpg"], "no 'photo' with the address of one image"),
        ],
    )
    def test_addresses_of_no_image(self, folders: ImageFolders, config: LabelConfig, address: Any, message: str):
        with pytest.raises(InputError, match=message):
            find_image({"data": {"photo": address}}, config, folders)

    def test_tasks_without_data(self, folders: ImageFolders, config: LabelConfig):
        for task in ({}, {"data": None}, {"data": []}, {"data": {"image": "x"}}):
            with pytest.raises(InputError, match="no 'photo'"):
                find_image(task, config, folders)

    @pytest.mark.parametrize(("kind", "option"), [("local-files/?d=a", "--images-root"), ("upload/a", "--uploads")])
    def test_folders_that_were_not_named(self, config: LabelConfig, kind: str, option: str):
        with pytest.raises(InputError, match=f"name their folder by {option}"):
            find_image({"data": {"photo": f"/data/{kind}"}}, config, ImageFolders())

    def test_data_addresses(self, config: LabelConfig):
        address = "data:image/png;base64," + base64.b64encode(b"the image").decode()
        assert find_image({"data": {"photo": address}}, config, ImageFolders()) == b"the image"


class TestPrediction:
    def test_a_box_and_its_points_in_percent(self, config: LabelConfig):
        cat = estimate([[20, 30], [200, 100.001], [10, 10]], [0.8, 0.6, 0.9])
        prediction = to_prediction({"cat": cat}, CATEGORIES, config, SIZE, 0.5)
        assert prediction["score"] == 0.7  # the tail has no label
        rectangle, eye, nose = prediction["result"]
        assert rectangle["value"]["rectanglelabels"] == ["Cat"]
        assert (rectangle["type"], rectangle["from_name"], rectangle["to_name"]) == ("rectanglelabels", "box", "img")
        x, y, w, h = (rectangle["value"][key] for key in ("x", "y", "width", "height"))
        assert (x, y) == pytest.approx((1, 23))  # a tenth of the points' box around it, within the image
        assert (x + w, y + h) == pytest.approx((100, 100))
        assert eye["value"] == {"x": 10, "y": 30, "width": 0.5, "keypointlabels": ["Left eye"]}
        assert (nose["value"]["x"], nose["value"]["y"]) == (100, 100)
        assert (eye["score"], eye["parentID"], eye["from_name"]) == (0.8, rectangle["id"], "kp")
        assert all(
            (r["original_width"], r["original_height"], r["image_rotation"]) == (200, 100, 0)
            for r in prediction["result"]
        )
        assert len({region["id"] for region in prediction["result"]}) == 3

    def test_points_below_the_threshold_are_left_out_but_count_for_the_score(self, config: LabelConfig):
        cat = estimate([[20, 30], [30, 40], [10, 10]], [0.8, 0.4, 0.0])
        prediction = to_prediction({"cat": cat}, CATEGORIES, config, SIZE, 0.5)
        assert [region["type"] for region in prediction["result"]] == ["rectanglelabels", "keypointlabels"]
        assert prediction["score"] == 0.6
        assert to_prediction({"cat": cat}, CATEGORIES, config, SIZE, 0.9) == {"result": [], "score": 0.6}

    def test_points_that_no_reference_shows(self, config: LabelConfig):
        cat = estimate([[0, 0], [0, 0], [10, 10]], [0.0, 0.0, 0.9])
        assert to_prediction({"cat": cat}, CATEGORIES, config, SIZE, 0.0) == {"result": [], "score": 0.0}

    def test_several_categories(self, config: LabelConfig):
        both = {"cat": estimate([[20, 30]] * 3, [0.8] * 3), "dog": estimate([[5, 5]], [0.7])}
        regions = to_prediction(both, CATEGORIES, config, SIZE, 0.5)["result"]
        labels = [(r["value"].get("keypointlabels") or r["value"]["rectanglelabels"])[0] for r in regions]
        assert labels == ["Cat", "Left eye", "Nose", "Dog", "dog: nose"]
        assert len({region["id"] for region in regions}) == 5

    def test_without_labels_for_boxes(self):
        bare = parse_label_config(XML.replace("RectangleLabels", "Other"))
        (region,) = to_prediction({"dog": estimate([[5, 5]], [0.7])}, CATEGORIES, bare, SIZE, 0.5)["result"]
        assert "parentID" not in region


class TestBesideLabelStudio:
    """Label Studio's own check of predictions."""

    @pytest.mark.filterwarnings("default")
    def test_it_takes_the_predictions(self, config: LabelConfig):
        interface = pytest.importorskip("label_studio_sdk.label_interface", reason="label-studio-sdk is not installed")
        theirs = interface.LabelInterface(XML.replace('toName="another"', 'toName="img"'))
        both = {"cat": estimate([[20, 30], [200, 100], [0, 0]], [0.8, 1.0, 0.5]), "dog": estimate([[5, 5]], [0.7])}
        prediction = to_prediction(both, CATEGORIES, config, SIZE, 0.5)
        assert theirs.validate_prediction(prediction, return_errors=True) == []
        assert theirs.validate_prediction({"result": [], "score": 0.0}, return_errors=True) == []
        prediction["result"][1]["value"]["keypointlabels"] = ["ear"]
        assert theirs.validate_prediction(prediction, return_errors=True) != []  # it does look


class TestReadObjects:
    def read(self, result: Any, config: LabelConfig) -> list[Any]:
        return read_objects(result, "annotation 7", Path("a.jpg"), SIZE, config, CATEGORIES)

    def test_points_of_one_object(self, config: LabelConfig):
        (cat,) = self.read([point("Nose", 50, 20), point("Left eye", 100, 0), point("tail", 1, 1)], config)
        assert (cat.id, cat.category, cat.image, cat.image_size) == ("annotation 7-0", "cat", Path("a.jpg"), SIZE)
        assert cat.visible.tolist() == [True, True, False]  # there is no label for the tail
        np.testing.assert_allclose(cat.kps_px, [[200, 0], [100, 20], [0, 0]])

    def test_a_prediction_reads_back(self, config: LabelConfig):
        points = [[20, 30], [199, 99], [0, 0]]
        prediction = to_prediction({"cat": estimate(points, [0.8, 0.9, 0.0])}, CATEGORIES, config, SIZE, 0.5)
        (cat,) = self.read(prediction["result"], config)
        np.testing.assert_allclose(cat.kps_px, points, atol=1e-3)

    def test_objects_in_boxes(self, config: LabelConfig):
        regions = [
            box("Dog", "one"), box("Cat", "two"), point("Nose", 1, 1, parentID="two"),
            point("dog: nose", 2, 2, parentID="one"),
        ]  # fmt: skip
        assert [(item.category, item.kps_px[item.visible].tolist()) for item in self.read(regions, config)] == [
            ("cat", [[2, 1]]), ("dog", [[4, 2]]),
        ]  # fmt: skip

    def test_one_box_says_what_the_points_are_of(self):
        xml = XML.replace('<Label value="dog: nose"/>', "")
        (item,) = self.read([point("Nose", 1, 1), box("Dog", "one")], parse_label_config(xml))
        assert item.category == "dog"

    def test_regions_of_other_kinds_and_images_are_left_out(self, config: LabelConfig):
        brush = {"id": "b", "type": "brushlabels", "value": {"rle": []}}
        elsewhere = point("Nose", 1, 1, to_name="another")
        odd = [{}, {"type": "keypointlabels"}, {"type": "keypointlabels", "value": {"keypointlabels": [[]]}}]
        assert self.read([brush, elsewhere, *odd, {"id": [], "type": "rectanglelabels", "value": {}}], config) == []
        assert self.read([], config) == []

    @pytest.mark.parametrize(
        ("result", "message"),
        [
            ("x", "annotation 7: its result is not a list of regions"),
            ([1], "annotation 7: its result is not a list of regions"),
            ([point("Nose", 1, 1), point("Nose", 2, 2)], "two points are labelled 'Nose'; give each object a box"),
            ([point("Nose", 1, 1, image_rotation=90)], "the image was rotated in Label Studio"),
            ([point("Nose", 101, 1)], "the point at 101 %, 1 % lies outside the image"),
            ([point("Nose", float("nan"), 1)], "the point at nan %, 1 % lies outside"),
            ([point("Nose", "x", 1)], "a point has no position"),
            ([point("Left eye", 1, 1), point("dog: nose", 1, 1)], "no category has all of its keypoints"),
        ],
    )
    def test_annotations_that_cannot_be_references(self, config: LabelConfig, result: Any, message: str):
        with pytest.raises(InputError, match=message):
            self.read(result, config)
