"""An installed package → it matches the example photos, learns a step, saves, loads and serves; run by check_versions.

Takes the interpreter that it is run with, and nothing of the repository: what is imported is what was installed.
"""

import json
import re
import subprocess
import sys
import tempfile
import time
import warnings
from importlib.resources import as_file, files
from importlib.util import find_spec
from pathlib import Path
from urllib.request import Request, urlopen

import numpy as np
import torch

from transformatcher import Matcher, build_matcher, model_config
from transformatcher.data.synthetic import synthetic_pair
from transformatcher.images import to_tensor
from transformatcher.inference.checkpoint import load_checkpoint, save_checkpoint

POINTS = "168,115;262,241"
HEADERS = {"X-Transformatcher": "1"}


def check_command(folder: Path) -> np.ndarray:
    """``transformatcher match`` on two example photos, as a person calls it."""
    command = [
        sys.executable,
        "-m",
        "transformatcher",
        "match",
        str(folder / "cat_a.jpg"),
        str(folder / "cat_b.jpg"),
    ]
    result = subprocess.run([*command, "--keypoints", POINTS, "--json"], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return np.array(json.loads(result.stdout)["keypoints1"])


def check_python(folder: Path, printed: np.ndarray) -> None:
    """The same by hand; and a photo matched with itself stays where it is."""
    matcher = Matcher.from_pretrained()
    points = [[float(x) for x in point.split(",")] for point in POINTS.split(";")]
    matches = matcher.match(folder / "cat_a.jpg", folder / "cat_b.jpg", points)
    np.testing.assert_allclose(matches.keypoints1, printed, atol=0.5)
    assert matches.is_match.all(), matches.confidence
    same = matcher.match(folder / "cat_a.jpg", folder / "cat_a.jpg", points)
    assert np.abs(same.keypoints1 - points).max() < 15, same.keypoints1


def check_learning() -> None:
    """One step of each variant, forward and backward, on the path that is taken by itself."""
    pair, _ = synthetic_pair(0, size=(64, 64))
    src, trg = (to_tensor(image, (64, 64))[None] for image in (pair.src_image, pair.trg_image))
    for variant in ("paper", "released"):
        model = build_matcher(
            model_config({"variant": variant, "backbone": "resnet50", "image_size": 64, "match2match": {"depth": 1}})
        )
        flow = model(src, trg)
        flow.trg_norm.square().mean().backward()
        learned = [p.grad for p in model.refiner.parameters()]
        assert all(g is not None and torch.isfinite(g).all() for g in learned), variant


def check_checkpoint(folder: Path) -> None:
    """Saved and loaded, the same model."""
    config = model_config({"backbone": "resnet50", "image_size": 64, "match2match": {"depth": 1}})
    model = build_matcher(config).eval()
    save_checkpoint(folder, model, config)
    again, read = load_checkpoint(folder)
    assert read == config
    for key, value in model.state_dict().items():
        assert torch.equal(value, again.state_dict()[key]), key


def check_server() -> str:
    """The studio is served, where its libraries are installed, and finds the points of the example photos."""
    if find_spec("uvicorn") is None or find_spec("fastapi") is None:
        return "not checked, as the extra 'serve' is not installed"
    command = [sys.executable, "-m", "transformatcher", "serve", "--port", "0", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = next(found[0] for line in server.stdout if (found := re.search(r"http://\S+(?=/)", line)))
            with urlopen(address) as page:
                assert b"<html" in page.read()
            with urlopen(Request(f"{address}/api/examples", b"", HEADERS)) as answer:
                state = json.load(answer)
            assert state["counts"]["marked"] == 1, state
            end = time.monotonic() + 120
            while state["counts"]["predicted"] < 2 and time.monotonic() < end:
                with urlopen(f"{address}/api/changes?since={state['revision']}") as answer:
                    state = json.load(answer)["project"]
            assert state["counts"]["predicted"] == 2, state
        finally:
            server.terminate()
            server.communicate()
    return "served"


if __name__ == "__main__":
    warnings.simplefilter("error", DeprecationWarning)
    with as_file(files("transformatcher") / "examples") as photos, tempfile.TemporaryDirectory() as spare:
        check_python(photos, check_command(photos))
        check_learning()
        check_checkpoint(Path(spare) / "checkpoint")
        versions = f"torch {torch.__version__}, numpy {np.__version__}, Python {sys.version.split()[0]}"
        print(f"{versions}; server {check_server()}")
