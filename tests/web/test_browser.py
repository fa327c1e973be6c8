"""The page in a real browser, from upload to exported file."""

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from transformatcher.data.coco_keypoints import load_coco_objects

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (Debian: apt install chromium)")
@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("playwright", "fastapi", "uvicorn")),
    reason="playwright or the extra 'serve' is not installed",
)
def test_from_upload_to_exported_file(tmp_path: Path):
    script = Path(__file__).parents[1] / "helpers" / "page_driver.py"
    command = [sys.executable, str(script), str(CHROMIUM), str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    seen = json.loads(result.stdout)
    assert seen["error"].startswith("notes.jpg: not a photo in a supported format")
    assert seen["cards"] == ["cat_b.jpg", "cat_c.jpg"]
    assert seen["hover"] == ["Under the pointer", "Under the pointer"]
    assert seen["phone width"] == 360
    assert seen["unlabelled"] == []
    # the browser itself reports the response to the file that is not a photo, and nothing else
    assert [line for line in seen["console"] if "422" not in line] == []

    source, first, second = load_coco_objects(tmp_path / "keypoints.json", tmp_path)
    assert source.kp_names == ("point 1", "forehead")
    assert source.category == "cat"
    np.testing.assert_allclose(source.kps_px[0], [0.58 * 451, 0.8 * 300], atol=1)
    np.testing.assert_allclose(source.kps_px[1] - source.kps_px[0], [-10, -90], atol=1)  # relative to the click
    assert first.visible.tolist() == [True, True]
    assert second.visible.tolist() == [True, False]
    pinned = [entry["pinned"] for entry in json.loads((tmp_path / "keypoints.json").read_text())["annotations"]]
    assert pinned == [[True, True], [True, False], [False, True]]
