import json
import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import write_image
from PIL import Image

from transformatcher import __version__
from transformatcher.cli.main import main
from transformatcher.config import model_config
from transformatcher.errors import InputError
from transformatcher.inference import export as exporting
from transformatcher.inference.calibration import Calibration, Calibrations, save_calibration
from transformatcher.inference.checkpoint import save_checkpoint
from transformatcher.inference.export import ExportWrapper, export
from transformatcher.inference.export_parity import TOLERANCE, Parity, load_file
from transformatcher.inference.export_quantize import quantize_weights
from transformatcher.inference.matcher import Matcher
from transformatcher.models.build import build_matcher
from transformatcher.models.fused.fold import position_features
from transformatcher.models.rotary import AxialRotary

onnx, onnxruntime, _ = map(pytest.importorskip, ("onnx", "onnxruntime", "onnxscript"))
EXAMPLE = Path(__file__).parents[2] / "examples" / "onnx_match.py"
# Wide, so that an exchanged height and width shows; sharp, so that a match is one.
SMALL = {
    "backbone": "resnet50", "stages": [1, 2], "layers": [2, 4], "image_size": [32, 48], "match2match.depth": 1,
    "correlation_skip": 200, "match2match.conv_branch_depth": 2, "kernel_on": "probabilities", "kernel_sigma": 2.5,
    "sampler": "bilinear",
}  # fmt: skip


def checkpoint(folder: Path, **settings: object) -> Path:
    config = model_config(SMALL | settings)
    model = build_matcher(config)
    torch.nn.init.normal_(model.refiner.score.weight)  # so that blocks and convolutions have something to say
    torch.nn.init.normal_(model.refiner.consensus.score.weight)
    save_checkpoint(folder, model, config)
    save_calibration(folder, Calibrations(Calibration(bias=1.0, sharpness=0.5, consistency=-1.0)))
    return folder


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> Path:
    torch.manual_seed(0)
    return checkpoint(tmp_path_factory.mktemp("weights"))


@pytest.fixture(scope="module")
def once(weights: Path) -> dict[str, Callable[[object], object]]:
    """The small model, traced and translated once for all tests."""
    program = exporting.trace(Matcher.from_pretrained(weights, device="cpu"))
    model = exporting.to_onnx(program)
    return {"trace": lambda _: program, "to_onnx": lambda _: deepcopy(model)}


@pytest.fixture
def quick(once, monkeypatch) -> None:
    for name, function in once.items():
        monkeypatch.setattr(exporting, name, function)


@pytest.fixture(scope="module")
def exported(weights: Path, once, tmp_path_factory) -> dict[str, Path]:
    """Every kind of file, written by the command."""
    folder = tmp_path_factory.mktemp("exported")
    names = {"float32": "model.onnx", "float16": "half.onnx", "int8": "small.onnx", "torch": "model.pt2"}
    with pytest.MonkeyPatch.context() as patch:
        for name, function in once.items():
            patch.setattr(exporting, name, function)
        for kind, name in names.items():
            precision = [] if kind == "torch" else ["--precision", kind]
            assert main(["export", "--weights", str(weights), "--out", str(folder / name), *precision]) == 0
    return {kind: folder / name for kind, name in names.items()}


def pixels(seed: int, n: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 255, (n, 32, 48, 3), dtype=np.uint8)


@pytest.mark.parametrize("kind", ["float32", "torch"])
@pytest.mark.parametrize(("n", "points_each"), [(1, 1), (2, 7), (5, 3)])
def test_a_file_says_what_the_matcher_says(weights: Path, exported, kind: str, n: int, points_each: int):
    matcher = Matcher.from_pretrained(weights, device="cpu")
    run = load_file(exported[kind], "torch" if kind == "torch" else "onnx")
    src, trg = pixels(1, n), pixels(2, n)
    points = np.random.default_rng(3).uniform(-1, 1, (n, points_each, 2)).astype(np.float32)
    keypoints1, confidence, flow, flow_confidence = run(src, trg, points)
    assert flow.shape == (n, 16, 24, 2)
    assert flow_confidence.shape == (n, 16, 24)
    for i in range(n):
        matches = matcher.match(src[i], trg[i], (points[i] + 1) / 2 * (48, 32))
        np.testing.assert_allclose((keypoints1[i] + 1) / 2 * (48, 32), matches.keypoints1, atol=0.05)
        np.testing.assert_allclose(confidence[i], matches.confidence, atol=1e-3)
        np.testing.assert_allclose((flow[i] + 1) / 2 * (48, 32), matches.flow_px, atol=0.05)
        np.testing.assert_allclose(flow_confidence[i], matches.flow_confidence, atol=1e-3)


def test_what_an_onnx_file_says_of_itself(exported):
    session = onnxruntime.InferenceSession(str(exported["float32"]))
    said = session.get_modelmeta().custom_metadata_map
    assert json.loads(said["image_size"]) == [32, 48]
    assert said["transformatcher"] == __version__
    assert json.loads(said["mean"]) == [0.485, 0.456, 0.406]
    assert json.loads(said["std"]) == [0.229, 0.224, 0.225]
    assert said["calibrated"] == "true"
    assert [(put.name, put.type, put.shape) for put in session.get_inputs()] == [
        ("src", "tensor(uint8)", ["batch", 32, 48, 3]),
        ("trg", "tensor(uint8)", ["batch", 32, 48, 3]),
        ("keypoints0", "tensor(float)", ["batch", "keypoints", 2]),
    ]
    assert [(put.name, put.shape) for put in session.get_outputs()] == [
        ("keypoints1", ["batch", "keypoints", 2]),
        ("confidence", ["batch", "keypoints"]),
        ("flow", ["batch", 16, 24, 2]),
        ("flow_confidence", ["batch", 16, 24]),
    ]
    model = onnx.load(exported["float32"])
    onnx.checker.check_model(model, full_check=True)
    assert {one.domain for one in model.opset_import} <= {"", "ai.onnx"}  # any runtime will do
    assert next(one.version for one in model.opset_import if one.domain in ("", "ai.onnx")) >= 18


def test_fewer_bits_are_smaller_files_of_nearly_the_same(exported):
    sizes = [exported[kind].stat().st_size for kind in ("float32", "float16", "int8")]
    assert sizes[1] < 0.65 * sizes[0]
    assert sizes[2] < 0.45 * sizes[0]
    inputs = pixels(1), pixels(2), np.zeros((1, 1, 2), np.float32)
    whole, *others = (load_file(exported[kind], "onnx")(*inputs)[3] for kind in ("float32", "float16", "int8"))
    for confidence in others:
        assert abs(confidence - whole).mean() < 0.02
    for kind in ("float16", "int8"):
        onnx.checker.check_model(onnx.load(exported[kind]), full_check=True)


def test_the_example_runs_without_torch(weights: Path, exported, tmp_path: Path):
    photos = [str(write_image(tmp_path / f"{seed}.png", (32, 48), seed)) for seed in (1, 2)]  # the size it takes
    blocked = "import sys, runpy; sys.modules['torch'] = sys.modules['transformatcher'] = None; "
    command = [sys.executable, "-c", blocked + f"runpy.run_path({str(EXAMPLE)!r}, run_name='__main__')"]
    done = subprocess.run(
        [*command, str(exported["float32"]), *photos, "20,10", "48,32", "0,0"],
        capture_output=True,
        text=True,
        check=True,
    )
    matcher = Matcher.from_pretrained(weights, device="cpu")
    wanted = matcher.match(*photos, [[20, 10], [48, 32], [0, 0]])
    found = [[float(n) for n in line.split(" -> ")[1].split()[0].split(",")] for line in done.stdout.splitlines()]
    np.testing.assert_allclose(found, wanted.keypoints1, atol=0.15)
    confidence = [float(line.split()[-1]) for line in done.stdout.splitlines()]
    np.testing.assert_allclose(confidence, wanted.confidence, atol=0.0015)


@pytest.mark.parametrize("arguments", [[], ["model.onnx", "a.jpg", "b.jpg"], ["model.onnx", "a.jpg", "b.jpg", "5"]])
def test_the_example_says_how_to_use_it(arguments):
    done = subprocess.run([sys.executable, str(EXAMPLE), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: onnx_match.py [-h] model source target X,Y [X,Y ...]")


@pytest.mark.parametrize(
    ("settings", "backend"),
    [
        ({"variant": "released"}, "fused"),
        ({"variant": "released", "match2match.position": "absolute"}, "eager"),
        ({"grid": [5, 6], "upsample": 1, "kernel_on": "logits"}, "eager"),
        ({"match2match.conv_branch_depth": 0}, "fused"),
    ],
    ids=["released", "absolute", "eager", "blocks alone"],
)
def test_other_models_are_traced(settings, backend: str, tmp_path: Path):
    config = model_config(SMALL | {"stages": [1], "layers": [0, 1]} | settings)
    matcher = Matcher(build_matcher(config), config, "cpu")
    matcher.model.set_backend(backend)
    found, _ = export(matcher, tmp_path / "model.pt2")
    assert found.flow_px < 0.05
    assert found.confidence < 1e-3


@pytest.mark.parametrize("frequencies", [None, 1])
def test_positions_for_export_are_the_same(frequencies):
    position = AxialRotary(heads=8, head_dim=4, frequencies=frequencies)
    positions = position_features(position, (3, 4, 2, 5))
    recorded = positions._features_for_export(torch.float64, torch.device("cpu"))
    torch.testing.assert_close(recorded, positions.features(torch.float64, torch.device("cpu")), rtol=0, atol=1e-12)


def test_tracing_keeps_nothing(weights: Path):
    matcher = Matcher.from_pretrained(weights, device="cpu")
    wrapper = ExportWrapper(matcher.model, matcher.calibration.one_pass)
    inputs = (*(torch.from_numpy(pixels(seed, 2)) for seed in (1, 2)), torch.zeros(2, 3, 2))
    with torch.no_grad():
        before = wrapper(*inputs)
        torch.export.export(wrapper, inputs)
        after = wrapper(*inputs)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.usefixtures("quick")
def test_a_file_that_differs_is_not_left(weights: Path, tmp_path: Path, monkeypatch, capsys):
    def wrong(model, precision: str) -> None:
        quantize_weights(model, precision)
        for tensor in model.graph.initializer:
            if tensor.name.endswith(".scales"):
                tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor)[::-1], tensor.name))

    monkeypatch.setattr(exporting, "quantize_weights", wrong)
    monkeypatch.setitem(TOLERANCE, "int8", Parity(np.inf, 0.001, np.inf, np.inf))
    out = tmp_path / "model.onnx"
    out.write_text("what was there")
    assert main(["export", "--weights", str(weights), "--out", str(out), "--precision", "int8"]) == 1
    assert "differs from the model by" in capsys.readouterr().err
    assert out.read_text() == "what was there"
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.usefixtures("quick")
def test_compared_on_a_benchmark(weights: Path, spair_root: Path, tmp_path: Path, capsys):
    arguments = ["--benchmark", "spair", "--root", str(spair_root), "--limit", "1"]
    out = str(tmp_path / "model.pt2")
    assert main(["export", "--weights", str(weights), "--out", out, *arguments, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    model, file = report["measured"]
    assert model["pck"] == file["pck"]
    assert list(model["pck"]) == ["0.05", "0.1", "0.15"]
    assert file["megabytes"] == report["megabytes"] > 1
    assert report["parity"]["flow_px"] < 0.1
    assert main(["export", "--weights", str(weights), "--out", out, *arguments]) == 0
    printed = capsys.readouterr().out
    assert "parity: differs from the model by" in printed
    assert "allowed: 0.1 px of flow at most" in printed
    assert "PCK @ 0.1" in printed


def test_without_the_packages(weights: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setattr("transformatcher.errors.find_spec", lambda name: None if name == "onnxscript" else object())
    with pytest.raises(InputError, match=r"an ONNX file needs the package onnxscript: pip install onnxscript"):
        export(Matcher.from_pretrained(weights, device="cpu"), tmp_path / "model.onnx")


@pytest.mark.slow
def test_the_shipped_model_and_real_photos(tmp_path: Path):
    out = tmp_path / "model.onnx"
    assert main(["export", "--out", str(out)]) == 0
    examples = Path(exporting.__file__).parents[1] / "examples"
    photos = [str(examples / f"cat_{letter}.jpg") for letter in "ab"]
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), str(out), *photos, "168,115", "262,241"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    one_pass = Matcher.from_pretrained(device="cpu", settings={"coarse_to_fine.passes": 1})
    matches = one_pass.match(*photos, [[168, 115], [262, 241]])
    for line, point, sure in zip(done.stdout.splitlines(), matches.keypoints1, matches.confidence, strict=True):
        found, confidence = line.split(" -> ")[1].split(" confidence ")
        place = [float(n) for n in found.split(",")]
        np.testing.assert_allclose(place, point, atol=0.1)
        assert abs(float(confidence) - sure) < 0.0015
    with Image.open(photos[0]) as photo:
        assert photo.size != (272, 272)
