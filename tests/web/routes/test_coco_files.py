"""Exporting and importing a COCO-keypoint file."""

from pathlib import Path

import numpy as np
import pytest
from helpers.web_client import PageClient

from transformatcher.data.coco_keypoints import load_coco_objects


def test_round_trip(page: PageClient, tmp_path: Path):
    page.add_point(50.5, 30, "nose")
    page.add_point(150, 90, "tail")
    before = page.request("PUT", f"/points/2/pins/{page.photo_ids()['one.png']}", json={"x": 100, "y": 70})
    response = page.client.get(f"{page.root}/coco", params={"category": "cat"})
    assert response.headers["content-disposition"] == 'attachment; filename="keypoints.json"'
    (tmp_path / "keypoints.json").write_bytes(response.content)
    objects = load_coco_objects(tmp_path / "keypoints.json", tmp_path)
    assert [item.image.name for item in objects] == ["src.png", "one.png", "two.png"]
    assert objects[0].kp_names == ("nose", "tail")
    np.testing.assert_allclose(objects[0].kps_px, [[50.5, 30], [150, 90]])
    np.testing.assert_allclose(objects[1].kps_px[1], [100, 70])
    for point in (1, 2):
        page.request("DELETE", f"/points/{point}")
    after = page.request("POST", "/coco", params={"name": "keypoints.json"}, content=response.content)
    assert (after.pop("warnings"), after.pop("category")) == ([], "cat")
    assert after == before


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe", "k.json: not a JSON file"),
        (b"[" * 100_000, "k.json: not a JSON file"),
        (b'["\\ud800"]', "k.json: not a JSON file"),  # half a character
        (b"[]", "k.json: not a COCO-keypoint file"),
        (b'{"images": [], "annotations": [], "categories": []}', "no keypoints for the source photo"),
        (b'{"images": [1], "annotations": [], "categories": []}', "no usable id"),
    ],
)
def test_unusable_files(page: PageClient, content: bytes, message: str):
    assert message in page.request("POST", "/coco?name=k.json", 422, content=content)["error"]
    assert "no point to export" in page.request("GET", "/coco", 422)["error"]
