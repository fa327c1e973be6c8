"""Networks of timm as backbones: their features, their images, their weights. All have random weights, few layers."""

import sys
from pathlib import Path

import pytest
import torch
from helpers.training import tiny_tables, write_benchmark
from safetensors.torch import save_file

from transformatcher.cli.main import main
from transformatcher.config import model_config, read_run_config, run_config
from transformatcher.errors import InputError
from transformatcher.images import IMAGENET_MEAN, IMAGENET_STD
from transformatcher.inference.checkpoint import load_checkpoint, save_checkpoint
from transformatcher.inference.matcher import Matcher
from transformatcher.models.backbones.backbone import choose_layers
from transformatcher.models.backbones.timm import TimmFeatures, usual_layers
from transformatcher.models.backbones.weights import load_backbone_weights
from transformatcher.models.build import build_matcher
from transformatcher.models.correlation import MultiLevelCorrelation
from transformatcher.models.fused.inference import for_inference
from transformatcher.training.trainer import BEST, train

timm = pytest.importorskip("timm", reason="timm is not installed")

# name, image size, layers, the grids that they must have
NETWORKS = {
    "vit": ("vit_tiny_patch16_224", (64, 96), (0, 2), [(4, 6), (4, 6)]),
    "dinov2": ("vit_small_patch14_reg4_dinov2", (56, 70), (1,), [(4, 5)]),
    "dinov3": ("vit_small_patch16_dinov3", (64, 96), (0, 1), [(4, 6), (4, 6)]),
    "convnext": ("convnext_atto", (64, 96), "all", [(4, 6), (2, 3)]),
    "resnet": ("resnet18", (64, 96), (2, 3), [(8, 12), (4, 6)]),
    "swin": ("swin_tiny_patch4_window7_224", (64, 96), (1, 2), [(8, 12), (4, 6)]),  # told its size when it is built
    "hiera": ("hiera_tiny_224", (64, 96), (2,), [(4, 6)]),  # applies no norm between its layers
}
VIT = {"backbone": "timm:vit_tiny_patch16_224", "layers": [0, 1], "image_size": [64, 96], "match2match.depth": 1}
SMALL = VIT | {"sampler": "bilinear"}


@pytest.fixture(params=NETWORKS, scope="module")
def network(request):
    name, size, layers, grids = NETWORKS[request.param]
    return TimmFeatures(name, layers, size), size, grids


def vit(**changes) -> TimmFeatures:
    return TimmFeatures(**({"name": "vit_tiny_patch16_224", "layers": (0, 1), "image_size": (64, 96)} | changes))


class TestFeatures:
    @torch.no_grad()
    def test_grids(self, network):
        net, size, grids = network
        features = net(torch.randn(2, 3, *size))
        assert [tuple(f.shape[2:]) for f in features] == grids
        assert len(features) == net.n_layers
        assert net.grid == grids[0]

    def test_nothing_is_there_that_does_not_learn(self, network):
        """What the chosen layers do not need would wait in vain for gradients, with several processes for ever."""
        net, size, _ = network
        net.zero_grad()
        sum(f.square().sum() for f in net(torch.randn(1, 3, *size))).backward()
        assert [name for name, p in net.named_parameters() if p.grad is None] == []

    def test_later_layers_are_left_out(self):
        assert {key.split(".")[2] for key in vit().state_dict() if ".blocks." in key} == {"0", "1"}

    @torch.no_grad()
    @pytest.mark.parametrize("key", ["vit", "convnext"])
    def test_equals_timm_on_images_that_it_normalises_itself(self, key, tmp_path: Path):
        name, size, _, _ = NETWORKS[key]
        theirs = timm.create_model(name, **({"dynamic_img_size": True} if key == "vit" else {})).eval()
        save_file(theirs.state_dict(), tmp_path / "w.safetensors")
        ours = TimmFeatures(name, (1, 2), size)
        load_backbone_weights(ours, str(tmp_path / "w.safetensors"))
        pixels = torch.rand(2, 3, *size)

        def normalised(mean, std):
            return (pixels - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]

        cfg = theirs.pretrained_cfg
        assert (cfg["mean"] == IMAGENET_MEAN) == (key == "convnext")
        wanted = theirs.forward_intermediates(
            normalised(cfg["mean"], cfg["std"]), indices=[1, 2], norm=True, intermediates_only=True
        )
        for mine, their in zip(ours(normalised(IMAGENET_MEAN, IMAGENET_STD)), wanted, strict=True):
            torch.testing.assert_close(mine, their, rtol=1e-4, atol=1e-5)

    @torch.no_grad()
    def test_a_transformer_takes_other_sizes(self):
        assert vit()(torch.randn(1, 3, 32, 48))[0].shape[2:] == (2, 3)

    def test_a_network_of_fixed_size_says_so(self):
        net = TimmFeatures("swin_tiny_patch4_window7_224", (2,), (64, 96))
        with pytest.raises(InputError, match=r"images of 96 × 96 .* was built for 64 × 96 and takes no other size"):
            net(torch.randn(1, 3, 96, 96))

    @pytest.mark.parametrize(
        ("layers", "strides", "chosen"),
        [
            ("all", [14] * 4, (0, 1, 2, 3)),
            ("every-other", [14] * 4, (1, 3)),
            ("all", [2, 4, 8, 16, 32], (3, 4)),
            ("every-other", [4, 8, 16, 32], (3,)),
            ("all", [2, 4, 8], (2,)),
            ((0, 2), [4, 8, 16, 32], (0, 2)),
        ],
    )
    def test_chosen_layers(self, layers, strides, chosen):
        assert choose_layers(layers, usual_layers(strides), len(strides), "x") == chosen

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"image_size": (240, 250)}, r"patches of 16 × 16; the nearest image_size has width 240 or 256"),
            (
                {"name": "vit_small_patch14_dinov2", "image_size": (240, 240)},
                r"patches of 14 × 14; the nearest image_size has height 238 or 252, width 238 or 252",
            ),
            (
                {"layers": (3, 12)},
                r"layers = \[3, 12\]: timm:vit_tiny_patch16_224 has 12 layers, numbered from 0 to 11$",
            ),
            (
                {"name": "resnet18", "layers": (5,)},
                r"resnet18 \(cells of 2, 4, 8, 16, 32 pixels\) has 5 layers, numbered from 0 to 4",
            ),
            ({"name": "vit_tiny_patch16"}, "no such network; did you mean timm:vit_tiny_patch16_384"),
            ({"name": "convnext_atto.d3_in1k"}, "did you mean timm:convnext_atto.d2_in1k"),
            ({"name": "zzz"}, r"no such network; see timm.list_models\(\)"),
            ({"name": "hf-hub:timm/resnet18"}, "no such network"),
            (
                {"name": "maxvit_tiny_tf_224", "image_size": (240, 240)},
                r"cannot take them \(.*window.*\); its own size is 224 × 224",
            ),
        ],
        ids=str,
    )
    def test_what_cannot_be_built_is_named(self, changes, message):
        with pytest.raises(InputError, match=message):
            vit(**changes)

    @pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "convnext_atto"])
    def test_on_the_meta_device(self, name):
        """Where a config is tried out without weights; timm 1.0.20 cannot build a transformer there."""
        with torch.device("meta"), torch.inference_mode():
            assert vit(name=name)(torch.empty(1, 3, 64, 96))[0].is_meta

    def test_a_network_without_intermediate_features(self, monkeypatch: pytest.MonkeyPatch):
        """In timm 1.0.20 these were VGG, DenseNet and others; in 1.0.31 there is none left."""
        monkeypatch.setattr(timm, "create_model", lambda *_, **__: torch.nn.Identity())
        with pytest.raises(InputError, match="timm gives no features of its intermediate layers"):
            vit()

    def test_without_timm(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setitem(sys.modules, "timm", None)
        with pytest.raises(InputError, match=r"timm:vit_tiny_patch16_224 needs .* pip install timm"):
            vit()


class TestMatcher:
    @torch.no_grad()
    def test_layers_become_channels_and_patches_the_grid(self):
        model = build_matcher(model_config(SMALL))
        src, trg = torch.randn(2, 1, 3, 64, 96)
        corr = model.correlation(model.encode(src), model.encode(trg))
        assert corr.shape == (1, 2, 4, 6, 4, 6)
        assert corr.min() == 0 < corr.max()  # features of both signs: the correlation's own ReLU has work to do
        assert model(src, trg).trg_norm.shape == (1, 8, 12, 2)

    @torch.no_grad()
    def test_weights_for_cells_know_the_grid(self):
        model = build_matcher(model_config(SMALL | {"refiner": "cats", "match2match": {}, "cats.heads": 2}))
        assert model(*torch.randn(2, 1, 3, 64, 96)).trg_norm.shape == (1, 8, 12, 2)

    @torch.no_grad()
    def test_on_features_of_both_signs_the_two_resizes_differ(self):
        fine, coarse = torch.randn(2, 1, 8, 4, 4), torch.randn(2, 1, 8, 2, 2)
        maps = [
            MultiLevelCorrelation(resize)([fine[0], coarse[0]], [fine[1], coarse[1]])
            for resize in ("resize-correlation", "resize-features")
        ]
        torch.testing.assert_close(maps[0][:, 0], maps[1][:, 0])
        assert (maps[0][:, 1] - maps[1][:, 1]).abs().max() > 0.01

    @torch.no_grad()
    @pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "resnet18"])
    def test_for_inference(self, name):
        model = build_matcher(model_config(SMALL | {"backbone": f"timm:{name}", "layers": [2, 3]}))
        images = torch.randn(2, 1, 3, 64, 96)
        wanted = model(*images).trg_norm
        torch.testing.assert_close(for_inference(model, torch.float32)(*images).trg_norm, wanted)
        assert (for_inference(model)(*images).trg_norm - wanted).abs().max() < 0.3

    @torch.no_grad()
    def test_checkpoint_without_timms_weights(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        config = model_config(SMALL)
        model = build_matcher(config)
        save_checkpoint(tmp_path, model, config)
        monkeypatch.setattr(
            "transformatcher.models.backbones.weights.hub_folder", lambda *_, **__: pytest.fail("looked for weights")
        )
        torch.manual_seed(1)  # what is drawn at random must come from the file
        loaded, loaded_config = load_checkpoint(tmp_path)
        assert loaded_config == config
        images = torch.randn(2, 1, 3, 64, 96)
        assert torch.equal(loaded(*images).trg_norm, model(*images).trg_norm)

    def test_config(self):
        with pytest.raises(InputError, match=r"backbone = 'resnet5': expected one of .*; did you mean 'resnet50'\?"):
            model_config({"backbone": "resnet5"})
        with pytest.raises(InputError, match="networks of timm are called timm:NAME"):
            model_config({"backbone": "convnext_tiny"})
        with pytest.raises(InputError, match="backbone = 'timm:': expected"):
            model_config({"backbone": "timm:"})
        with pytest.raises(InputError, match=r"stages = \[2\]: only ResNets have stages; choose layers"):
            model_config(VIT | {"stages": [2]})

    def test_the_config_for_dinov2(self):
        config = read_run_config(Path(__file__).parents[3] / "configs" / "dinov2.toml").model
        model = build_matcher(config)
        assert model.backbone.grid == (18, 18)
        assert model.backbone.layers == tuple(range(4, 12))


class TestTraining:
    @pytest.mark.parametrize("rate", [0.0, 1e-4])
    def test_the_same_matcher_trains_on_top(self, tmp_path: Path, rate: float):
        benchmark = write_benchmark(tmp_path / "PF-PASCAL")
        tables = tiny_tables(benchmark, lr_backbone=rate, epochs=1, backbone_weights=str(tmp_path / "w.safetensors"))
        tables["model"] = SMALL | {"image_size": 48, "correlation_skip": 20.0}
        before = timm.create_model("vit_tiny_patch16_224", num_classes=0).state_dict()
        save_file(before, tmp_path / "w.safetensors")
        progress = train(run_config(tables), tmp_path / "run", torch.device("cpu"), pictures=False)
        assert progress.step == 4
        after = load_checkpoint(tmp_path / "run" / BEST)[0].backbone.net.state_dict()
        changed = [key for key in after if not torch.equal(after[key], before[key])]
        assert bool(changed) == (rate > 0)


class TestCommand:
    @pytest.fixture
    def photo(self) -> str:
        return str(Path(sys.modules["transformatcher"].__file__).parent / "examples" / "cat_a.jpg")

    def test_raw_correlation(self, photo: str, tmp_path: Path, capsys):
        save_file(timm.create_model("convnext_atto").state_dict(), tmp_path / "w.safetensors")
        arguments = ["--backbone", "timm:convnext_atto", "--backbone-weights", str(tmp_path / "w.safetensors")]
        size = ["--set", "image_size=96", "--set", "layers=[1]"]
        assert main(["match", photo, photo, "--refiner", "none", *arguments, *size, "--json", "--device", "cpu"]) == 0
        assert "keypoints1" in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("backbone", "message"),
        [
            ("timm:convnext_ato", "did you mean timm:convnext_atto"),
            ("timm:vit_small_patch14_dinov2", "the nearest image_size has height 238 or 252"),
        ],
    )
    def test_what_cannot_be_used_is_one_sentence(self, photo: str, backbone, message, capsys):
        code = main(["match", photo, photo, "--refiner", "none", "--backbone", backbone, "--backbone-weights", "timm"])
        assert code == 2
        assert message in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("backbone", "message"),
        [
            ("resnet5", "or timm:NAME; did you mean 'resnet50'?"),
            ("timm:", "'timm:' is none of resnet50"),
            ("vgg", "none of"),
        ],
    )
    def test_other_names_are_refused_at_once(self, backbone, message, capsys):
        with pytest.raises(SystemExit, match="2"):
            main(["bench", "--backbone", backbone])
        assert message in capsys.readouterr().err

    def test_bench(self, capsys):
        arguments = ["--backbone", "timm:vit_tiny_patch16_224", "--size", "32", "--backend", "eager", "--device", "cpu"]
        assert main(["bench", *arguments, "--json"]) == 0
        assert '"backbone": "timm:vit_tiny_patch16_224"' in capsys.readouterr().out

    def test_in_python(self):
        matcher = Matcher.raw("timm:convnext_atto", None, "cpu", image_size=64, layers=[1])
        assert (matcher.config.image_size, matcher.config.refiner) == ((64, 64), "none")
