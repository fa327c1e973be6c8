"""The whole model: backbones, swapping parts, learning, identity."""

from pathlib import Path

import pytest
import torch
import torchvision
from safetensors.torch import save_file
from torch import nn

from transformatcher.config import model_config
from transformatcher.coords import grid_norm
from transformatcher.data.pairs import collate, load_pair
from transformatcher.data.synthetic import synthetic_pair
from transformatcher.errors import InputError
from transformatcher.models.attention import ReleasedAttention
from transformatcher.models.backbones.resnet import ResNetFeatures, grid_of
from transformatcher.models.backbones.weights import backbone_of, load_backbone_weights
from transformatcher.models.baselines.softmax_attention import VanillaAttention
from transformatcher.models.build import build_matcher, build_refiner
from transformatcher.models.correlation import MultiLevelCorrelation
from transformatcher.models.flow import KernelSoftArgmax
from transformatcher.models.fused.inference import capture_cuda_graph
from transformatcher.models.losses import keypoint_loss
from transformatcher.models.match2match import MatchToMatch, MeanCorrelation
from transformatcher.models.sampler import bilinear_sample
from transformatcher.models.transformatcher import TransforMatcher


class TestBackbone:
    @pytest.mark.parametrize(("name", "layers"), [("resnet50", 9), ("resnet50_v1", 9), ("resnet101", 26)])
    @torch.no_grad()
    def test_all_bottlenecks_of_both_stages(self, name, layers):
        net = ResNetFeatures(name).eval()
        features = net(torch.randn(1, 3, 96, 64))
        assert len(features) == net.n_layers == layers
        assert features[0].shape == (1, 1024, 6, 4)
        assert features[-1].shape == (1, 2048, 3, 2)
        assert all((f >= 0).all() for f in features)  # after their ReLU

    @torch.no_grad()
    def test_equals_torchvision(self):
        theirs = torchvision.models.resnet50().eval()
        ours = ResNetFeatures("resnet50", stages=(1, 4)).eval()
        ours.load_state_dict({k: v for k, v in theirs.state_dict().items() if not k.startswith("fc.")})
        x = torch.randn(1, 3, 64, 96)
        stem = theirs.maxpool(theirs.relu(theirs.bn1(theirs.conv1(x))))
        first = theirs.layer1(stem)
        features = ours(x)
        torch.testing.assert_close(features[2], first)
        torch.testing.assert_close(features[-1], theirs.layer4(theirs.layer3(theirs.layer2(first))))

    def test_v1_moves_the_stride(self):
        block = ResNetFeatures("resnet50_v1").get_submodule("layer3.0")
        assert (block.conv1.stride, block.conv2.stride) == ((2, 2), (1, 1))

    def test_stages_after_the_last_are_left_out(self):
        assert not any(key.startswith("layer4") for key in ResNetFeatures("resnet50", stages=(3,)).state_dict())

    def test_weights_file_with_fc_and_half_precision(self, tmp_path: Path):
        donor = torchvision.models.resnet50()
        save_file(
            {k: v.half() if v.ndim == 4 else v for k, v in donor.state_dict().items()}, tmp_path / "w.safetensors"
        )
        net = ResNetFeatures("resnet50", stages=(3,))
        load_backbone_weights(net, str(tmp_path / "w.safetensors"))
        torch.testing.assert_close(net.conv1.weight, donor.conv1.weight.half().float())
        assert net.conv1.weight.dtype == torch.float32

    def test_v1_file_is_refused_by_the_other_layout(self, tmp_path: Path):
        net = ResNetFeatures("resnet50")
        save_file(net.state_dict(), tmp_path / "w.safetensors", metadata={"arch": "resnet50 v1"})
        with pytest.raises(InputError, match="choose the backbone resnet50_v1"):
            load_backbone_weights(net, str(tmp_path / "w.safetensors"))
        assert backbone_of(str(tmp_path / "w.safetensors")) == "resnet50_v1"
        save_file(net.state_dict(), tmp_path / "w.safetensors", metadata={"arch": "resnet50 v1.5"})  # torchvision's
        load_backbone_weights(net, str(tmp_path / "w.safetensors"))

    def test_failed_download_is_a_sentence(self, tmp_path: Path, monkeypatch):
        monkeypatch.setenv("TORCH_HOME", str(tmp_path))
        monkeypatch.setattr(
            "torch.hub.download_url_to_file", lambda *_, **__: (_ for _ in ()).throw(OSError("no network"))
        )
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
    def test_bad_weights(self, name, weights, message, monkeypatch, tmp_path):
        monkeypatch.setenv("TORCH_HOME", str(tmp_path))
        with pytest.raises(InputError, match=message):
            load_backbone_weights(ResNetFeatures(name), weights)

    def test_another_architecture_names_keys_and_shapes(self, tmp_path: Path):
        state = ResNetFeatures("resnet50").state_dict()
        state["layer3.0.conv1.weight"] = torch.zeros(1, 2, 3)
        del state["conv1.weight"]
        save_file(state, tmp_path / "w.safetensors")
        with pytest.raises(InputError, match=r"1 missing: conv1\.weight; .*layer3\.0\.conv1\.weight \(1, 2, 3\) where"):
            load_backbone_weights(ResNetFeatures("resnet50"), str(tmp_path / "w.safetensors"))


class TinyBackbone(nn.Module):
    """Two layers of three and four channels on two grids."""

    def __init__(self):
        super().__init__()
        self.fine, self.coarse = nn.Conv2d(3, 8, 8, stride=8), nn.Conv2d(8, 12, 3, stride=2, padding=1)

    def forward(self, images):
        fine = self.fine(images)
        return [fine, self.coarse(fine.relu())]


def tiny(refiner: nn.Module, **readout) -> TransforMatcher:
    return TransforMatcher(
        TinyBackbone(), MultiLevelCorrelation(), refiner, KernelSoftArgmax(**readout), sampler=bilinear_sample
    )


class TestTransforMatcher:
    @pytest.mark.parametrize(
        "refiner", [MeanCorrelation(), MatchToMatch(2), MatchToMatch(2, make_attention=ReleasedAttention)]
    )
    def test_parts_are_swapped_by_one_argument(self, refiner):
        model = tiny(refiner)
        flow = model(torch.randn(2, 3, 40, 56), torch.randn(2, 3, 40, 56))
        assert flow.trg_norm.shape == (2, 10, 14, 2)
        assert model.transfer(flow, torch.zeros(2, 3, 2)).shape == (2, 3, 2)

    def test_images_of_two_sizes(self):
        flow = tiny(MatchToMatch(2))(torch.randn(1, 3, 40, 56), torch.randn(1, 3, 64, 48))
        assert flow.trg_norm.shape == (1, 10, 14, 2)

    def test_an_image_matched_with_itself_stays_where_it_is(self):
        pair, _ = synthetic_pair(0, size=(128, 96))
        image = load_pair(pair, (128, 96)).src[None]
        model = build_matcher(
            model_config({"variant": "raw", "backbone": "resnet50", "stages": [2], "temperature": 0.002})
        )
        model.backbone.train()  # statistics of the image itself: random features that still differ between places
        with torch.no_grad():
            flow = model(image, image).trg_norm
        assert (flow - grid_norm((32, 24), like=flow)).abs().mean() < 0.03

    def test_training_uses_its_own_sampler(self):
        model = build_matcher(model_config({"backbone": "resnet50"}))
        flow = tiny(MeanCorrelation())(torch.randn(1, 3, 240, 240), torch.randn(1, 3, 240, 240))
        points = torch.rand(1, 5, 2)
        test = model.transfer(flow, points)
        assert not torch.equal(model.train().transfer(flow, points), test)

    @pytest.mark.parametrize(
        "settings",
        [
            {"variant": "paper"},
            {"variant": "released"},
            {"match2match.position": "absolute"},
            {"match2match.attention": "linformer", "match2match.position": "absolute"},
            {"match2match.attention": "performer"},
            {"refiner": "nc4d", "match2match": {}},
            {"refiner": "cats", "match2match": {}},
            {"match2match.conv_branch_depth": 2},
        ],
        ids=lambda settings: "-".join(map(str, settings.values())),
    )
    def test_learns_one_synthetic_batch(self, settings):
        config = model_config({"match2match.depth": 2, "grid": 6, **settings})
        batch = collate([load_pair(synthetic_pair(seed, size=(48, 48))[0], (48, 48)) for seed in (1, 2)])
        model = tiny(build_refiner(config, layers=2))
        optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
        losses = []
        for _ in range(80):
            flow = model(batch.src, batch.trg)
            loss = keypoint_loss(model.transfer(flow, batch.src_kps_norm), batch.trg_kps_norm, batch.visible)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
        assert losses[-1] < 0.2 * losses[0]


class TestBuild:
    @pytest.mark.parametrize("variant", ["paper", "released", "raw"])
    @torch.no_grad()
    def test_every_variant_runs_on_a_grid_that_is_not_square(self, variant):
        settings = {"variant": variant, "backbone": "resnet50", "image_size": [64, 96], "sampler": "bilinear"}
        model = build_matcher(model_config(settings))
        flow = model(torch.randn(1, 3, 64, 96), torch.randn(1, 3, 64, 96))
        assert flow.trg_norm.shape == (1, 8, 12, 2)
        assert torch.isfinite(flow.trg_norm).all()

    @pytest.mark.parametrize(
        ("settings", "channels"),
        [
            ({"layers": "every-other"}, 5),
            ({"layers": [0, 8]}, 2),
            ({"stages": 4}, 3),
            ({"layer_fusion": "mean"}, 1),
            ({"layer_fusion": "concat", "layers": [1, 2, 6]}, 1),
            ({"match2match.attention": "linformer", "layers": [6, 7]}, 2),
            ({"refiner": "cats", "stages": 4, "grid": [4, 6]}, 3),
            ({"refiner": "nc4d", "correlation_skip": 9}, 9),
            ({"match2match.conv_branch_depth": 2, "layer_fusion": "mean"}, 1),
        ],
    )
    @torch.no_grad()
    def test_parts_fit_together(self, settings, channels):
        config = model_config({"backbone": "resnet50", "image_size": [64, 96], "sampler": "bilinear", **settings})
        model = build_matcher(config)
        assert model.refiner.layers == channels
        flow = model(torch.randn(1, 3, 64, 96), torch.randn(1, 3, 64, 96))
        assert torch.isfinite(flow.trg_norm).all()

    def test_every_other_layer_counts_from_the_deepest(self):
        model = build_matcher(model_config({"backbone": "resnet101", "layers": "every-other"}))
        assert list(model.backbone.layers) == list(range(1, 26, 2))

    def test_layers_that_the_backbone_lacks_are_named(self):
        with pytest.raises(
            InputError, match=r"layers = \[0, 9\]: resnet50 with stages \[3, 4\] has 9 layers, .* 0 to 8"
        ):
            build_matcher(model_config({"backbone": "resnet50", "layers": [0, 9]}))

    @pytest.mark.parametrize("name", ["resnet50", "resnet50_v1"])
    @torch.no_grad()
    def test_grids_are_known_before_an_image_is_seen(self, name):
        net = ResNetFeatures(name, stages=(1, 2, 3, 4)).eval()
        for size in ((65, 97), (64, 80)):
            features = net(torch.randn(1, 3, *size))
            for stage, feature in zip(net.stage_of_layer, features, strict=True):
                assert grid_of(size, stage) == feature.shape[2:]

    def test_the_variants_differ_by_config_alone(self):
        paper, released = (
            build_matcher(model_config({"variant": v, "backbone": "resnet50"})) for v in ("paper", "released")
        )
        assert type(paper.refiner) is type(released.refiner)
        assert paper.correlation.resize == "resize-correlation"
        assert released.correlation.resize == "resize-features"
        mixed = build_matcher(
            model_config({"variant": "released", "match2match.position": "axial", "backbone": "resnet50"})
        )
        assert type(mixed.refiner.blocks[0].attention) is ReleasedAttention
        assert type(mixed.refiner.blocks[0].attention.position).__name__ == "AxialRotary"


@pytest.mark.gpu
@pytest.mark.parametrize(
    "settings",
    [
        {"match2match.position": "absolute"},
        {"match2match.attention": "vanilla"},
        {"match2match.attention": "linformer"},
        {"match2match.attention": "performer"},
        {"refiner": "nc4d"},
        {"refiner": "cats"},
        {"match2match.conv_branch_depth": 2},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
def test_forward_and_backward_of_every_matcher_fit_into_a_graph(settings):
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    refiner = build_refiner(model_config({"grid": [4, 5], **settings}), layers=3)
    corr = torch.rand(2, 3, 4, 5, 4, 5)
    expected = refiner(corr).detach()
    refiner, on_gpu = refiner.cuda(), corr.cuda().requires_grad_()

    def step():
        out = refiner(on_gpu)
        out.square().sum().backward()
        return out.detach()

    torch.testing.assert_close(capture_cuda_graph(step)().cpu(), expected, rtol=0, atol=1e-3)


@pytest.mark.gpu
def test_vanilla_attention_never_holds_its_weights():
    attention, x = VanillaAttention(16).cuda(), torch.randn(1, 10**4, 16, device="cuda", requires_grad=True)
    torch.cuda.reset_peak_memory_stats()
    attention(x, (10, 10, 10, 10)).sum().backward()
    assert torch.cuda.max_memory_allocated() < 2**30  # of 8 heads they would fill 3 GiB


@pytest.mark.gpu
@torch.no_grad()
def test_gpu_and_cpu_agree():
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    model = build_matcher(model_config({"backbone": "resnet50", "sampler": "bilinear"}))
    images = torch.randn(2, 1, 3, 240, 240)
    on_cpu = model(*images)
    on_gpu = model.cuda()(*images.cuda())
    torch.testing.assert_close(on_gpu.trg_norm.cpu(), on_cpu.trg_norm, rtol=0, atol=1e-3)


def test_frozen_batch_norms_are_part_of_their_convolutions():
    """The same features and the same gradients of every weight, in fewer passes."""
    net = ResNetFeatures("resnet50_v1", stages=(1, 2)).double().eval()
    for module in net.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(std=0.1)
            module.running_var.uniform_(0.5, 2)
            torch.nn.init.uniform_(module.weight, 0.2, 0.6)
    images = torch.randn(2, 3, 40, 32, dtype=torch.float64)
    outcomes = []
    for frozen in (False, True):
        if frozen:
            net.freeze_norms()
        features = net(images)
        grads = torch.autograd.grad(sum(f.square().mean() for f in features), list(net.parameters()))
        outcomes.append([*features, *grads])
    for ours, theirs in zip(*outcomes, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
