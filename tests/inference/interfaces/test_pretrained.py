"""Saved and loaded again: folders, the Hugging Face hub's cache, torch.hub."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.hub import write_cache

from transformatcher.cli.main import main
from transformatcher.config import model_config
from transformatcher.data.synthetic import synthetic_pair
from transformatcher.errors import InputError
from transformatcher.inference.calibration import Calibration
from transformatcher.inference.checkpoint import SHIPPED, find_checkpoint
from transformatcher.inference.matcher import Matcher
from transformatcher.models.build import build_matcher

ROOT = Path(__file__).parents[3]
SMALL = {"backbone": "resnet50", "stages": [1], "grid": [4, 5], "image_size": 32, "sampler": "bilinear"}
SMALL |= {"match2match.depth": 1}
FILES = ["calibration.json", "config.json", "model.safetensors"]


@pytest.fixture(scope="module")
def small() -> Matcher:
    config = model_config(SMALL)
    return Matcher(build_matcher(config), config, "cpu", Calibration(1.0, 0.5, -0.5))


@pytest.fixture(scope="module")
def photo() -> np.ndarray:
    return synthetic_pair(3, size=(60, 80))[0].src_image


def assert_same(one: Matcher, other: Matcher, photo: np.ndarray) -> None:
    assert (one.config, one.calibration) == (other.config, other.calibration)
    points = [[10.0, 20.0], [60.0, 40.0]]
    a, b = (matcher.match(photo, photo, points) for matcher in (one, other))
    np.testing.assert_array_equal(a.keypoints1, b.keypoints1)
    np.testing.assert_array_equal(a.confidence, b.confidence)


class TestFolders:
    def test_round_trip(self, small: Matcher, photo: np.ndarray, tmp_path: Path):
        small.save_pretrained(tmp_path / "new" / "folder")
        assert sorted(file.name for file in (tmp_path / "new" / "folder").iterdir()) == FILES
        for path in (tmp_path / "new" / "folder", str(tmp_path / "new" / "folder" / "model.safetensors")):
            assert_same(Matcher.from_pretrained(path, "cpu"), small, photo)

    def test_a_calibration_of_other_weights_does_not_stay(self, small: Matcher, tmp_path: Path):
        small.save_pretrained(tmp_path)
        Matcher(small.model, small.config, "cpu").save_pretrained(str(tmp_path))
        assert Matcher.from_pretrained(tmp_path, "cpu").calibration is None

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
        config = model_config({**SMALL, "grid": None, "match2match.position": "absolute"})
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
        assert Matcher.from_pretrained("cats/uncalibrated", "cpu").calibration is None

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
        image = str(ROOT / "src" / "transformatcher" / "examples" / "cat_a.jpg")
        arguments = ["match", image, image, "--keypoints", "100,100", "--json", "--device", "cpu"]
        assert main([*arguments, "--weights", "cats/small"]) == 0
        assert '"calibrated": true' in capsys.readouterr().out
        assert main([*arguments, "--weights", "cats/large"]) == 2
        assert "--download" in capsys.readouterr().err


class TestTorchHub:
    def load(self, **settings: object) -> Matcher:
        return torch.hub.load(str(ROOT), "transformatcher", source="local", device="cpu", **settings)

    def test_the_trained_model(self):
        matcher = self.load(kernel_sigma=3.0)
        assert matcher.config.kernel_sigma == 3.0
        assert matcher.calibration == Matcher.from_pretrained(SHIPPED, "cpu").calibration

    def test_random_weights(self):
        matcher = self.load(pretrained=False, **SMALL)
        assert matcher.config == model_config(SMALL)
        assert isinstance(matcher.model, torch.nn.Module)

    def test_settings_are_checked(self):
        with pytest.raises(Exception, match="depth") as caught:
            self.load(depth=3)
        assert type(caught.value).__name__ == "InputError"
