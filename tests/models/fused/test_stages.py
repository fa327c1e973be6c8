"""The fused stages against the eager ones: the passes in PyTorch, and the Triton kernels under Triton's interpreter.

Triton reads TRITON_INTERPRET when it is imported, so the interpreted kernels run in a process of their own.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers.fused import DEVICE, GRIDS, INTERPRETED, KINDS, POSITIONS, make_refiner, outcome, worst

from transformatcher.config import model_config
from transformatcher.models.attention import PaperAttention, ReleasedAttention
from transformatcher.models.baselines.learned_position import AxialPositionEmbedding
from transformatcher.models.build import build_matcher
from transformatcher.models.fused.dispatch import choose_passes
from transformatcher.models.rotary import AxialRotary, Checkerboard, NoPosition


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("grid", GRIDS)
def test_torch_passes_equal_the_eager_refiner(kind, position, grid):
    module = make_refiner(kind, position).double()
    corr = torch.rand(2, 3, *grid, dtype=torch.float64)
    assert worst(outcome(module, "fused", corr), outcome(module, "eager", corr)) < 1e-9


@pytest.mark.triton
class TestTriton:
    @pytest.mark.parametrize(
        ("kind", "position", "pairs", "grid"),
        [
            *((kind, position, 2, GRIDS[0]) for kind in KINDS for position in POSITIONS[:3]),
            (PaperAttention, POSITIONS[2], 1, GRIDS[1]),
            (ReleasedAttention, Checkerboard, 1, GRIDS[1]),
        ],
    )
    def test_refiner(self, kind, position, pairs, grid):
        from transformatcher.models.fused import triton_pool

        module = make_refiner(kind, position, depth=1).to(DEVICE)
        corr = torch.rand(pairs, 3, *grid, device=DEVICE)
        assert choose_passes(corr.flatten(2), list(module.blocks)).pool.func is triton_pool.pool
        assert worst(outcome(module, "fused", corr), outcome(module, "eager", corr)) < 1e-4

    def test_learned_positions(self):
        module = make_refiner(PaperAttention, NoPosition, depth=1)
        module.position_embedding = AxialPositionEmbedding(16, GRIDS[0])
        module.to(DEVICE)
        corr = torch.rand(1, 3, *GRIDS[0], device=DEVICE)
        assert worst(outcome(module, "fused", corr), outcome(module, "eager", corr)) < 1e-4

    def test_many_tiles_and_source_cells(self, monkeypatch: pytest.MonkeyPatch):
        """More target cells than a tile holds, more than one source cell for each program."""
        from transformatcher.models.fused.triton_common import TILES

        for name, tiling in TILES.items():
            monkeypatch.setitem(TILES, name, tiling._replace(programs=24))
        module = make_refiner(PaperAttention, lambda: AxialRotary(8, 4), depth=1).to(DEVICE)
        corr = torch.rand(1, 3, 1, 3, 9, 8, device=DEVICE)
        assert worst(outcome(module, "fused", corr), outcome(module, "eager", corr)) < 1e-4


@pytest.mark.skipif(INTERPRETED or torch.cuda.is_available(), reason="the kernels run in this very process")
def test_kernels_under_the_interpreter():
    """All tests marked triton once more, interpreted: so the kernels are covered without a GPU, too."""
    pytest.importorskip("triton", reason="Triton is not installed")
    folder = Path(__file__).parent
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "triton", str(folder)]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    result = subprocess.run(
        command, env=environment, cwd=folder.parents[2], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout[-3000:]
    assert "passed" in result.stdout
    assert "skipped" not in result.stdout


@pytest.mark.gpu
@pytest.mark.parametrize("variant", ["paper", "released"])
@pytest.mark.parametrize(("batch", "grid"), [(1, (15, 15, 15, 15)), (40, (15, 15, 15, 15)), (2, (30, 30, 30, 30))])
def test_full_size(variant, batch, grid):
    model = build_matcher(model_config({"variant": variant, "backbone": "resnet50", "match2match.depth": 2})).cuda()
    corr = torch.rand(batch, 9, *grid, device="cuda")
    ours, theirs = (outcome(model.refiner, backend, corr) for backend in ("fused", "eager"))
    # Gradients of the softmax weights are small differences of sums over all matches: in float32 the eager backend
    # itself is off by 1e-4 of them. They are held to a thousandth of the largest gradient of any weight instead.
    least = 1e-3 * max(float(grad.abs().max()) for grad in theirs[2:])
    assert worst(ours[:2], theirs[:2]) < 1e-4
    for a, b in zip(ours[2:], theirs[2:], strict=True):
        assert float((a - b).abs().max()) < 1e-4 * max(float(b.abs().max()), least)
    model.refiner.set_backend("auto")
    low, full = model.refiner(corr.bfloat16()), model.refiner(corr)
    assert float(((low - full).abs().max() / full.abs().max()).detach()) < 0.05
