"""``eval``: predictions, scores, plots, and the sentence that a mistake gets."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import write_image
from helpers.command import run
from helpers.passes import thing
from PIL import Image
from safetensors.torch import save_file

from transformatcher.config import model_config
from transformatcher.evaluation.predict import read_predictions
from transformatcher.inference.checkpoint import save_checkpoint
from transformatcher.inference.cues import PAIR_CUES, POINT_CUES
from transformatcher.models.backbones.resnet import ResNetFeatures
from transformatcher.models.build import build_matcher
from transformatcher.run_folder import read_arguments, read_run, write_run


def test_a_split_of_coco(coco_root: Path, tmp_path: Path, raw, capsys):
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


def test_writes_predictions_scores_and_plot(spair_root: Path, tmp_path: Path, raw, capsys):
    out = tmp_path / "out"
    assert run("eval", "--benchmark", "spair", "--root", spair_root, "--split", "val", "--out", out, *raw) == 0
    printed = capsys.readouterr().out
    assert "2 pairs, 4 points" in printed
    assert "truncation: hard" in printed
    scores = json.loads((out / "scores.json").read_text())
    assert set(scores) == {"n_pairs", "n_points", "frame", "pck", "per_category", "difficulty", "groups", "twins"}
    assert set(scores["pck"]) == {"img", "bbox", "bbox-kp", "bbox-padded"}
    assert set(scores["pck"]["bbox"]["0.1"]) == {"per_pair", "per_point", "ci95", "per_point_ci95"}
    assert len((out / "predictions.jsonl").read_text().splitlines()) == 2
    assert (out / "scores.png").stat().st_size > 10_000


def test_in_several_passes(spair_root: Path, tmp_path: Path, raw, capsys):
    """Predictions then hold what calibrate needs, and run.json what they depend on."""
    out = tmp_path / "out"
    arguments = ["--benchmark", "spair", "--root", spair_root, "--split", "val", "--out", out, *raw]
    assert run("eval", *arguments, "--set", "coarse_to_fine.passes=2", "--try-mirrored") == 0
    assert read_arguments(out)["try_mirrored"]
    assert read_arguments(out)["model"]["coarse_to_fine"]["passes"] == 2
    for one in read_predictions(out):
        assert np.array(one.cues).shape == (2, len(POINT_CUES))
        assert np.array(one.pair_cues).shape == (len(PAIR_CUES),)
        assert isinstance(one.mirrored, bool)
    capsys.readouterr()
    assert run("eval", *arguments) == 2  # once is another run
    assert "differs in" in capsys.readouterr().err


def test_unrelated_pairs_need_two_categories(spair_root: Path, tmp_path: Path, raw, capsys):
    arguments = ["--benchmark", "spair", "--root", spair_root, "--split", "val", "--out", tmp_path / "out", *raw]
    assert run("eval", *arguments, "--unrelated") == 2
    assert "need at least two categories" in capsys.readouterr().err


def test_pictures_of_the_worst_and_the_best_pairs(pascal_root: Path, tmp_path: Path, raw, capsys):
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
def test_every_benchmark(benchmark, pascal_root, willow_root, coco_root, tmp_path: Path, raw):
    root = {"pfpascal": pascal_root, "pfwillow": willow_root, "coco": coco_root}[benchmark]
    arguments = ["--benchmark", benchmark, "--root", root, "--out", tmp_path / "out", "--limit", 3]
    assert run("eval", *arguments, *raw) == 0


def test_a_seed_of_pairs_is_kept(coco_root, willow_root, tmp_path: Path, raw):
    for benchmark, root, seed, kept in (("coco", coco_root, 3, 3), ("coco", coco_root, 0, 0),
                                        ("pfwillow", willow_root, 3, None)):  # fmt: skip
        out = tmp_path / f"{benchmark}-{seed}"
        assert run("eval", "--benchmark", benchmark, "--root", root, "--out", out, "--seed", seed, *raw) == 0
        assert read_arguments(out)["seed"] == kept


def test_settings_from_a_file(willow_root: Path, tmp_path: Path, raw, capsys):
    config = tmp_path / "raw.toml"
    config.write_text("[model]\nimage_size = [96, 64]\nstages = [3]\n")
    arguments = ["--benchmark", "pfwillow", "--root", willow_root, "--out", tmp_path / "out", *raw[:-4]]
    assert run("eval", *arguments, "--config", config) == 0
    assert read_arguments(tmp_path / "out")["model"]["image_size"] == [96, 64]
    config.write_text("[model]\nimage_sise = 3\n")
    assert run("eval", *arguments, "--config", config) == 2
    assert "raw.toml: unknown key 'image_sise'; did you mean 'image_size'?" in capsys.readouterr().err


def test_other_photos_are_another_run(willow_root: Path, tmp_path: Path, raw, capsys):
    arguments = ["--benchmark", "pfwillow", "--root", willow_root, "--out", tmp_path / "out", *raw]
    assert run("eval", *arguments) == 0
    write_image(willow_root / "car(G)" / "b.png", seed=7)  # another photo of the same name
    assert run("eval", *arguments) == 2
    assert "differs in photos (" in capsys.readouterr().err
    stored = read_run(tmp_path / "out")
    assert stored is not None
    arguments_before = {key: value for key, value in stored.arguments.items() if key != "photos"}
    write_run(tmp_path / "out", replace(stored, arguments=arguments_before))  # as an earlier version wrote it
    assert run("eval", *arguments) == 0


def test_other_weights_are_another_run(willow_root: Path, tmp_path: Path, raw, backbone_file, capsys):
    arguments = ["--benchmark", "pfwillow", "--root", willow_root, "--out", tmp_path / "out", *raw]
    assert run("eval", *arguments) == 0
    save_file(ResNetFeatures("resnet50_v1").state_dict(), backbone_file)  # the same file, trained further
    assert run("eval", *arguments) == 2
    assert "differs in weights_hash (" in capsys.readouterr().err


def test_checkpoint(willow_root: Path, tmp_path: Path):
    settings = {"backbone": "resnet50", "stages": [3], "match2match.depth": 1, "image_size": 64}
    settings |= {"sampler": "bilinear"}
    config = model_config(settings)
    save_checkpoint(tmp_path / "model", build_matcher(config), config)
    arguments = ["--benchmark", "pfwillow", "--root", willow_root, "--weights", tmp_path / "model"]
    assert run("eval", *arguments, "--out", tmp_path / "out") == 0


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
def test_mistakes(spair_root: Path, tmp_path: Path, raw, capsys, arguments, message):
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


def test_image_that_does_not_decode(spair_root: Path, tmp_path: Path, raw, capsys):
    (spair_root / "JPEGImages" / "cat" / "b.jpg").write_bytes(b"garbage")
    arguments = ["--benchmark", "spair", "--root", spair_root, "--split", "val", "--out", tmp_path / "out"]
    assert run("eval", *arguments, *raw) == 2
    assert "b.jpg: not an image that can be decoded" in capsys.readouterr().err


def test_unwritable_folder(spair_root: Path, tmp_path: Path, raw, capsys):
    (tmp_path / "file").write_text("")
    arguments = ["--benchmark", "spair", "--root", spair_root, "--split", "val", "--out", tmp_path / "file" / "x"]
    assert run("eval", *arguments, *raw) == 2
    assert "cannot be created as a folder" in capsys.readouterr().err
    assert run("eval", *arguments[:-1], tmp_path / "file", "--overwrite", *raw) == 2


def test_pairs_of_a_list_face_as_they_do(spair_root: Path, tmp_path: Path, raw, capsys):
    arguments = ["--benchmark", "spair", "--root", spair_root, "--split", "val", "--out", tmp_path / "out", *raw]
    assert run("eval", *arguments, "--facing", "opposite") == 2
    assert "--facing opposite: pairs are drawn from annotated objects (coco); spair lists its pairs" in (
        capsys.readouterr().err
    )


PARTS = {
    "nose": (20, 20), "tail": (90, 25), "left ear": (55, 40), "right ear": (30, 70), "left paw": (80, 70),
    "right paw": (60, 75), "left eye": (45, 20), "right eye": (75, 45), "left hip": (15, 60), "right hip": (95, 60),
}  # fmt: skip
LEFT = tuple(part for part in PARTS if part.startswith("left"))
HIDDEN = [(), LEFT, (*LEFT, "nose")]


@pytest.fixture
def zoo(tmp_path: Path) -> Path:
    """Six categories with three photos each; the second and the third show their object from the right."""
    images, annotations = [], []
    for number in range(18):
        x, y = 20 + 30 * (number % 3), 30
        name = f"{number}.png"
        (tmp_path / "zoo" / "images").mkdir(parents=True, exist_ok=True)
        picture = thing(number // 3, (160, 240), (x, y, x + 110, y + 90))
        Image.fromarray(picture).save(tmp_path / "zoo" / "images" / name)
        shown = [(x + u, y + v, 2) if part not in HIDDEN[number % 3] else (0, 0, 0) for part, (u, v) in PARTS.items()]
        flat = [value for point in shown for value in point]
        images.append({"id": number, "file_name": name, "width": 240, "height": 160})
        annotations.append(
            {"id": number, "image_id": number, "category_id": number // 3, "bbox": [x, y, 110, 90], "keypoints": flat}
        )
    categories = [{"id": n, "name": f"animal {n}", "keypoints": list(PARTS)} for n in range(6)]
    data = {"images": images, "annotations": annotations, "categories": categories}
    (tmp_path / "zoo" / "annotations.json").write_text(json.dumps(data))
    return tmp_path / "zoo"


def test_from_photos_to_a_calibration(zoo: Path, tmp_path: Path, raw, capsys):
    """What eval writes of pairs, of all their points and of unrelated pairs is what calibrate reads."""
    arguments = ["--benchmark", "coco", "--root", zoo, "--limit", 24, *raw, "--set", "coarse_to_fine.passes=2"]
    for name, options in (("shown", []), ("all", ["--all-points"]), ("unrelated", ["--unrelated"])):
        assert run("eval", *arguments, *options, "--out", tmp_path / name) == 0
        assert ("every match is wrong" in capsys.readouterr().out) is (name == "unrelated")
    shown, everything, unrelated = (read_predictions(tmp_path / name) for name in ("shown", "all", "unrelated"))
    assert any(one.absent_kps for one in shown)
    for few, many in zip(shown, everything, strict=True):
        assert few.name == many.name
        assert np.array(many.absent_cues).reshape(-1, len(POINT_CUES)).shape == (len(many.absent_kps), len(POINT_CUES))
        assert (few.cues == many.cues) is (not few.absent_kps)  # other crops where more points are asked for
    assert all(one.name.count(" / ") == 1 and not one.absent_kps for one in unrelated)
    folders = [tmp_path / name for name in ("all", "unrelated")]
    assert run("calibrate", *folders, f"{folders[0]}/", "--check", tmp_path / "shown", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["calibration"]["fitted_on"] == "all + unrelated"
    assert report["same_kind"]["unrelated"] == 24
    assert report["same_kind"]["auc"] > 0.6  # of a network that was not trained
    assert run("eval", *arguments, "--unrelated", "--seed", 1, "--out", tmp_path / "unrelated") == 2
    assert "seed" in capsys.readouterr().err
    assert run("analyse", "failures", tmp_path / "unrelated", "--root", zoo, "--out", tmp_path / "failures.html") == 0
    assert "--unrelated" in (tmp_path / "failures.html").read_text(encoding="utf-8")


def test_which_way_they_face(zoo: Path, tmp_path: Path, raw, capsys):
    arguments = ["--benchmark", "coco", "--root", zoo, "--limit", 4, *raw, "--out", tmp_path / "out"]
    assert run("eval", *arguments, "--facing", "same", "--set", "coarse_to_fine.passes=2", "--try-mirrored") == 0
    assert "matched with the mirrored source: " in capsys.readouterr().out
    assert read_arguments(tmp_path / "out")["facing"] == "same"
    assert run("eval", *arguments[:-1], tmp_path / "other", "--try-mirrored") == 2
    assert "--try-mirrored: this model matches in one pass" in capsys.readouterr().err


def test_damaged_cues(zoo: Path, tmp_path: Path, raw, capsys):
    arguments = ["--benchmark", "coco", "--root", zoo, "--limit", 6, *raw, "--set", "coarse_to_fine.passes=2"]
    out = tmp_path / "out"
    assert run("eval", *arguments, "--out", out) == 0
    lines = [json.loads(line) for line in (out / "predictions.jsonl").read_text().splitlines()]
    for key, value in (("cues", [[0.0]]), ("cues", []), ("absent_cues", [[0.0] * 9] * 9), ("pair_cues", [0.0])):
        changed = [lines[0] | {key: value}, *lines[1:]]
        (out / "predictions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in changed))
        capsys.readouterr()
        assert run("calibrate", out) == 2
        assert "cues of another version" in capsys.readouterr().err
