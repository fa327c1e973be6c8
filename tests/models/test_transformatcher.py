"""The whole model: swapping parts, learning, identity."""

import pytest
import torch
from torch import nn

from transformatcher.config import model_config
from transformatcher.coords import grid_norm
from transformatcher.data.pairs import collate, load_pair
from transformatcher.data.synthetic import synthetic_pair
from transformatcher.models.attention import ReleasedAttention
from transformatcher.models.baselines.softmax_attention import VanillaAttention
from transformatcher.models.build import build_matcher, build_refiner
from transformatcher.models.correlation import MultiLevelCorrelation
from transformatcher.models.flow import KernelSoftArgmax
from transformatcher.models.fused.inference import capture_cuda_graph
from transformatcher.models.losses import keypoint_loss
from transformatcher.models.match2match import MatchToMatch, MeanCorrelation
from transformatcher.models.sampler import bilinear_sample
from transformatcher.models.transformatcher import TransforMatcher


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
            if losses[-1] < 0.15 * losses[0]:
                break
        assert losses[-1] < 0.2 * losses[0]


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
