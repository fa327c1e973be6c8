"""Weights of backbones: files, torchvision's and timm's own, and what does not fit."""

from pathlib import Path

import pytest
import torch
import torchvision
from helpers.hub import write_cache
from safetensors.torch import save_file

from transformatcher.errors import InputError
from transformatcher.models.backbones.resnet import ResNetFeatures
from transformatcher.models.backbones.timm import TimmFeatures
from transformatcher.models.backbones.weights import backbone_of, load_backbone_weights

try:
    import timm
except ImportError:
    timm = None


def vit(name: str = "vit_tiny_patch16_224") -> TimmFeatures:
    return TimmFeatures(name, (0, 1), (64, 96))


def test_weights_file_with_fc_and_half_precision(tmp_path: Path):
    donor = torchvision.models.resnet50()
    save_file({k: v.half() if v.ndim == 4 else v for k, v in donor.state_dict().items()}, tmp_path / "w.safetensors")
    net = ResNetFeatures("resnet50", stages=(3,))
    load_backbone_weights(net, str(tmp_path / "w.safetensors"))
    torch.testing.assert_close(net.conv1.weight, donor.conv1.weight.half().float())
    assert net.conv1.weight.dtype == torch.float32


def test_v1_file_is_refused_by_the_other_layout(tmp_path: Path):
    net = ResNetFeatures("resnet50")
    save_file(net.state_dict(), tmp_path / "w.safetensors", metadata={"arch": "resnet50 v1"})
    with pytest.raises(InputError, match="choose the backbone resnet50_v1"):
        load_backbone_weights(net, str(tmp_path / "w.safetensors"))
    assert backbone_of(str(tmp_path / "w.safetensors")) == "resnet50_v1"
    save_file(net.state_dict(), tmp_path / "w.safetensors", metadata={"arch": "resnet50 v1.5"})  # torchvision's
    load_backbone_weights(net, str(tmp_path / "w.safetensors"))


def test_failed_download_is_a_sentence(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr("torch.hub.download_url_to_file", lambda *_, **__: (_ for _ in ()).throw(OSError("no network")))
    with pytest.raises(InputError, match=r"cannot download or read .*\(no network\)"):
        load_backbone_weights(ResNetFeatures("resnet50"), "IMAGENET1K_V1", download=True)


@pytest.mark.parametrize(
    ("name", "weights", "message"),
    [
        ("resnet50", "nowhere.safetensors", "no such weights file"),
        ("resnet50", "model.pth", "pickled weights may contain code"),
        ("resnet50", "IMAGENET", "IMAGENET1K_V1, IMAGENET1K_V2"),
        ("resnet50_v1", "IMAGENET1K_V1", "torchvision has none for resnet50_v1"),
        ("resnet50", "IMAGENET1K_V1", "not in torch's cache .* --download"),
    ],
)
def test_bad_weights(name, weights, message, monkeypatch, tmp_path):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    with pytest.raises(InputError, match=message):
        load_backbone_weights(ResNetFeatures(name), weights)


def test_another_architecture_names_keys_and_shapes(tmp_path: Path):
    state = ResNetFeatures("resnet50").state_dict()
    state["layer3.0.conv1.weight"] = torch.zeros(1, 2, 3)
    del state["conv1.weight"]
    save_file(state, tmp_path / "w.safetensors")
    with pytest.raises(InputError, match=r"1 missing: conv1\.weight; .*layer3\.0\.conv1\.weight \(1, 2, 3\) where"):
        load_backbone_weights(ResNetFeatures("resnet50"), str(tmp_path / "w.safetensors"))


@pytest.mark.skipif(timm is None, reason="timm is not installed")
class TestTimm:
    @pytest.mark.parametrize("classes", [1000, 7, 0], ids="{} classes".format)
    def test_a_file_with_any_head(self, tmp_path: Path, classes: int):
        donor = timm.create_model("convnext_atto", num_classes=classes)
        save_file({key: value.half() for key, value in donor.state_dict().items()}, tmp_path / "w.safetensors")
        net = TimmFeatures("convnext_atto", "all", (64, 64))
        load_backbone_weights(net, str(tmp_path / "w.safetensors"))
        for key, value in net.net.state_dict().items():
            torch.testing.assert_close(value, donor.state_dict()[key].half().float())

    def test_a_file_of_another_network(self, tmp_path: Path):
        save_file(timm.create_model("vit_tiny_patch16_224").state_dict(), tmp_path / "w.safetensors")
        net = TimmFeatures("vit_small_patch16_224", (0,), (64, 64))
        with pytest.raises(
            InputError, match=r"w\.safetensors: these weights do not fit timm:vit_small.* size mismatch"
        ):
            load_backbone_weights(net, str(tmp_path / "w.safetensors"))

    def test_a_file_that_lacks_a_layer(self, tmp_path: Path):
        state = timm.create_model("vit_tiny_patch16_224").state_dict()
        del state["blocks.1.norm1.weight"]
        save_file(state, tmp_path / "w.safetensors")
        with pytest.raises(InputError, match=r"do not fit .*blocks\.1\.norm1\.weight"):
            load_backbone_weights(vit(), str(tmp_path / "w.safetensors"))

    @pytest.mark.parametrize(
        ("weights", "message"),
        [
            ("nowhere.safetensors", "nowhere.safetensors: no such weights file"),
            ("IMAGENET1K_V1", r"no such file; .* name a \.safetensors file or 'timm'"),
            ("model.pth", "pickled weights may contain code"),
        ],
    )
    def test_bad_names(self, weights, message):
        with pytest.raises(InputError, match=message):
            load_backbone_weights(vit(), weights)

    def test_from_timms_cache(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
        net = vit(name="vit_tiny_patch16_224.augreg_in21k")
        with pytest.raises(
            InputError, match=r"'timm': timm/vit_tiny_patch16_224\.augreg_in21k: not in the cache .*--download"
        ):
            load_backbone_weights(net, "timm")
        donor = timm.create_model("vit_tiny_patch16_224.augreg_in21k", num_classes=3)
        save_file(donor.state_dict(), tmp_path / "w.safetensors")
        write_cache(
            tmp_path / "hub",
            "timm/vit_tiny_patch16_224.augreg_in21k",
            {"model.safetensors": tmp_path / "w.safetensors"},
        )
        load_backbone_weights(net, "timm")
        assert torch.equal(net.net.cls_token, donor.cls_token)

    def test_fetched_only_if_asked(self, monkeypatch: pytest.MonkeyPatch):
        asked = []

        def fetch(name: str, **options: object) -> str:
            asked.append((name, options["local_files_only"]))
            raise OSError("no network")

        monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
        for download in (False, True):
            with pytest.raises(InputError, match="could not be downloaded .*no network" if download else "--download"):
                load_backbone_weights(vit(), "timm", download=download)
        assert [local for _, local in asked] == [True, False]

    def test_timm_has_none(self):
        net = TimmFeatures("mixer_s16_224", (0,), (64, 64))
        with pytest.raises(InputError, match="timm has no safetensors weights for it"):
            load_backbone_weights(net, "timm")
