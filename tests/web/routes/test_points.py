"""Predicting, adding, changing, correcting and deleting points."""

from typing import Any

import numpy as np
import pytest
from helpers.web_client import PageClient, picture

from transformatcher.inference.matcher import Matcher


class TestPoints:
    def test_any_position_on_all_targets(self, page: PageClient, matcher: Matcher):
        ids = page.photo_ids()
        answer = page.request("GET", "/match?x=50&y=30&heatmap=true")
        assert set(answer["predictions"]) == {ids["one.png"], ids["two.png"]}
        prediction = answer["predictions"][ids["one.png"]]
        (source,), (target,) = matcher.encode([picture(3)]), matcher.encode([picture(7, (160, 160))])
        expected = next(matcher.pairs(source, [target])).points([[50, 30]])
        np.testing.assert_allclose([prediction["x"], prediction["y"]], expected.keypoints1[0], atol=0.1)
        assert 0 < prediction["confidence"] <= 1
        assert prediction["reference"] == ids["src.png"]
        heatmap = answer["heatmaps"][ids["one.png"]]
        assert heatmap["width"] * heatmap["height"] > 100
        assert page.request("GET", "/match?x=50&y=30")["heatmaps"] == {}

    def test_named_points(self, page: PageClient):
        state = page.add_point(50, 30)
        assert state["points"][0]["name"] == "point 1"
        state = page.request("PATCH", f"/points/{state['added']}", json={"name": " left  eye "})
        assert state["points"][0]["name"] == "left eye"
        before = state["points"][0]["predictions"]
        state = page.request("PATCH", "/points/1", json={"x": 150, "y": 90})
        assert state["points"][0]["predictions"] != before
        assert page.request("GET", "/points/1/heatmaps")["heatmaps"].keys() == before.keys()
        assert page.request("DELETE", "/points/1")["points"] == []
        assert "has been deleted" in page.request("DELETE", "/points/1", 404)["error"]

    @pytest.mark.parametrize(
        ("method", "path", "body", "status", "message"),
        [
            ("POST", "/points", {"x": 500, "y": 1}, 422, "lies outside the image of 200 × 120 pixels"),
            ("POST", "/points", {"x": 1}, 422, "The request is malformed: y"),
            ("POST", "/points", {"x": 1, "y": 1, "name": "n" * 81}, 422, "malformed: name"),
            ("POST", "/points", {"x": 1, "y": 1, "z": 1}, 422, "malformed: z"),
            ("PATCH", "/points/1", {"x": 1}, 422, "both x and y"),
            ("PUT", "/points/7/pins/x", {"x": 1, "y": 1}, 404, "point has been deleted"),
            ("PUT", "/points/1/pins/x", {"x": 1, "y": 1}, 404, "photo has been removed"),
            ("GET", "/match?x=nan&y=1", None, 422, "malformed: x"),
            ("GET", "/match?x=-1&y=1", None, 422, "lies outside"),
        ],
    )
    def test_mistakes(self, page: PageClient, method: str, path: str, body: Any, status: int, message: str):
        page.add_point(50, 30)
        assert message in page.request(method, path, status, json=body)["error"]

    def test_not_json(self, page: PageClient):
        headers = {"Content-Type": "application/json"}
        for content in (b'{"x": NaN, "y": 1}', b"{"):
            assert "malformed" in page.request("POST", "/points", 422, content=content, headers=headers)["error"]

    def test_no_source_yet(self, client: Any):
        assert "no source photo yet" in PageClient(client).request("GET", "/match?x=1&y=1", 422)["error"]


class TestCorrection:
    def test_it_improves_the_other_targets(self, page: PageClient):
        """The targets are one photo, unlike the source: a point corrected on one target is right on the other."""
        page.add_point(50, 30)
        ids, truth = page.photo_ids(), np.array([100.0, 70.0])
        one, two = ids["one.png"], ids["two.png"]

        def error(state: Any) -> float:
            prediction = state["points"][0]["predictions"][two]
            return float(np.linalg.norm(truth - [prediction["x"], prediction["y"]]))

        before = page.request("GET", "")
        after = page.request("PUT", f"/points/1/pins/{one}", json={"x": truth[0], "y": truth[1]})
        assert after["points"][0]["predictions"][one] == {
            "x": 100, "y": 70, "confidence": 1, "is_match": True, "pinned": True, "reference": "",
        }  # fmt: skip
        assert after["points"][0]["predictions"][two]["reference"] == one
        assert error(after) < 15
        assert error(after) < error(before)
        undone = page.request("DELETE", f"/points/1/pins/{one}")
        assert undone["points"] == before["points"]

    def test_not_visible(self, page: PageClient):
        page.add_point(50, 30)
        target = page.photo_ids()["one.png"]
        state = page.request("PUT", f"/points/1/pins/{target}", json={})
        prediction = state["points"][0]["predictions"][target]
        assert (prediction["x"], prediction["is_match"], prediction["pinned"]) == (None, False, True)
