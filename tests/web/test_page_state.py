"""What the page is told about a session."""

import base64

import numpy as np
from helpers.web_session import fake_photo

from transformatcher.web.page_state import heatmaps_json, session_json
from transformatcher.web.session import XY, Session


def test_session(session: Session):
    session.add_photo(fake_photo("three.jpg"), as_source=False)
    session.pin(1, "two", None)
    state = session_json(session)
    assert state["source"] == "src"
    assert [photo["ready"] for photo in state["photos"]] == [True, True, True, False]
    assert (state["photos"][1]["width"], state["photos"][1]["height"]) == (200, 100)
    (point,) = state["points"]
    assert (point["id"], point["name"], point["x"], point["y"]) == (1, "nose", 20, 30)
    assert point["predictions"] == {
        "one": {"x": 22, "y": 32, "confidence": 0.6, "is_match": True, "pinned": False, "reference": "src"},
        "two": {"x": None, "y": None, "confidence": 1, "is_match": False, "pinned": True, "reference": ""},
    }


def test_numbers_are_rounded(session: Session):
    session.change_point(1, XY(20.123, 30))
    assert session_json(session)["points"][0]["x"] == 20.12


def test_heatmaps():
    values = np.arange(6, dtype=np.uint8).reshape(2, 3)
    (heatmap,) = heatmaps_json({"one": values}).values()
    assert (heatmap["width"], heatmap["height"]) == (3, 2)
    assert list(base64.b64decode(heatmap["values"])) == [0, 1, 2, 3, 4, 5]
