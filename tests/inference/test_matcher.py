"""Two photos → points: one target, many targets, the model in the package."""

import json
import pickle
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from helpers.hub import write_cache
from PIL import Image

from transformatcher.cli.main import main
from transformatcher.config import model_config
from transformatcher.errors import InputError
from transformatcher.inference.calibration import Calibration, Calibrations
from transformatcher.inference.checkpoint import SHIPPED, find_checkpoint
from transformatcher.inference.matcher import Matcher
from transformatcher.models.build import build_matcher

SAVED = {"backbone": "resnet50", "stages": [1], "grid": [4, 5], "image_size": 32, "sampler": "bilinear"}
SAVED |= {"match2match.depth": 1}
FILES = ["calibration.json", "config.json", "model.safetensors"]


@pytest.fixture(scope="module")
def small() -> Matcher:
    config = model_config(SAVED)
    return Matcher(build_matcher(config), config, "cpu", Calibrations(Calibration(1.0, 0.5, -0.5)))


def assert_same(one: Matcher, other: Matcher, photo: np.ndarray) -> None:
    assert (one.config, one.calibration) == (other.config, other.calibration)
    points = [[10.0, 20.0], [60.0, 40.0]]
    a, b = (matcher.match(photo, photo, points) for matcher in (one, other))
    np.testing.assert_array_equal(a.keypoints1, b.keypoints1)
    np.testing.assert_array_equal(a.confidence, b.confidence)


class TestSaved:
    def test_round_trip(self, small: Matcher, photo: np.ndarray, tmp_path: Path):
        small.save_pretrained(tmp_path / "new" / "folder")
        assert sorted(file.name for file in (tmp_path / "new" / "folder").iterdir()) == FILES
        for path in (tmp_path / "new" / "folder", str(tmp_path / "new" / "folder" / "model.safetensors")):
            assert_same(Matcher.from_pretrained(path, "cpu"), small, photo)

    def test_a_calibration_of_other_weights_does_not_stay(self, small: Matcher, tmp_path: Path):
        small.save_pretrained(tmp_path)
        Matcher(small.model, small.config, "cpu").save_pretrained(str(tmp_path))
        assert Matcher.from_pretrained(tmp_path, "cpu").calibration == Calibrations()

    def test_settings_are_kept(self, small: Matcher, photo: np.ndarray, tmp_path: Path):
        small.save_pretrained(tmp_path / "a")
        wide = Matcher.from_pretrained(tmp_path / "a", "cpu", settings={"image_size": [48, 64], "kernel_sigma": 2.5})
        assert (wide.config.image_size, wide.config.kernel_sigma) == ((48, 64), 2.5)
        wide.save_pretrained(tmp_path / "b")
        assert_same(Matcher.from_pretrained(tmp_path / "b", "cpu"), wide, photo)
        with pytest.raises(InputError, match="depth is fixed by its training"):
            Matcher.from_pretrained(tmp_path / "a", settings={"match2match.depth": 2})
        with pytest.raises(InputError, match="unknown key 'kernel_simga'; did you mean 'kernel_sigma'"):
            Matcher.from_pretrained(tmp_path / "a", settings={"kernel_simga": 2})

    def test_weights_of_another_size_are_not_saved_under_it(self, tmp_path: Path):
        config = model_config({**SAVED, "grid": None, "match2match.position": "absolute"})
        Matcher(build_matcher(config), config, "cpu").save_pretrained(tmp_path / "a")
        wide = Matcher.from_pretrained(tmp_path / "a", "cpu", settings={"image_size": [32, 64]})
        with pytest.raises(InputError, match="save it at the image_size of its training"):
            wide.save_pretrained(tmp_path / "b")
        assert not (tmp_path / "b").exists()

    def test_what_cannot_be_written_is_named(self, small: Matcher, tmp_path: Path):
        (tmp_path / "file").write_text("")
        with pytest.raises(InputError, match="file"):
            small.save_pretrained(tmp_path / "file")


class TestHub:
    @pytest.fixture
    def cache(self, small: Matcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
        small.save_pretrained(tmp_path / "saved")
        files = {name: tmp_path / "saved" / name for name in FILES}
        write_cache(tmp_path / "hub", "cats/small", files)
        write_cache(tmp_path / "hub", "cats/uncalibrated", {name: files[name] for name in FILES[1:]})
        write_cache(tmp_path / "hub", "cats/half", {"config.json": files["config.json"]})
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.chdir(tmp_path)
        return tmp_path / "hub"

    @pytest.mark.usefixtures("cache")
    def test_from_its_cache(self, small: Matcher, photo: np.ndarray):
        assert_same(Matcher.from_pretrained("cats/small", "cpu"), small, photo)
        assert Matcher.from_pretrained("cats/uncalibrated", "cpu").calibration == Calibrations()

    @pytest.mark.usefixtures("cache")
    @pytest.mark.parametrize(
        ("name", "message"),
        [
            (
                "cats/large",
                r"^cats/large: no such checkpoint here; on the Hugging Face hub, .* not in the cache.*download",
            ),
            ("cats/half", r"cats/half, model\.safetensors: not in the cache"),
            ("cats", "^cats: no such checkpoint$"),
            ("a/b/c", "^a/b/c: no such checkpoint$"),
            (Path("cats/small"), "no such checkpoint$"),
        ],
    )
    def test_nothing_is_fetched_unasked(self, name, message):
        with pytest.raises(InputError, match=message):
            Matcher.from_pretrained(name)

    def test_a_folder_comes_first(self, cache: Path):
        (cache.parent / "cats" / "small").mkdir(parents=True)
        assert find_checkpoint("cats/small") == Path("cats/small")

    def test_fetched_when_asked(self, cache: Path, monkeypatch: pytest.MonkeyPatch):
        asked = {}

        def fetch(name: str, **options: object) -> str:
            asked.update(options, name=name)
            return str(next((cache / "models--cats--half").glob("snapshots/*")))

        monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
        with pytest.raises(InputError, match=r"cats/half: has no model\.safetensors on the Hugging Face hub"):
            Matcher.from_pretrained("cats/half", download=True, revision="v2")
        assert asked["local_files_only"] is False
        assert asked["revision"] == "v2"
        assert set(FILES) <= set(asked["allow_patterns"])

    @pytest.mark.usefixtures("cache")
    def test_without_network(self):
        with pytest.raises(InputError, match=r"cats/large: could not be downloaded from the Hugging Face hub \(.+\)"):
            Matcher.from_pretrained("cats/large", download=True)

    def test_without_the_package(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setitem(sys.modules, "huggingface_hub", None)
        with pytest.raises(InputError, match=r"no such checkpoint here; .* pip install huggingface_hub"):
            Matcher.from_pretrained("runs/mine")

    @pytest.mark.usefixtures("cache")
    def test_on_the_command_line(self, capsys):
        image = str(files("transformatcher") / "examples" / "cat_a.jpg")
        arguments = ["match", image, image, "--keypoints", "100,100", "--json", "--device", "cpu"]
        assert main([*arguments, "--weights", "cats/small"]) == 0
        assert '"calibrated": true' in capsys.readouterr().out
        assert main([*arguments, "--weights", "cats/large"]) == 2
        assert "--download" in capsys.readouterr().err


def test_a_photo_finds_itself_at_another_size(matcher: Matcher, photo: np.ndarray, tmp_path: Path):
    large = tmp_path / "large.png"
    Image.fromarray(photo).resize((400, 360)).save(large)
    points = [[50.0, 30.0], [120.0, 90.0]]
    matches = matcher.match(Image.fromarray(photo), str(large), points)
    np.testing.assert_allclose(matches.keypoints0, points, atol=1e-4)
    np.testing.assert_allclose(matches.keypoints1, np.array(points) * (2, 3), atol=25)
    assert ((matches.confidence > 0) & (matches.confidence <= 1)).all()


def test_without_keypoints_the_consistent_cells(matcher: Matcher, photo: np.ndarray):
    matches = matcher.match(photo, photo)
    assert len(matches.keypoints0) > 100  # of 12 × 12
    assert np.median(np.linalg.norm(matches.keypoints1 - matches.keypoints0, axis=1)) < 10


@pytest.fixture(scope="module")
def shipped() -> Matcher:
    return Matcher.from_pretrained(device="cpu")


class TestShippedModel:
    """The model in the package knows cats."""

    def test_it_is_small_and_described(self):
        assert (SHIPPED / "model.safetensors").stat().st_size <= 50e6
        assert "licence" in (SHIPPED / "MODEL_CARD.md").read_text(encoding="utf-8")

    @pytest.mark.parametrize(
        ("target", "marked"),  # by hand
        [
            ("cat_b.jpg", {"left eye": (212, 312), "right eye": (372, 298), "nose": (291, 412)}),
            ("cat_c.jpg", {"left eye": (225, 130), "right eye": (428, 135), "nose": (338, 282)}),
        ],
    )
    def test_eyes_and_nose(self, shipped: Matcher, target, marked):
        """Within a fifth of the distance between the eyes, so that no eye is taken for the other."""
        folder = Path(str(files("transformatcher") / "examples"))
        points = json.loads((folder / "cat_a.json").read_text(encoding="utf-8"))
        matches = shipped.match(folder / "cat_a.jpg", folder / target, [points[name] for name in marked])
        true = np.array(list(marked.values()))
        errors = np.linalg.norm(matches.keypoints1 - true, axis=1)
        assert (errors < np.linalg.norm(true[0] - true[1]) / 5).all()

    def test_a_photo_on_itself(self, shipped: Matcher):
        photo = str(files("transformatcher") / "examples" / "cat_c.jpg")
        matches = shipped.match(photo, photo)
        assert len(matches.keypoints0) > 100
        assert np.median(np.linalg.norm(matches.keypoints0 - matches.keypoints1, axis=1)) < 15


class TestManyTargets:
    def test_the_same_as_one_by_one(self, matcher: Matcher, photo: np.ndarray, monkeypatch: pytest.MonkeyPatch):
        targets = [photo, photo[:, ::-1].copy(), photo[::-1].copy()]
        points = [[50.0, 30.0], [120.0, 90.0]]
        matcher.model.backbone.eval()  # batch statistics would tell targets of one batch apart from others
        singly = [matcher.match(photo, target, points) for target in targets]
        encoded = []
        encode = matcher.network.encode
        monkeypatch.setattr(matcher.network, "encode", lambda images: encoded.append(len(images)) or encode(images))
        together = list(matcher.match_many(photo, iter(targets), points, batch=2))
        assert encoded == [3, 1]  # the source once, in front of the first two
        for one, many in zip(singly, together, strict=True):
            np.testing.assert_allclose(one.keypoints1, many.keypoints1, atol=1e-3)
            np.testing.assert_allclose(one.confidence, many.confidence, atol=1e-5)
        matcher.model.backbone.train()

    def test_kept_features_serve_again(self, matcher: Matcher, photo: np.ndarray):
        matcher.model.backbone.eval()
        src, trg = matcher.encode([photo, photo[::-1].copy()])
        pair = next(matcher.pairs(src, [trg]))
        np.testing.assert_allclose(
            pair.points([[50, 30]]).keypoints1,
            matcher.match(photo, photo[::-1].copy(), [[50, 30]]).keypoints1,
            atol=1e-3,
        )
        matcher.model.backbone.train()


def test_who_draws_nothing_waits_for_no_plots():
    """matplotlib and scipy take longer to import than two photos to match."""
    code = "import sys, transformatcher.cli.tables, transformatcher.inference.matcher\n"
    code += "sys.exit(bool({'matplotlib', 'scipy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class TestPrecision:
    PHOTOS = files("transformatcher") / "examples"
    POINTS = np.array([[168.0, 115], [262, 241], [200, 150]])

    def matcher(self, **options: object) -> Matcher:
        return Matcher.from_pretrained(device="cpu", settings={"coarse_to_fine.passes": 1}, **options)

    def test_float32_is_the_plain_model(self):
        matcher, plain = self.matcher(precision="float32"), self.matcher(precision="float32")
        plain.network = plain.model
        photos = [str(self.PHOTOS / name) for name in ("cat_a.jpg", "cat_b.jpg")]
        ours, theirs = (one.match(*photos, self.POINTS) for one in (matcher, plain))
        assert not np.array_equal(ours.keypoints1, theirs.keypoints1)  # folded
        np.testing.assert_allclose(ours.keypoints1, theirs.keypoints1, rtol=1e-5)
        np.testing.assert_allclose(ours.confidence, theirs.confidence, rtol=1e-4)

    def test_bfloat16_is_nearly_the_same(self):
        photos = [str(self.PHOTOS / name) for name in ("cat_a.jpg", "cat_b.jpg")]
        exact, rounded = (
            self.matcher(precision=precision).match(*photos, self.POINTS) for precision in ("float32", "bfloat16")
        )
        assert 0 < np.abs(exact.keypoints1 - rounded.keypoints1).max() < 3  # pixels
        assert np.abs(exact.confidence - rounded.confidence).max() < 0.05

    def test_the_weights_stay_as_they_were_read(self, tmp_path: Path):
        matcher = self.matcher(precision="bfloat16")
        matcher.match(str(self.PHOTOS / "cat_a.jpg"), str(self.PHOTOS / "cat_b.jpg"), self.POINTS)
        matcher.save_pretrained(tmp_path, half=True)
        assert (tmp_path / "model.safetensors").read_bytes() == (SHIPPED / "model.safetensors").read_bytes()

    def test_a_wrong_precision_gets_a_suggestion(self, capsys: pytest.CaptureFixture[str]):
        with pytest.raises(SystemExit, match="2"):
            main(["match", "a.jpg", "b.jpg", "--precision", "float16"])
        assert "--precision: not a choice: 'float16'; did you mean 'bfloat16'?" in capsys.readouterr().err


class TestPickle:
    PHOTOS = files("transformatcher") / "examples"
    POINTS = np.array([[168.0, 115], [262, 241], [200, 150]])

    @pytest.mark.parametrize("passes", [1, 2])
    def test_matches_without_the_model(self, passes: int):
        matcher = Matcher.from_pretrained(device="cpu", settings={"coarse_to_fine.passes": passes})
        targets = [str(self.PHOTOS / name) for name in ("cat_b.jpg", "cat_c.jpg", "cat_b.jpg")]
        *_, matches = matcher.match_many(str(self.PHOTOS / "cat_a.jpg"), targets, self.POINTS)
        data = pickle.dumps(matches)
        assert len(data) < 5e6  # two photos, and the scores of this pair alone
        again = pickle.loads(data)  # noqa: S301 - our own bytes
        np.testing.assert_array_equal(again.keypoints1, matches.keypoints1)
        np.testing.assert_array_equal(again.confidence, matches.confidence)
        assert (again.same_kind, again.mirrored) == (pytest.approx(matches.same_kind), matches.mirrored)
        np.testing.assert_allclose(again.flow_px, matches.flow_px, atol=1e-3)
        for points in (self.POINTS, self.POINTS + 3):
            np.testing.assert_allclose(
                again.pair.points(points).keypoints1, matches.pair.points(points).keypoints1, atol=1e-3
            )
        again.draw()

    def test_a_matcher_and_encoded_photos(self):
        matcher = Matcher.from_pretrained(device="cpu")
        photos = [str(self.PHOTOS / name) for name in ("cat_a.jpg", "cat_b.jpg")]
        wanted = matcher.match(*photos, self.POINTS)
        other, encoded = pickle.loads(pickle.dumps((matcher, matcher.encode(photos))))  # noqa: S301
        np.testing.assert_array_equal(other.match(*photos, self.POINTS).keypoints1, wanted.keypoints1)
        found = next(other.match_many(encoded[0], encoded[1:], self.POINTS))
        np.testing.assert_allclose(found.keypoints1, wanted.keypoints1, atol=1e-3)
        one, both = (len(pickle.dumps(photos)) for photos in (encoded[0], encoded))
        assert one < 0.7 * both  # without the batch that it was encoded in
