"""The studio in a real browser: an annotator's whole way, and the temporary project of ``serve``."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from transformatcher.data.coco_keypoints import load_coco_objects

TESTS = Path(__file__).parents[2]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="signals"),
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (Debian: apt install chromium)"),
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in ("playwright", "fastapi", "uvicorn")),
        reason="playwright or the extra 'serve' is not installed",
    ),
]


def use_studio(way: str, folder: Path) -> dict[str, Any]:
    """Run a way of studio_journey.py; what it has seen."""
    command = [sys.executable, str(TESTS / "helpers" / "studio_journey.py"), way, str(CHROMIUM), str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    seen: dict[str, Any] = json.loads(result.stdout)
    return seen


def test_from_an_empty_folder_to_an_exported_file(tmp_path: Path):
    seen = use_studio("annotate", tmp_path)
    truth = seen["truth"]
    assert len(truth) == 40
    assert seen["errors"] == []
    assert seen["unlabelled"] == []
    assert seen["empty"] == "There are no photos in this folder yet"

    assert len(set(seen["marked"])) == 3
    predicted = {name: points for name, (state, points) in seen["predicted"].items() if state == "predicted"}
    assert set(predicted) == set(truth) - set(seen["marked"])
    errors = [np.hypot(x - truth[name][part][0], y - truth[name][part][1])
              for name, points in predicted.items() for part, _, _, x, y in points]  # fmt: skip
    assert len(errors) == 37 * 8
    assert np.median(errors) < 8
    for name in seen["marked"]:
        state, points = seen["predicted"][name]
        assert state == "reviewed"
        assert {source for _, source, *_ in points} == {"person"}
        for part, _, _, x, y in points:
            np.testing.assert_allclose((x, y), truth[name][part], atol=1)

    shown = {
        "left front wheel": "placed by you", "right front wheel": "predicted", "left back wheel": "predicted",
        "right back wheel": "predicted", "left headlight": "predicted", "right headlight": "placed by you, hidden",
        "left mirror": "not there, as you said", "right mirror": "placed by you",
    }  # fmt: skip
    assert seen["in this window"] == shown
    assert seen["in the other window"] == shown
    assert seen["undone"] == ["Undone: right mirror: move", "Undone: left mirror: not there"]
    assert seen["redone"] == ["Done again: left mirror: not there"]
    assert seen["after a reload"] == [True, True]

    assert seen["lost by kill -9"] == []
    assert seen["while it is away"] == "not there, as you said"
    assert seen["after the outage"] == ["right front wheel", "person", 0, None, None]
    assert seen["undone after a restart"] == ["Undone: right front wheel: not there", "Undone: left mirror: not there"]
    assert seen["redone after a restart"] == [
        "Done again: left mirror: not there", "Done again: right front wheel: not there"
    ]  # fmt: skip

    check_export(tmp_path, seen)


def check_export(folder: Path, seen: dict[str, Any]) -> None:
    """The exported file has what a person said, and nothing else; in another project it says the same."""
    done = {*seen["marked"], *seen["accepted"], seen["corrected"]}
    assert len(done) == 8
    objects = {Path(item.image).name: item for item in load_coco_objects(folder / "keypoints.json", folder / "photos")}
    assert set(objects) == done
    for name in done:
        _, points = seen["exported"][name]
        assert objects[name].kp_names == tuple(part for part, *_ in points)
        assert objects[name].visible.tolist() == [visibility == 2 for _, _, visibility, _, _ in points]
        there = [(x, y) for _, _, visibility, x, y in points if visibility == 2]
        np.testing.assert_allclose(objects[name].kps_px[objects[name].visible], there, atol=0.011)
    _, points = seen["exported"][seen["corrected"]]
    assert [(source, visibility) for _, source, visibility, _, _ in points] == [
        ("person", 2), ("person", 0), *[("accepted", 2)] * 3, ("person", 1), ("person", 0), ("accepted", 2)
    ]  # fmt: skip
    wheel = points[0][3:]
    expected = np.add(seen["truth"][seen["corrected"]]["left front wheel"], (20, 10))
    np.testing.assert_allclose(wheel, expected, atol=1)

    def without_source(project: dict[str, Any]) -> dict[str, Any]:
        return {
            name: [state, [(part, visibility, x, y) for part, _, visibility, x, y in points]]
            for name, (state, points) in project.items()
        }

    assert without_source(seen["imported"]) == without_source(seen["exported"])
    assert {source for _, points in seen["imported"].values() for _, source, *_ in points} == {"import"}
    assert seen["import"].startswith("keypoints.json: 8 photos, 8 objects, ")
    assert seen["import undone"] == "Undone: import keypoints.json"


def test_the_temporary_project_of_serve(tmp_path: Path):
    seen = use_studio("serve", tmp_path)
    assert seen["errors"] == []
    assert seen["empty"] == "Mark keypoints once, find them everywhere"
    assert seen["alert"].startswith("notes.jpg: not a photo in a supported format")
    names = {"cat_a.jpg", "cat_b.jpg", "cat_c.jpg", "mirrored.png"}
    assert set(seen["predicted"]) == names
    for name in names - {"cat_a.jpg"}:
        state, points = seen["predicted"][name]
        assert (state, len(points)) == ("predicted", 6)
        assert {source for _, source, *_ in points} == {"prediction"}
    assert any(state.startswith("predicted ") for state in seen["shown"].values())
    assert "temporary" in seen["banner"]

    (item,) = [o for o in load_coco_objects(tmp_path / "keypoints.json", tmp_path) if o.image.name == "mirrored.png"]
    part, _, _, x, y = seen["predicted"]["mirrored.png"][1][0]
    assert item.kp_names[0] == part
    np.testing.assert_allclose(item.kps_px[0], (x + 12, y - 8), atol=1)
    assert (seen["there"], seen["there afterwards"]) == (True, False)
