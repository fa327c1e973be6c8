"""Adding, showing, warping and removing photos."""

import io
from typing import Any

import numpy as np
from helpers.web_client import PageClient, encode_image, picture
from PIL import Image


def test_image(page: PageClient):
    image = page.request("GET", f"/photos/{page.photo_ids()['src.png']}/image")
    with Image.open(io.BytesIO(image.content)) as shown:
        assert (shown.format, shown.size) == ("JPEG", (200, 120))
    assert "has been removed" in page.request("GET", "/photos/x/image", 404)["error"]


def test_targets_may_come_first(client: Any):
    page = PageClient(client)
    assert not page.upload(encode_image(picture(7)))["photos"][0]["ready"]
    assert all(photo["ready"] for photo in page.upload(encode_image(picture(3)), "source")["photos"])


def test_examples(client: Any):
    page = PageClient(client)
    state = page.request("POST", "/examples", 201)
    assert list(page.photo_ids()) == ["cat_a.jpg", "cat_b.jpg", "cat_c.jpg"]
    assert state["points"][2]["name"] == "nose"
    assert len(state["points"][2]["predictions"]) == 2


def test_a_removed_photo_is_no_reference(page: PageClient):
    page.add_point(50, 30)
    ids = page.photo_ids()
    page.request("PUT", f"/points/1/pins/{ids['one.png']}", json={"x": 100, "y": 70})
    state = page.request("DELETE", f"/photos/{ids['one.png']}")
    assert state["points"][0]["predictions"][ids["two.png"]]["reference"] == ids["src.png"]


class TestWarp:
    def test_along_matches_and_along_points(self, page: PageClient):
        target = page.photo_ids()["one.png"]
        response = page.request("GET", f"/photos/{target}/warp")
        assert response.headers["x-control-points"].endswith("reliable matches")
        for x, y in ((20, 20), (180, 25), (100, 100)):
            page.add_point(x, y)
        for (x, y), point in zip(((30, 30), (130, 30), (80, 130)), (1, 2, 3), strict=True):
            page.request("PUT", f"/points/{point}/pins/{target}", json={"x": x, "y": y})
        response = page.request("GET", f"/photos/{target}/warp")
        assert response.headers["x-control-points"] == "3 points"
        with Image.open(io.BytesIO(response.content)) as image:
            assert (image.mode, image.size) == ("RGBA", (160, 160))
            assert np.asarray(image)[60, 80, 3] == 255

    def test_too_few_points(self, page: PageClient):
        target = page.photo_ids()["one.png"]
        error = page.request("GET", f"/photos/{target}/warp?control_points=points", 422)["error"]
        assert "one.png has 0 points; a warp needs at least 3" in error
        assert "malformed" in page.request("GET", f"/photos/{target}/warp?control_points=magic", 422)["error"]
