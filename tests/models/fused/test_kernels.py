"""The fast path against the plain one: the passes in torch, and the Triton kernels under Triton's interpreter.

Triton reads TRITON_INTERPRET when it is imported, so the kernels run in a process of their own.
"""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from transformatcher.config import model_config
from transformatcher.errors import InputError
from transformatcher.models.attention import PaperAttention, ReleasedAttention
from transformatcher.models.baselines.learned_position import AxialPositionEmbedding
from transformatcher.models.build import build_matcher
from transformatcher.models.correlation import MultiLevelCorrelation
from transformatcher.models.flow import KernelSoftArgmax
from transformatcher.models.fused import dispatch, fold, passes
from transformatcher.models.fused.inference import cuda_graph, for_inference
from transformatcher.models.match2match import MatchToMatch
from transformatcher.models.rotary import AxialRotary, Checkerboard, NoPosition

GRIDS = [(3, 4, 2, 5), (5, 3, 5, 3), (1, 2, 9, 8)]  # odd, even, not square, source unlike target
POSITIONS = [NoPosition, Checkerboard, lambda: AxialRotary(8, 4), lambda: AxialRotary(8, 4, frequencies=2)]
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
on_triton = pytest.mark.skipif(
    not (INTERPRETED or torch.cuda.is_available()), reason="runs in the interpreted process and on a GPU"
)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def refiner(kind, position, depth=2, layers=3) -> MatchToMatch:
    made = MatchToMatch(layers, depth=depth, make_attention=lambda d: kind(d, position=position()))
    for parameter in made.parameters():  # LayerNorm's ones and zeros would hide a mistake
        torch.nn.init.normal_(parameter, std=0.4)
    return made


def outcome(module, backend, *inputs):
    """Output and the gradients of inputs and parameters."""
    module.set_backend(backend)
    inputs = tuple(x.detach().clone().requires_grad_() for x in inputs)
    out = module(*inputs)
    out = getattr(out, "trg_norm", out)
    weights = torch.linspace(-1, 2, out.numel(), dtype=out.dtype, device=out.device).reshape(out.shape)
    grads = torch.autograd.grad((out * weights).sum(), (*inputs, *module.parameters()))
    return [out.detach(), *grads]


def worst(ours, theirs) -> float:
    return max(float((a - b).abs().max() / b.abs().max().clamp(min=1e-3)) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.skipif(INTERPRETED, reason="float64 never goes to Triton")
class TestTorchPasses:
    @pytest.mark.parametrize("kind", [PaperAttention, ReleasedAttention])
    @pytest.mark.parametrize("position", POSITIONS)
    @pytest.mark.parametrize("grid", GRIDS)
    def test_equal_the_plain_matcher(self, kind, position, grid):
        module = refiner(kind, position).double()
        corr = torch.rand(2, 3, *grid, dtype=torch.float64)
        assert worst(outcome(module, "fused", corr), outcome(module, "eager", corr)) < 1e-9

    def test_unknown_attention_takes_the_plain_path_or_says_so(self):
        class Nothing(torch.nn.Module):
            def forward(self, x, _grid):
                return torch.zeros_like(x)

        module = MatchToMatch(3, depth=1, make_attention=lambda _: Nothing())
        corr = torch.rand(1, 3, 2, 2, 2, 2)
        assert module(corr).shape == (1, 2, 2, 2, 2)
        module.set_backend("fused")
        with pytest.raises(InputError, match="the fused backend supports"):
            module(corr)

    def test_weights_that_change_unseen_are_seen(self):
        """Torch does not count every change: not those through .data, nor (on CUDA) an average's."""
        module = refiner(PaperAttention, Checkerboard).requires_grad_(False)
        corr = torch.rand(1, 3, 2, 3, 3, 2)
        before = module(corr)
        module.blocks[0].ffn[0].weight.data.mul_(2)
        changed = module(corr)
        assert not torch.allclose(changed, before)
        module.set_backend("eager")
        torch.testing.assert_close(changed, module(corr), rtol=1e-4, atol=1e-4)

    def test_final_weights_are_folded_once(self):
        model = for_inference(
            build_matcher(model_config({"backbone": "resnet50", "match2match.depth": 1})), torch.float32
        )
        corr = torch.rand(1, 9, 2, 3, 3, 2)
        first, kept = model.refiner(corr), model.refiner.blocks[0].fused_cache._entry
        torch.testing.assert_close(model.refiner(corr), first)
        assert model.refiner.blocks[0].fused_cache._entry is kept
        assert kept is not None

    @pytest.mark.parametrize("frozen", [False, True])
    def test_what_inference_kept_serves_training(self, frozen):
        """Tensors made in inference mode may not take part in a backward pass."""
        module = refiner(PaperAttention, lambda: AxialRotary(8, 4)).requires_grad_(not frozen)
        if frozen:
            module.blocks[0].freeze_weights()
        corr = torch.rand(1, 3, 2, 3, 3, 2)
        with torch.inference_mode():
            module(corr)
        corr.requires_grad_()
        module(corr).sum().backward()
        assert corr.grad is not None

    def test_forced_fast_on_a_cpu_takes_the_passes_and_leaves_out_the_kernels(self):
        model = build_matcher(model_config({"backbone": "resnet50", "sampler": "bilinear", "match2match.depth": 1}))
        images = torch.randn(2, 1, 3, 64, 64)
        flows = []
        for backend in ("fused", "eager"):
            model.set_backend(backend)
            with torch.no_grad():
                flows.append(model(*images).trg_norm)
        torch.testing.assert_close(*flows, rtol=0, atol=1e-5)

    def test_placement_of_equal_positions_is_shared(self):
        assert fold.position_key(AxialRotary(8, 4)) == fold.position_key(AxialRotary(8, 4))
        assert fold.position_key(AxialRotary(8, 4)) != fold.position_key(AxialRotary(8, 4, base=10.0))

    def test_float64_never_goes_to_triton(self):
        assert not dispatch.triton_runs_on(torch.zeros(1, dtype=torch.float64))

    def test_perpendicular_is_a_quarter_turn(self):
        matrix = torch.randn(6, 3)
        torch.testing.assert_close(passes.perpendicular(passes.perpendicular(matrix)), -matrix)


@on_triton
class TestTriton:
    @pytest.mark.parametrize(
        ("kind", "position", "grid"),
        [
            *((kind, position, GRIDS[0]) for kind in (PaperAttention, ReleasedAttention) for position in POSITIONS[:3]),
            (PaperAttention, POSITIONS[2], GRIDS[1]),
            (ReleasedAttention, Checkerboard, GRIDS[1]),
        ],
    )
    def test_matcher(self, kind, position, grid):
        from transformatcher.models.fused import triton_pool

        module = refiner(kind, position, depth=1).to(DEVICE)
        corr = torch.rand(2, 3, *grid, device=DEVICE)
        assert dispatch.choose_passes(corr.flatten(2), list(module.blocks)).pool.func is triton_pool.pool
        assert worst(outcome(module, "fused", corr), outcome(module, "eager", corr)) < 1e-4

    def test_learned_positions(self):
        module = refiner(PaperAttention, NoPosition, depth=1)
        module.position_embedding = AxialPositionEmbedding(16, GRIDS[0])
        module.to(DEVICE)
        corr = torch.rand(2, 3, *GRIDS[0], device=DEVICE)
        assert worst(outcome(module, "fused", corr), outcome(module, "eager", corr)) < 1e-4

    def test_many_tiles_and_programs(self):
        """More target cells than a tile holds, more source cells than a program takes."""
        module = refiner(PaperAttention, lambda: AxialRotary(8, 4), depth=1).to(DEVICE)
        corr = torch.rand(1, 3, 2, 2, 9, 8, device=DEVICE)
        assert worst(outcome(module, "fused", corr), outcome(module, "eager", corr)) < 1e-4

    @pytest.mark.parametrize("kernel_on", ["logits", "probabilities", "none"])
    @pytest.mark.parametrize("grid", GRIDS[:2])
    def test_readout(self, kernel_on, grid):
        readout = KernelSoftArgmax(upsample=2, kernel_sigma=1.7, temperature=0.6, kernel_on=kernel_on)
        refined = torch.randn(2, *grid, device=DEVICE)
        assert worst(outcome(readout, "fused", refined), outcome(readout, "eager", refined)) < 1e-4

    @pytest.mark.parametrize(
        ("kind", "layer_fusion"),
        [("resize-correlation", "multi"), ("resize-features", "multi"), ("resize-correlation", "concat")],
    )
    def test_correlation(self, kind, layer_fusion):
        stage = MultiLevelCorrelation(kind, layer_fusion=layer_fusion)
        shapes = [(2, 20, 5, 4), (2, 12, 3, 2)] * 2

        def run(backend):
            torch.manual_seed(1)
            features = [torch.randn(*shape, device=DEVICE).requires_grad_() for shape in shapes]
            stage.set_backend(backend)
            out = stage(features[:2], features[2:])
            return [
                out.detach(),
                *torch.autograd.grad((out * torch.sin(torch.arange(40.0, device=DEVICE)[:4])).sum(), features),
            ]

        assert worst(run("fused"), run("eager")) < 1e-4


@pytest.mark.skipif(INTERPRETED or torch.cuda.is_available(), reason="the kernels run in this very process")
def test_kernels_under_the_interpreter():
    """The whole of TestTriton once more, interpreted: continuous integration without a GPU covers the kernels."""
    pytest.importorskip("triton", reason="Triton is not installed")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"{Path(__file__)}::TestTriton"]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    root = Path(__file__).parents[3]
    result = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout[-3000:]
    assert "passed" in result.stdout
    assert "skipped" not in result.stdout


@pytest.mark.skipif(INTERPRETED, reason="the interpreter does not compile")
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("module", "kernel", "constants", "warps"),
    [
        ("triton_pool", "_pool_kernel", {"J": 32, "G": 4, "T": 32, "ROTATE": True}, 1),
        ("triton_pool", "_pool_backward_kernel", {"J": 32, "G": 4, "T": 32, "ROTATE": True}, 1),
        ("triton_pool", "_combine_kernel", {"J": 32, "G": 4, "C": 128, "W": 32}, 4),
        ("triton_update", "_update_kernel", {"E": 32, "H": 64, "T": 32, "ROTATED": True}, 2),
        ("triton_update", "_update_backward_kernel", {"E": 32, "H": 64, "T": 64, "ROTATED": True}, 4),
        ("triton_embed", "_embed_kernel", {"L": 32, "T": 256}, 4),
        ("triton_embed", "_embed_backward_kernel", {"L": 32, "T": 128}, 4),
        ("triton_readout", "_readout_kernel", {"A": 32, "B": 32, "P": 64, "Q": 64, "GAUSSIAN": 0}, 4),
        ("triton_readout", "_readout_backward_kernel", {"A": 32, "B": 32, "P": 64, "Q": 64, "GAUSSIAN": 0}, 4),
        ("triton_correlate", "_cosine_kernel", {"M": 128, "N": 128, "K": 64, "RELU": True}, 8),
        ("triton_correlate", "_cosine_backward_kernel", {"M": 64, "N": 128, "K": 64}, 4),
    ],
)
def test_kernels_compile_for_a_gpu_that_is_not_here(module, kernel, constants, warps):
    """The interpreter forgives what the compiler does not: types that change, shapes that do not fit."""
    triton = pytest.importorskip("triton", reason="Triton is not installed")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function = getattr(importlib.import_module(f"transformatcher.models.fused.{module}"), kernel)
    constants = {"D": 16, "KIND": 2, "LOW": True, "EPS": 1e-5} | constants
    numbers = {"inv_t": "fp32", "inv_s": "fp32"}
    kinds = {name: numbers.get(name, "*fp32" if name.endswith("_ptr") else "i32") for name in function.arg_names}
    kinds |= {name: "constexpr" for name in function.arg_names if name in constants}
    values = {
        (function.arg_names.index(name),): value for name, value in constants.items() if name in function.arg_names
    }
    source = ASTSource(function, kinds, values)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps})
    assert "ptx" in compiled.asm


@pytest.mark.skipif(INTERPRETED, reason="nothing here runs in Triton")
class TestInference:
    @torch.no_grad()
    def test_folding_batch_norms_changes_nothing(self):
        model = build_matcher(model_config({"backbone": "resnet50", "sampler": "bilinear"}))
        for module in model.backbone.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.running_mean.normal_(std=0.1)
                module.running_var.uniform_(0.5, 2)
        images = torch.randn(1, 3, 96, 64)
        ready = for_inference(model, torch.float32)
        for ours, theirs in zip(ready.encode(images), model.encode(images), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
        assert model.backbone.bn1 is not None  # the original is untouched

    def test_set_backend_reaches_every_stage(self):
        model = build_matcher(model_config({"backbone": "resnet50"}))
        model.set_backend("eager")
        assert {model.correlation.backend, model.refiner.backend, model.readout.backend} == {"eager"}


@pytest.mark.gpu
class TestGpu:
    @pytest.mark.parametrize("variant", ["paper", "released"])
    @pytest.mark.parametrize(("batch", "grid"), [(1, (15, 15, 15, 15)), (40, (15, 15, 15, 15)), (2, (30, 30, 30, 30))])
    def test_full_size(self, variant, batch, grid):
        model = build_matcher(model_config({"variant": variant, "backbone": "resnet50", "match2match.depth": 2})).cuda()
        corr = torch.rand(batch, 9, *grid, device="cuda")
        ours, theirs = (outcome(model.refiner, backend, corr) for backend in ("fused", "eager"))
        # Gradients of the softmax weights are small differences of sums over all matches: in float32 the plain path
        # itself is off by 1e-4 of them. They are held to a thousandth of the largest gradient of any weight instead.
        least = 1e-3 * max(float(grad.abs().max()) for grad in theirs[2:])
        assert worst(ours[:2], theirs[:2]) < 1e-4
        for a, b in zip(ours[2:], theirs[2:], strict=True):
            assert float((a - b).abs().max()) < 1e-4 * max(float(b.abs().max()), least)
        low, full = model.refiner(corr.bfloat16()), model.refiner(corr)
        assert float(((low - full).abs().max() / full.abs().max()).detach()) < 0.05

    @pytest.mark.parametrize("variant", ["paper", "released"])
    @torch.inference_mode()
    def test_graph_replays_what_the_model_computes(self, variant):
        settings = {"backbone": "resnet50", "sampler": "bilinear", "variant": variant}
        model = for_inference(build_matcher(model_config(settings)).cuda())
        images = torch.randn(4, 2, 3, 240, 240, device="cuda")
        run = cuda_graph(model, images[0], images[1])
        torch.testing.assert_close(run(images[2], images[3]).trg_norm, model(images[2], images[3]).trg_norm)
