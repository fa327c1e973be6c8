"""The passes in C against those in PyTorch, with every instruction set that this CPU has."""

import importlib.util
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.fused import GRIDS, KINDS, POSITIONS, isas, make_refiner, needs_library

from transformatcher.models.attention import PaperAttention
from transformatcher.models.fused import native, passes, stages
from transformatcher.models.fused.dispatch import Passes, choose_passes
from transformatcher.models.match2match import MatchToMatch
from transformatcher.models.rotary import AxialRotary, Checkerboard, NoPosition

ROOT = Path(__file__).parents[3]
TORCH = Passes(passes.embed, passes.pool, passes.update)


def in_c(isa: str) -> Passes:
    return Passes(passes.embed, partial(native.pool, isa=isa), partial(native.update, isa=isa))


@torch.inference_mode()
def refined(module: MatchToMatch, corr: torch.Tensor, run: Passes, monkeypatch: pytest.MonkeyPatch) -> torch.Tensor:
    monkeypatch.setattr(stages, "choose_passes", lambda *_: run)
    return module(corr)


def assert_same(module: MatchToMatch, corr: torch.Tensor, isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = refined(module, corr, TORCH, monkeypatch)
    found = refined(module, corr, in_c(isa), monkeypatch)
    assert (found - wanted).abs().max() < 1e-5 * wanted.abs().max()


@needs_library
@pytest.mark.parametrize("isa", isas())
class TestPasses:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("position", POSITIONS)
    @pytest.mark.parametrize("grid", [*GRIDS, (2, 3, 4, 8), (1, 2, 19, 18)])
    def test_refiner(self, isa: str, kind, position, grid, monkeypatch: pytest.MonkeyPatch):
        """Grids whose cells fill no vector, a few of them, and more than one tile; always two pairs."""
        assert_same(make_refiner(kind, position), torch.rand(2, 3, *grid), isa, monkeypatch)

    @pytest.mark.parametrize(("dim", "heads", "head_dim", "ffn_ratio"), [(6, 3, 2, 3), (32, 4, 8, 2), (16, 8, 4, 1)])
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("rotary", [True, False])
    def test_other_widths(self, isa: str, dim, heads, head_dim, ffn_ratio, kind, rotary, monkeypatch):
        position = AxialRotary(heads, head_dim) if rotary and heads * head_dim % 8 == 0 else Checkerboard()
        module = MatchToMatch(
            3, dim, 1, ffn_ratio, lambda d: kind(d, heads=heads, head_dim=head_dim, position=position)
        )
        for parameter in module.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
        assert_same(module, torch.rand(1, 3, 3, 2, 4, 5), isa, monkeypatch)

    def test_scores_far_apart(self, isa: str):
        """The highest score decides, wherever it is; none becomes infinite."""
        module = make_refiner(PaperAttention, NoPosition)
        x, scores = torch.randn(1, 16, 6 * 35), 200 * torch.randn(1, 8, 17)
        positions = stages.position_features(module.blocks[0].attention.position, (2, 3, 5, 7))
        wanted, found = (
            run(x, scores, positions, heads=8, rotate_scores=True)
            for run in (passes.pool, partial(native.pool, isa=isa))
        )
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)

    def test_gelu(self, isa: str):
        """Of the biases of a hidden layer, read out one at a time; the library computes it by a polynomial."""
        values = torch.linspace(-9, 9, 64)
        linear, positions = torch.zeros(1, 2, 3), passes.PositionFeatures("none", (1, 1, 1, 5))
        found = []
        for number in range(64):
            weight2 = torch.zeros(2, 64)
            weight2[0, number] = 1.0
            ffn = passes.Ffn(torch.zeros(64, 2), values, weight2, torch.zeros(2))
            found.append(native.update(torch.zeros(1, 2, 5), linear, positions, None, ffn, isa=isa)[0, 0])
        error = (torch.stack(found) - torch.nn.functional.gelu(values)[:, None]).abs()
        assert (error <= 2e-7 * values.abs().clamp(min=4)[:, None]).all()


@needs_library
def test_the_number_of_threads_changes_nothing():
    x, scores = torch.randn(2, 16, 5 * 4 * 18), torch.randn(2, 32, 17)
    positions = stages.position_features(POSITIONS[2](), (5, 4, 3, 6))
    before, results = torch.get_num_threads(), []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        results.append(native.pool(x, scores, positions, heads=8, rotate_scores=True))
    torch.set_num_threads(before)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def chosen(module: MatchToMatch, corr: torch.Tensor) -> Any:
    return choose_passes(corr.flatten(2), list(module.blocks)).pool


@needs_library
def test_where_it_runs(monkeypatch: pytest.MonkeyPatch):
    """In inference in float32 on a CPU, for blocks of the widths that it takes."""
    module, corr = make_refiner(PaperAttention, NoPosition), torch.rand(1, 3, 2, 2, 2, 2)
    wide = MatchToMatch(3, native.MAX_CHANNELS + 2, 1)
    assert chosen(module, corr) is passes.pool  # gradients
    with torch.no_grad():
        assert chosen(module, corr) is native.pool
        assert chosen(wide, corr) is passes.pool
        assert chosen(module, corr.double()) is passes.pool
        monkeypatch.setenv("TRANSFORMATCHER_NATIVE", "0")
        assert chosen(module, corr) is passes.pool


def test_without_the_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    native._library.cache_clear()
    native.instruction_set.cache_clear()
    for content in (None, b"no library"):
        monkeypatch.setattr(native, "__file__", str(tmp_path / "native.py"))
        if content:
            (tmp_path / native.FILES[sys.platform]).write_bytes(content)
        assert native.instruction_set() is None
        module, corr = make_refiner(PaperAttention, NoPosition), torch.rand(1, 3, 2, 2, 2, 2)
        with torch.no_grad():
            assert chosen(module, corr) is passes.pool
        native._library.cache_clear()
        native.instruction_set.cache_clear()


def build_hook() -> Any:
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    pytest.importorskip("hatchling", reason="hatchling is not installed")
    for compiler in ("no-such-compiler", "false"):
        monkeypatch.setenv("CC", compiler)
        assert not build_hook().compile_library(ROOT / "src/transformatcher/models/fused", tmp_path / "x.so")
    assert not list(tmp_path.iterdir())


SANITIZED = """
import sys, torch
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from transformatcher.models.fused import native
native.__file__ = sys.argv[1]
from test_native import KINDS, POSITIONS, TestPasses, isas
from test_native_conv import TestConvolutions
import pytest
patch = pytest.MonkeyPatch()

def run(test, *args):
    torch.manual_seed(0)  # as each test has
    test(*args)

assert isas()
for isa in isas():
    for position in POSITIONS[1:3]:
        run(TestPasses().test_refiner, isa, KINDS[0], position, (3, 4, 2, 5), patch)
    run(TestPasses().test_refiner, isa, KINDS[1], POSITIONS[2], (1, 2, 19, 18), patch)
    run(TestPasses().test_other_widths, isa, 6, 3, 2, 3, KINDS[0], True, patch)
    run(TestPasses().test_scores_far_apart, isa)
    for kernel in (1, 3, 5):
        for grid in ((3, 4, 2, 5), (1, 1, 1, 1), (2, 1, 19, 18)):
            run(TestConvolutions().test_grids, isa, kernel, grid)
    run(TestConvolutions().test_channels, isa, (3, 17, 3, 3))
    run(TestConvolutions().test_nothing_and_huge_values, isa, 0.0)
print("clean")
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux" or shutil.which("gcc") is None, reason="needs gcc's sanitizers")
def test_under_sanitizers(tmp_path: Path):
    """No access outside its arrays, no undefined behaviour."""
    library = tmp_path / native.FILES["linux"]
    flags = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g1", "-O1")
    assert build_hook().compile_library(ROOT / "src/transformatcher/models/fused", library, flags)
    runtime = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True).stdout
    done = subprocess.run(
        [sys.executable, "-c", SANITIZED, str(tmp_path / "native.py"), str(Path(__file__).parent)],
        env=os.environ | {
            "LD_PRELOAD": runtime.strip(), "ASAN_OPTIONS": "detect_leaks=0", "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT / "tests"),
        },
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.endswith("clean\n")
