"""The command as a person meets it: exit codes, files, and the sentence a mistake gets."""

import json
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import write_image
from PIL import Image
from safetensors.torch import save_file

from transformatcher.cli.main import main
from transformatcher.cli.model_args import BACKBONES
from transformatcher.config import RESNETS, model_config
from transformatcher.data.coco_keypoints import load_coco_objects
from transformatcher.data.synthetic import synthetic_pair
from transformatcher.inference.checkpoint import save_checkpoint
from transformatcher.models.backbones.resnet import ResNetFeatures
from transformatcher.models.build import build_matcher
from transformatcher.run_folder import Run, read_arguments, write_run

SMALL = ["--set", "image_size=[64, 64]", "--set", "stages=[3]"]


@pytest.fixture(scope="module")
def backbone_file(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("weights") / "backbone.safetensors"
    save_file(ResNetFeatures("resnet50_v1").state_dict(), path)
    return str(path)


@pytest.fixture
def raw(backbone_file: str) -> list[str]:
    return ["--refiner", "none", "--backbone", "resnet50_v1", "--backbone-weights", backbone_file, *SMALL]


def run(*args: object) -> int:
    return main([str(arg) for arg in args])


class TestEval:
    def test_a_split_of_coco(self, coco_root: Path, tmp_path: Path, raw, capsys):
        """The official layout, where the split says which file is read."""
        official, out = tmp_path / "official", tmp_path / "out"
        (official / "annotations").mkdir(parents=True)
        (coco_root / "annotations.json").rename(official / "annotations" / "person_keypoints_val2017.json")
        (coco_root / "images").rename(official / "val2017")
        arguments = ["--benchmark", "coco", "--root", official, "--split", "val", "--limit", 2]
        assert run("eval", *arguments, "--out", out, *raw) == 0
        assert read_arguments(out)["split"] == "val"
        assert run("analyse", "failures", out, "--root", official, "--out", tmp_path / "failures.html") == 0
        capsys.readouterr()

    def test_writes_predictions_scores_and_plot(self, spair_root: Path, tmp_path: Path, raw, capsys):
        out = tmp_path / "out"
        assert run("eval", "--benchmark", "spair", "--root", spair_root, "--split", "val", "--out", out, *raw) == 0
        printed = capsys.readouterr().out
        assert "2 pairs, 4 points" in printed
        assert "truncation: hard" in printed
        scores = json.loads((out / "scores.json").read_text())
        assert set(scores) == {"n_pairs", "n_points", "frame", "pck", "per_category", "difficulty"}
        assert set(scores["pck"]) == {"img", "bbox", "bbox-kp", "bbox-padded"}
        assert set(scores["pck"]["bbox"]["0.1"]) == {"per_pair", "per_point", "ci95"}
        assert len((out / "predictions.jsonl").read_text().splitlines()) == 2
        assert (out / "scores.png").stat().st_size > 10_000

    def test_rescoring_needs_no_images(self, spair_root: Path, tmp_path: Path, raw, capsys):
        out = tmp_path / "out"
        run("eval", "--benchmark", "spair", "--root", spair_root, "--split", "val", "--out", out, *raw)
        for image in (spair_root / "JPEGImages" / "cat").iterdir():
            image.unlink()
        assert run("score", out, "--frame", "original", "--alpha", 0.2, "--pck-threshold", "img") == 0
        assert "frame original" in capsys.readouterr().out
        scores = json.loads((out / "scores-original-alpha-0.2.json").read_text())
        assert list(scores["pck"]["img"]) == ["0.2"]
        assert json.loads((out / "scores.json").read_text())["frame"] == "240x240"

    def test_pictures_of_the_worst_and_the_best_pairs(self, pascal_root: Path, tmp_path: Path, raw, capsys):
        rows = [f"JPEGImages/{a}.jpg,JPEGImages/{b}.jpg,8,{flip}" for a, b, flip in ("ab0", "ba0", "ab1")]
        (pascal_root / "trn_pairs.csv").write_text("\n".join(["source_image,target_image,class,flip", *rows, ""]))
        out = tmp_path / "out"
        arguments = ["--benchmark", "pfpascal", "--root", pascal_root, "--split", "trn", "--out", out, *raw]
        assert run("eval", *arguments, "--draw", 1) == 0
        assert f"pictures: {out / 'pictures'}" in capsys.readouterr().out
        words = [path.name[:8] for path in sorted((out / "pictures").iterdir())]
        assert words == ["best-01-", "worst-01"]
        assert run("eval", *arguments, "--draw", 9, "--frame", "original") == 0  # all three, none of them twice
        names = sorted(path.name for path in (out / "pictures").iterdir())
        assert [name[:9] for name in names] == ["worst-01-", "worst-02-", "worst-03-"]
        assert all(path.stat().st_size > 10_000 for path in (out / "pictures").iterdir())

    @pytest.mark.parametrize("benchmark", ["pfpascal", "pfwillow", "coco"])
    def test_every_benchmark(self, benchmark, pascal_root, willow_root, coco_root, tmp_path: Path, raw):
        root = {"pfpascal": pascal_root, "pfwillow": willow_root, "coco": coco_root}[benchmark]
        arguments = ["--benchmark", benchmark, "--root", root, "--out", tmp_path / "out", "--limit", 3]
        assert run("eval", *arguments, *raw) == 0

    def test_a_seed_of_pairs_is_kept(self, coco_root, willow_root, tmp_path: Path, raw):
        for benchmark, root, seed, kept in (("coco", coco_root, 3, 3), ("coco", coco_root, 0, 0),
                                            ("pfwillow", willow_root, 3, None)):  # fmt: skip
            out = tmp_path / f"{benchmark}-{seed}"
            assert run("eval", "--benchmark", benchmark, "--root", root, "--out", out, "--seed", seed, *raw) == 0
            assert read_arguments(out)["seed"] == kept

    def test_settings_from_a_file(self, willow_root: Path, tmp_path: Path, raw, capsys):
        config = tmp_path / "raw.toml"
        config.write_text("[model]\nimage_size = [96, 64]\nstages = [3]\n")
        arguments = ["--benchmark", "pfwillow", "--root", willow_root, "--out", tmp_path / "out", *raw[:-4]]
        assert run("eval", *arguments, "--config", config) == 0
        assert read_arguments(tmp_path / "out")["model"]["image_size"] == [96, 64]
        config.write_text("[model]\nimage_sise = 3\n")
        assert run("eval", *arguments, "--config", config) == 2
        assert "raw.toml: unknown key 'image_sise'; did you mean 'image_size'?" in capsys.readouterr().err

    def test_other_weights_are_another_run(self, willow_root: Path, tmp_path: Path, raw, backbone_file, capsys):
        arguments = ["--benchmark", "pfwillow", "--root", willow_root, "--out", tmp_path / "out", *raw]
        assert run("eval", *arguments) == 0
        save_file(ResNetFeatures("resnet50_v1").state_dict(), backbone_file)  # the same file, trained further
        assert run("eval", *arguments) == 2
        assert "differs in weights_hash (" in capsys.readouterr().err

    def test_checkpoint(self, willow_root: Path, tmp_path: Path):
        settings = {"backbone": "resnet50", "stages": [3], "match2match.depth": 1, "image_size": 64}
        settings |= {"sampler": "bilinear"}
        config = model_config(settings)
        save_checkpoint(tmp_path / "model", build_matcher(config), config)
        arguments = ["--benchmark", "pfwillow", "--root", willow_root, "--weights", tmp_path / "model"]
        assert run("eval", *arguments, "--out", tmp_path / "out") == 0


class TestBadInput:
    """Exit code 2, one sentence on stderr, nothing half-written."""

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--root", "nowhere"], "nowhere: no such folder"),
            (["--weights", "nowhere"], "nowhere: no such checkpoint"),
            (["--refiner", "none"], "--refiner none needs --backbone-weights"),
            (["--set", "match2match.depth=3"], "depth is fixed by its training; what can be changed is"),
            (["--backbone-weights", "x.safetensors"], "go with --refiner none"),
            (["RAW", "--split", "tst"], "split 'tst' is none of trn, val, test"),
            (["RAW", "--split", "trn"], "trn.txt: no such list of pairs"),
            (["RAW", "--set", "sampelr=soft"], "unknown key 'sampelr'; did you mean 'sampler'?"),
            (["RAW", "--frame", "wide"], "frame 'wide': expected"),
            (["RAW", "--device", "tpu9"], "choose auto"),
            (["RAW", "--device", "meta"], "torch cannot use it here"),
            (["RAW", "--weights", "x"], "--weights brings its own refiner"),
            (["RAW", "--set", "refiner=match2match"], "leave 'refiner' out of the settings"),
            (["RAW", "--set", "variant=paper"], "leave 'variant' out of the settings"),
            (["RAW", "--out", ""], "--out is empty"),
            (["--refiner", "none", "--backbone-weights", "gone.safetensors"], "gone.safetensors: no such weights file"),
        ],
    )
    def test_eval(self, spair_root: Path, tmp_path: Path, raw, capsys, arguments, message):
        out = tmp_path / "out"
        given = [part for argument in arguments for part in (raw if argument == "RAW" else [argument])]
        if "--root" in given and "--refiner" not in given:
            given += raw
        defaults = ["--benchmark", "spair", "--root", str(spair_root), "--split", "val", "--out", str(out)]
        assert run("eval", *defaults, *given) == 2
        captured = capsys.readouterr()
        assert message in captured.err
        assert captured.err.startswith("transformatcher eval: ")
        assert "Traceback" not in captured.err
        assert not (out / "scores.json").exists()

    def test_image_that_does_not_decode(self, spair_root: Path, tmp_path: Path, raw, capsys):
        (spair_root / "JPEGImages" / "cat" / "b.jpg").write_bytes(b"garbage")
        arguments = ["--benchmark", "spair", "--root", spair_root, "--split", "val", "--out", tmp_path / "out"]
        assert run("eval", *arguments, *raw) == 2
        assert "b.jpg: not an image that can be decoded" in capsys.readouterr().err

    def test_unwritable_folder(self, spair_root: Path, tmp_path: Path, raw, capsys):
        (tmp_path / "file").write_text("")
        arguments = ["--benchmark", "spair", "--root", spair_root, "--split", "val", "--out", tmp_path / "file" / "x"]
        assert run("eval", *arguments, *raw) == 2
        assert "cannot be made a folder" in capsys.readouterr().err
        assert run("eval", *arguments[:-1], tmp_path / "file", "--overwrite", *raw) == 2

    @pytest.mark.parametrize(
        "argv",
        [
            ["evla"],
            ["eval", "--benchmark", "spiar"],
            ["eval", "--batch", "0"],
            ["eval", "--seed", "-1"],
            ["eval", "--alpha", "nan"],
        ],
    )
    def test_usage(self, argv, capsys):
        with pytest.raises(SystemExit) as stopped:
            main(argv)
        assert stopped.value.code == 2
        assert "usage: transformatcher" in capsys.readouterr().err


class TestDataCheck:
    def test_exit_codes(self, spair_root: Path, tmp_path: Path, capsys):
        arguments = ["data", "check", "--benchmark", "spair", "--root"]
        assert run(*arguments, spair_root) == 0
        assert "no problem found" in capsys.readouterr().out
        (spair_root / "JPEGImages" / "cat" / "b.jpg").unlink()
        assert run(*arguments, spair_root) == 1
        assert "b.jpg: no such image file" in capsys.readouterr().out
        assert run(*arguments, spair_root, "--json") == 1
        assert len(json.loads(capsys.readouterr().out)["problems"]) == 1
        assert run(*arguments, tmp_path / "nowhere") == 2


class TestMatch:
    def test_json_and_picture(self, spair_root: Path, tmp_path: Path, raw, capsys):
        images = [spair_root / "JPEGImages" / "cat" / name for name in ("a.jpg", "b.jpg")]
        picture = tmp_path / "p.png"
        assert run("match", *images, "--keypoints", "10,20;30,40", "--json", "--out", picture, *raw) == 0
        result = json.loads(capsys.readouterr().out)
        assert result["keypoints0"] == [[10, 20], [30, 40]]
        assert len(result["keypoints1"]) == len(result["confidence"]) == 2
        assert picture.stat().st_size > 10_000
        points = tmp_path / "points.json"
        points.write_text('{"\\ud800": [10, 20]}')  # half a character
        assert run("match", *images, "--keypoints", points, *raw) == 2
        points.write_text('{"[/x] [bold]": [10, 20]}')
        capsys.readouterr()
        assert run("match", *images, "--keypoints", points, *raw) == 0
        assert "│ [/x] [bold] │" in capsys.readouterr().out
        points.write_text('{"nose": [10, 20]}')
        assert run("match", *images, "--keypoints", points, *raw) == 0
        printed = capsys.readouterr().out
        assert "1 points of a.jpg on b.jpg" in printed
        assert "│  nose │" in printed
        assert run("match", *images, "--keypoints", points, "--json", *raw) == 0
        assert json.loads(capsys.readouterr().out)["names"] == ["nose"]
        assert run("match", *images, *raw) == 0
        assert "no match" not in capsys.readouterr().out  # of what it picked by itself

    def test_flow_and_heatmap(self, spair_root: Path, tmp_path: Path, raw, capsys):
        images = [spair_root / "JPEGImages" / "cat" / name for name in ("a.jpg", "b.jpg")]
        arguments = ["--flow", tmp_path / "new" / "flow.jpg", "--heatmap", tmp_path / "heat.png"]
        assert run("match", *images, "--keypoints", "10,20", *arguments, *raw) == 0
        assert f"picture: {tmp_path / 'heat.png'}" in capsys.readouterr().out
        assert (tmp_path / "heat.png").stat().st_size > 10_000
        assert (tmp_path / "new" / "flow.jpg").stat().st_size > 10_000
        assert run("match", *images, "--keypoints", "10,20;30,40", *arguments[2:], "--json", *raw) == 0
        assert {"heat-1.png", "heat-2.png"} <= {path.name for path in tmp_path.iterdir()}

    def test_several_targets(self, spair_root: Path, tmp_path: Path, raw, capsys):
        a, b = (spair_root / "JPEGImages" / "cat" / name for name in ("a.jpg", "b.jpg"))
        other = write_image(tmp_path / "b.png", (50, 90), seed=5)
        points = ["--keypoints", "10,20;30,40", *raw]
        alone = []
        for target in (b, a, other):
            assert run("match", a, target, "--json", *points) == 0
            alone.append(json.loads(capsys.readouterr().out))
        out = tmp_path / "new" / "folder"
        pictures = ["--out", out, "--flow", out, "--heatmap", out]
        assert run("match", a, b, a, other, "--json", "--batch", 2, "--threads", 1, *pictures, *points) == 0
        together = json.loads(capsys.readouterr().out)
        assert [entry.pop("target") for entry in together] == [str(b), str(a), str(other)]
        for one, many in zip(alone, together, strict=True):
            assert one.keys() == many.keys()
            for key in ("keypoints0", "keypoints1", "confidence"):
                np.testing.assert_allclose(one[key], many[key], atol=2e-3)
        kinds = ("", "-flow", "-heatmap-1", "-heatmap-2")
        names = {f"{stem}{kind}.png" for stem in ("a-b", "a-a", "a-b (2)") for kind in kinds}
        assert {path.name for path in out.iterdir()} == names
        assert run("match", a, b, other, *points) == 0
        printed = capsys.readouterr().out
        assert "2 points of a.jpg on b.jpg" in printed
        assert "2 points of a.jpg on b.png" in printed

    def test_many_points_are_no_file_name(self, spair_root: Path, raw, capsys):
        images = [spair_root / "JPEGImages" / "cat" / name for name in ("a.jpg", "b.jpg")]
        assert run("match", *images, "--keypoints", ";".join(["10,20"] * 200), "--json", *raw) == 0
        assert len(json.loads(capsys.readouterr().out)["keypoints1"]) == 200

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["--heatmap", "heat.png"], "name points with --keypoints"),
            (["--flow", "flow.txt"], "a picture's name ends in .png"),
            (["--out", "p.png", "--flow", "p.png"], "p.png: two pictures cannot have one name"),
            (["OTHER", "--out", "p.png"], "--out p.png: 2 targets make a picture each; name a folder"),
            (["OTHER", "--flow", ""], "--flow is empty; name a folder"),
            (["--keypoints", "10;20"], "expected 'x,y;x,y'"),
            (["--keypoints", "nowhere.json"], "nowhere.json: no such file"),
            (["--keypoints", ";"], "no point there"),
            (["--keypoints", ""], "no point there"),
            (["--out", "."], ".: a folder; name the picture itself"),
            (["--keypoints", "10,2000"], "lies outside the image of 80 × 60 pixels"),
            (["--keypoints", "nan,1"], "a keypoint is NaN or infinite"),
            (["--out", "picture.txt"], "a picture's name ends in .png"),
        ],
    )
    def test_mistakes(self, spair_root: Path, raw, capsys, options, message):
        images = [spair_root / "JPEGImages" / "cat" / name for name in ("a.jpg", "b.jpg")]
        options = [images[0] if option == "OTHER" else option for option in options]
        assert run("match", *images, *options, *raw) == 2
        assert message in capsys.readouterr().err

    def test_demo(self, tmp_path: Path, capsys):
        assert run("demo", "--out", tmp_path) == 0
        assert "6 points of cat_a.jpg on cat_b.jpg" in capsys.readouterr().out
        assert sorted(path.name for path in tmp_path.iterdir()) == [
            "cat_a-cat_b.png", "cat_a-cat_c.png", "cat_a.jpg", "cat_a.json", "cat_b.jpg", "cat_c.jpg",
        ]  # fmt: skip


class TestWarp:
    def test_pictures(self, spair_root: Path, tmp_path: Path, raw, capsys):
        image = spair_root / "JPEGImages" / "cat" / "a.jpg"
        arguments = ["--keypoints", "10,10;70,12;40,50;15,35", "--out", tmp_path / "new"]
        assert run("warp", image, image, *arguments, *raw) == 0
        assert "a.jpg warped onto a.jpg through 4 matches" in capsys.readouterr().out
        assert sorted(path.name for path in (tmp_path / "new").iterdir()) == [
            "morph.gif", "side-by-side.png", "warped.png",
        ]  # fmt: skip
        with Image.open(tmp_path / "new" / "warped.png") as warped:
            assert (warped.mode, warped.size) == ("RGBA", (80, 60))
            assert 0 < np.asarray(warped)[..., 3].mean() <= 255

    def test_through_all_confident_matches(self, tmp_path: Path, raw, capsys):
        photo = synthetic_pair(3, size=(120, 200))[0].src_image
        assert isinstance(photo, np.ndarray)
        Image.fromarray(photo).save(tmp_path / "photo.png")
        finer = [*raw, "--set", "image_size=[128, 128]", "--set", "stages=[2]", "--set", "temperature=0.002"]
        assert run("warp", *[tmp_path / "photo.png"] * 2, "--out", tmp_path / "out", *finer) == 0
        assert "photo.png warped onto photo.png through" in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["--keypoints", "10,20;30,40"], "2 of 2 keypoints of"),
            (["--keypoints", "10,20;30,40"], "a warp takes 3 or more"),
            (["--keypoints", "10,10;10,10;10,10"], "distinct matches; it takes 3 or more"),
            (["--keypoints", "nowhere.json"], "nowhere.json: no such file"),
            (["--out", ""], "--out is empty"),
        ],
    )
    def test_mistakes(self, spair_root: Path, tmp_path: Path, raw, capsys, options, message):
        images = [spair_root / "JPEGImages" / "cat" / name for name in ("a.jpg", "b.jpg")]
        assert run("warp", *images, "--out", tmp_path / "out", *options, *raw) == 2
        assert message in capsys.readouterr().err
        assert not (tmp_path / "out").exists()


class TestBadPhotos:
    """Whatever is wrong with a photo: one sentence that names it, exit code 2, nothing left behind."""

    @pytest.fixture(params=["truncated", "empty", "dot", "huge", "text", "gone", "folder", "long"])
    def bad(self, request, tmp_path: Path) -> tuple[Path, str]:
        path = tmp_path / "bad" / f"{request.param}.jpg"
        path.parent.mkdir()
        if request.param == "truncated":
            content = write_image(path).read_bytes()
            path.write_bytes(content[: len(content) // 2])
            return path, "not an image that can be decoded"
        if request.param == "empty":
            path.write_bytes(b"")
            return path, "the file is empty"
        if request.param == "dot":
            return write_image(path, (1, 1)), "1 × 1 pixels; a photo to be matched has at least"
        if request.param == "huge":
            write_image(path).write_bytes(_with_size(path.read_bytes(), 30_000, 30_000))
            return path, "too many pixels to be decoded"
        if request.param == "text":
            path.write_text("Dear all,")
            return path, "not an image that can be decoded"
        if request.param == "gone":
            return path, "no such image file"
        if request.param == "folder":
            path.mkdir()
            return path, "a folder, not an image"
        return path.with_name("x" * 300), "File name too long"

    def test_match_and_warp(self, bad: tuple[Path, str], spair_root: Path, tmp_path: Path, raw, capsys):
        path, message = bad
        good, out = spair_root / "JPEGImages" / "cat" / "a.jpg", tmp_path / "out"
        for argv in (
            ["match", good, path, "--out", out / "picture.png"],
            ["match", path, good, "--json"],
            ["match", good, good, path, good, "--out", out],  # in the middle of several
            ["match", path, good, good, "--flow", out],
            ["warp", good, path, "--out", out],
            ["warp", path, good, "--out", out],
        ):
            assert run(*argv, *raw) == 2
            captured = capsys.readouterr()
            assert captured.err.startswith(f"transformatcher {argv[0]}: {path}: ")
            assert message in captured.err
            assert captured.err.count("\n") == 1
            assert captured.out == ""
            assert not out.exists()

    def test_propagate(self, bad: tuple[Path, str], coco_root: Path, tmp_path: Path, raw, capsys):
        path, message = bad
        out = tmp_path / "out.json"
        notes = json.loads((coco_root / "annotations.json").read_text())
        notes["images"][0]["file_name"] = str(path)
        (coco_root / "other.json").write_text(json.dumps(notes))
        target = write_image(tmp_path / "photos" / "x.jpg")
        assert run("propagate", coco_root / "other.json", target, "--out", out, *raw) == 2
        captured = capsys.readouterr()
        assert str(path) in captured.err
        assert message.replace(" image", "") in captured.err.replace(" image", "") or "no such file" in captured.err
        assert "Traceback" not in captured.err
        assert not list(tmp_path.glob("out.json*"))


def _with_size(jpeg: bytes, width: int, height: int) -> bytes:
    """A JPEG that claims another size."""
    start = jpeg.index(b"\xff\xc0") + 5
    return jpeg[:start] + struct.pack(">HH", height, width) + jpeg[start + 4 :]


class TestCalibrate:
    @pytest.fixture
    def predicted(self, tmp_path: Path) -> Path:
        """Points that are right where they are sharp; one pair has points that are absent, and dull."""
        rng = np.random.default_rng(0)
        folder = tmp_path / "val"
        folder.mkdir()
        write_run(folder, Run("eval", {"benchmark": "pfpascal"}))
        lines = []
        for pair in range(20):
            peak = rng.uniform(0.01, 0.9, 10)
            right = rng.random(10) < peak
            lines.append({
                "name": str(pair), "category": "cat", "src_size": [100, 100], "trg_size": [100, 100],
                "kp_index": list(range(10)), "src_kps": [[1.0, 1.0]] * 10, "trg_kps": [[50.0, 50.0]] * 10,
                "pred_kps": [[50.0, 50.0] if good else [90.0, 90.0] for good in right], "peak": peak.tolist(),
                "trg_bbox": None, "difficulty": {}, "cycle_error": [0.1] * 10,
            })  # fmt: skip
        lines[0] |= {"absent_kps": [[1.0, 1.0]] * 4, "absent_peak": [0.01] * 4, "absent_cycle_error": [2.0] * 4}
        (folder / "predictions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return folder

    def test_folders_of_the_same_name(self, predicted: Path, tmp_path: Path, capsys):
        other = tmp_path / "elsewhere" / predicted.name
        shutil.copytree(predicted, other)
        lines = [json.loads(line) for line in (other / "predictions.jsonl").read_text().splitlines()]
        for line in lines:
            line["peak"] = [1 - peak for peak in line["peak"]]  # where the sharp ones are wrong
        (other / "predictions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        assert run("calibrate", predicted, "--json") == 0
        alone = json.loads(capsys.readouterr().out)
        assert run("calibrate", predicted, "--check", other, "--json") == 0
        both = json.loads(capsys.readouterr().out)
        assert both["calibration"] == alone["calibration"]
        assert list(both["sets"]) == [str(predicted), str(other)]
        assert run("calibrate", predicted, "--weights", tmp_path / "typo") == 2
        assert "typo: no checkpoint folder, it has no config.json" in capsys.readouterr().err
        assert not (tmp_path / "typo").exists()

    def test_points_that_are_absent(self, predicted: Path, tmp_path: Path, capsys):
        other = tmp_path / "older"
        shutil.copytree(predicted, other)
        lines = [json.loads(line) for line in (other / "predictions.jsonl").read_text().splitlines()]
        kept = [{key: value for key, value in line.items() if not key.startswith("absent")} for line in lines]
        (other / "predictions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in kept))
        plot = tmp_path / "confidence.png"
        assert run("calibrate", predicted, "--check", other, "--json", "--plot", plot) == 0
        sets = json.loads(capsys.readouterr().out)["sets"]
        assert (sets["val"]["absent"], sets["val"]["absent_found"]) == (4, 0)
        assert sets["val"]["auc_with_absent"] > sets["val"]["auc"] > 0.7  # all dull ones are wrong
        assert (sets["older"]["absent"], sets["older"]["auc_with_absent"]) == (0, None)
        assert sets["older"]["auc"] == sets["val"]["auc"]
        assert plot.stat().st_size > 10_000
        assert run("calibrate", predicted, "--check", other) == 0
        assert "auc with absent" in capsys.readouterr().out


class TestPropagate:
    @pytest.fixture
    def photos(self, tmp_path: Path) -> Path:
        for seed, name in enumerate(("x.jpg", "y.png")):
            write_image(tmp_path / "photos" / name, seed=seed)
        return tmp_path / "photos"

    def test_writes_a_file_that_reads_again(self, coco_root: Path, photos: Path, tmp_path: Path, raw, capsys):
        out = tmp_path / "out.json"
        arguments = [coco_root / "annotations.json", photos, "--out", out, *raw]
        assert run("propagate", *arguments, "--category", "dog", "--batch", 1) == 0
        assert f"4 keypoints on 2 images\nannotations: {out}" in capsys.readouterr().out
        objects = load_coco_objects(out, photos)
        assert [(item.category, item.image) for item in objects] == [("dog", photos / n) for n in ("x.jpg", "y.png")]
        assert run("propagate", *arguments) == 2
        assert "out.json: is there already" in capsys.readouterr().err
        assert run("propagate", *arguments, "--overwrite", "--json") == 0
        summary = json.loads(capsys.readouterr().out)
        assert summary == {
            "out": str(out), "images": 2, "annotations": 4, "keypoints": 12, "no_match": 0, "failed": {},
        }  # fmt: skip

    def test_a_bad_image_makes_exit_code_1(self, coco_root: Path, photos: Path, tmp_path: Path, raw, capsys):
        (photos / "bad.jpg").write_bytes(b"garbage")
        assert run("propagate", coco_root / "annotations.json", photos, "--out", tmp_path / "out.json", *raw) == 1
        captured = capsys.readouterr()
        assert "12 keypoints on 2 images" in captured.out
        assert "bad.jpg: not an image that can be decoded" in captured.err
        assert len(json.loads((tmp_path / "out.json").read_text())["info"]["failed"]) == 1

    def test_an_interruption_says_how_to_go_on(
        self, coco_root: Path, photos: Path, tmp_path: Path, raw, capsys, monkeypatch: pytest.MonkeyPatch
    ):
        def interrupted(*_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr("transformatcher.inference.propagate.to_record", interrupted)
        assert run("propagate", coco_root / "annotations.json", photos, "--out", tmp_path / "out.json", *raw) == 130
        assert "the same command (without --overwrite) continues where it stopped" in capsys.readouterr().err
        monkeypatch.undo()
        assert run("propagate", coco_root / "annotations.json", photos, "--out", tmp_path / "out.json", *raw) == 0

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["--out", "out.txt"], "its name ends in .json"),
            (["--out", ""], "--out is empty"),
            (["--category", "horse"], "no category is called 'horse'; it has cat, dog"),
            (["--threshold", "0.3"], "confidence is not calibrated"),
            (["--images-root", "nowhere"], "no such file"),
            (["--device", "tpu9"], "choose auto"),
        ],
    )
    def test_mistakes(self, coco_root: Path, photos: Path, tmp_path: Path, raw, capsys, options, message):
        arguments = [coco_root / "annotations.json", photos, "--out", tmp_path / "out.json", *options]
        assert run("propagate", *arguments, *raw) == 2
        assert message in capsys.readouterr().err
        assert not list(tmp_path.glob("out.*"))

    def test_inputs_that_are_not_there(self, coco_root: Path, photos: Path, tmp_path: Path, raw, capsys):
        assert run("propagate", tmp_path / "gone.json", photos, "--out", tmp_path / "out.json", *raw) == 2
        assert "gone.json: no such file" in capsys.readouterr().err
        assert run("propagate", coco_root / "annotations.json", "gone", "--out", tmp_path / "out.json", *raw) == 2
        assert "gone: no such image or folder" in capsys.readouterr().err


def test_what_the_system_refuses_is_one_sentence(spair_root: Path, raw, capsys, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "somewhere/else")

    monkeypatch.setattr("transformatcher.cli.match.load_matcher", refuse)
    image = spair_root / "JPEGImages" / "cat" / "a.jpg"
    assert run("match", image, image, *raw) == 2
    assert capsys.readouterr().err == "transformatcher match: somewhere/else: cannot be used (Permission denied)\n"


def test_names_that_the_parser_repeats_are_the_real_ones():
    assert RESNETS == BACKBONES


def test_help_and_import_do_not_wait_for_torch():
    code = "import sys, transformatcher.cli.main; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    help_text = subprocess.run([sys.executable, "-m", "transformatcher", "--help"], capture_output=True, check=True)
    assert b"eval" in help_text.stdout
