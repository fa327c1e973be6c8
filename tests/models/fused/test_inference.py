"""A model prepared for inference computes the same."""

import pytest
import torch

from transformatcher.config import model_config
from transformatcher.models.build import build_matcher
from transformatcher.models.fused import inference
from transformatcher.models.fused.inference import (
    MAX_GRAPHS,
    GraphOnRepeat,
    can_pack,
    cuda_graph,
    for_inference,
)
from transformatcher.models.transformatcher import TransforMatcher


@pytest.mark.parametrize("layers", ["all", [1, 4, 7]])
@torch.no_grad()
def test_folding_batch_norms_changes_nothing(layers):
    model = build_matcher(model_config({"backbone": "resnet50", "sampler": "bilinear", "layers": layers}))
    for module in model.backbone.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(std=0.1)
            module.running_var.uniform_(0.5, 2)
    images = torch.randn(1, 3, 96, 64)
    ready = for_inference(model, torch.float32)
    assert ready.backbone.n_layers == model.backbone.n_layers
    assert ready.backbone.grid == model.backbone.grid
    for ours, theirs in zip(ready.encode(images), model.encode(images), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
    assert model.backbone.bn1 is not None  # the original is untouched


@pytest.mark.gpu
@torch.inference_mode()
def test_stages_that_repeat_are_replayed_on_cuda():
    plain = build_matcher(model_config({"backbone": "resnet50", "sampler": "bilinear"})).eval().cuda()
    fast = for_inference(plain, torch.float32)
    for _ in range(4):
        images = torch.randn(2, 2, 3, 240, 240, device="cuda")
        torch.testing.assert_close(fast(*images).trg_norm, plain(*images).trg_norm, rtol=0.01, atol=0.01)
    stages = fast.backbone, fast.correlation, fast.refiner
    assert all(any(stage.forward._graphs.values()) for stage in stages)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", ["paper", "released"])
@torch.inference_mode()
def test_graph_replays_what_the_model_computes(variant):
    settings = {"backbone": "resnet50", "sampler": "bilinear", "variant": variant}
    model = for_inference(build_matcher(model_config(settings)).cuda())
    images = torch.randn(4, 2, 3, 240, 240, device="cuda")
    run = cuda_graph(model, images[0], images[1])
    torch.testing.assert_close(run(images[2], images[3]).trg_norm, model(images[2], images[3]).trg_norm)


class TestPacked:
    @pytest.fixture
    def model(self) -> TransforMatcher:
        model = build_matcher(model_config({"backbone": "resnet50_v1", "sampler": "bilinear", "stages": [2, 3]}))
        for module in model.backbone.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.running_mean.normal_(std=0.1)
                module.running_var.uniform_(0.5, 2)
        return model.eval()

    @torch.inference_mode()
    @pytest.mark.parametrize("shape", [(1, 3, 96, 64), (3, 3, 96, 64), (2, 3, 50, 71)])
    def test_packed_weights_compute_the_same(self, model: TransforMatcher, shape: tuple[int, ...]):
        ready = for_inference(model, torch.float32, (96, 64))
        assert (ready.backbone.stem.packed is not None) == can_pack()
        images = torch.randn(shape)
        for ours, theirs in zip(ready.encode(images), model.encode(images), strict=True):
            assert (ours - theirs).norm() < 1e-5 * theirs.norm()

    @torch.inference_mode()
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_images_do_not_change_each_other(self, model: TransforMatcher, dtype: torch.dtype):
        if not can_pack():
            pytest.skip("torch has no oneDNN here")
        ready = for_inference(model, dtype, (64, 64))
        images = torch.randn(3, 3, 64, 64)
        for batch, alone in zip(ready.encode(images), ready.encode(images[1:2]), strict=True):
            assert torch.equal(batch[1:2], alone)

    @torch.inference_mode()
    def test_on_a_cpu_all_that_follows_the_features_is_float32(self, model: TransforMatcher):
        ready = for_inference(model, torch.bfloat16, (64, 64))
        features = ready.encode(torch.randn(2, 3, 64, 64))
        assert features[0].dtype == torch.bfloat16
        sides = [f[:1] for f in features], [f[1:] for f in features]
        assert ready.correlation(*sides).dtype == torch.float32
        plain, fast = (one(*torch.randn(2, 1, 3, 64, 64, generator=torch.Generator().manual_seed(1))).trg_norm
                       for one in (model, ready))  # fmt: skip
        assert fast.dtype == torch.float32
        assert 0 < (plain - fast).abs().max() < 0.2

    def test_the_model_is_left_as_it_was(self, model: TransforMatcher):
        before = {key: value.clone() for key, value in model.state_dict().items()}
        for_inference(model, torch.bfloat16, (64, 64))
        after = model.state_dict()
        assert before.keys() == after.keys()
        assert all(torch.equal(value, after[key]) for key, value in before.items())
        assert all(parameter.requires_grad for parameter in model.parameters())
        assert not any(block.weights_frozen for block in model.refiner.blocks)

    def test_without_onednn_torch_convolves(self, model: TransforMatcher, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(inference, "can_pack", lambda: False)
        ready = for_inference(model, torch.float32, (64, 64))
        assert ready.backbone.stem.packed is None
        images = torch.randn(2, 3, 64, 64)
        with torch.inference_mode():
            for ours, theirs in zip(ready.encode(images), model.encode(images), strict=True):
                assert (ours - theirs).norm() < 1e-5 * theirs.norm()


class TestGraphOnRepeat:
    """With a stand-in for CUDA's capture, which computes again what a graph would replay."""

    @pytest.fixture
    def captured(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        captured: list[int] = []
        monkeypatch.setattr(inference, "capture_cuda_graph", lambda function: captured.append(1) or function)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        return captured

    @torch.inference_mode()
    def test_shapes_that_come_again_are_captured(self, captured: list[int]):
        stage = GraphOnRepeat(lambda x, ys: [2 * x + ys[0], ys[1].clone()])
        x, ys = torch.ones(2), [torch.ones(2), torch.zeros(3)]
        assert torch.equal(stage(x, ys)[0], torch.full((2,), 3.0))
        assert captured == []
        first = stage(x, ys)
        second = stage(5 * x, ys)
        assert captured == [1]
        assert torch.equal(first[0], torch.full((2,), 3.0))  # not overwritten
        assert torch.equal(second[0], torch.full((2,), 11.0))
        stage(torch.ones(1), [torch.ones(1), torch.zeros(3)])
        assert captured == [1]

    @torch.inference_mode()
    def test_few_graphs_are_kept(self, captured: list[int]):
        stage = GraphOnRepeat(lambda x: x + 1)
        for n in range(1, 3 * MAX_GRAPHS):
            stage(torch.ones(n))
            stage(torch.ones(n))
        assert len(stage._graphs) == MAX_GRAPHS
        assert len(captured) == 3 * MAX_GRAPHS - 1

    def test_training_is_not_captured(self, captured: list[int]):
        stage = GraphOnRepeat(lambda x: x + 1)
        for _ in range(3):
            stage(torch.ones(1))
        assert captured == []
