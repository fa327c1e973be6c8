"""The 4-D convolutions in C against those in PyTorch, with every instruction set that this CPU has."""

import pytest
import torch
from helpers.fused import isas, needs_library

from transformatcher.models.fused import native, native_conv
from transformatcher.models.match2match import MatchToMatch
from transformatcher.models.neighbourhood_consensus import Conv4d, NeighbourhoodConsensus

SHIPPED = (9, 16, 3, 3)  # layers, channels, convolutions, kernel
GRID = (3, 4, 2, 5)


def make(layers: int, dim: int, depth: int, kernel: int, std: float = 0.3) -> NeighbourhoodConsensus:
    module = NeighbourhoodConsensus(layers, dim, depth, kernel, mutual_filter=False)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=std)
    return module


@torch.inference_mode()
def in_c(module: NeighbourhoodConsensus, corr: torch.Tensor, isa: str | None = None) -> torch.Tensor:
    weights = [(conv.weight, conv.bias) for conv in (*module.convs, module.score)]
    return native_conv.convolve_both_ways(corr, weights, isa=isa)


@torch.inference_mode()
def in_torch(module: NeighbourhoodConsensus, corr: torch.Tensor) -> torch.Tensor:
    module.set_backend("eager")
    return module(corr)


def assert_same(module: NeighbourhoodConsensus, corr: torch.Tensor, isa: str) -> None:
    wanted = in_torch(module, corr)
    found = in_c(module, corr, isa)
    assert found.shape == wanted.shape
    assert (found - wanted).abs().max() <= 3e-6 * wanted.abs().max()


@needs_library
@pytest.mark.parametrize("isa", isas())
class TestConvolutions:
    @pytest.mark.parametrize("kernel", [1, 3, 5])
    @pytest.mark.parametrize("grid", [GRID, (5, 3, 5, 3), (1, 2, 9, 8), (1, 1, 1, 1), (2, 1, 19, 18), (4, 2, 1, 3)])
    def test_grids(self, isa: str, kernel: int, grid):
        """Even, odd and tiny ones, whose cells fill no vector and several of them."""
        assert_same(make(2, 9, 2, kernel), torch.randn(1, 2, *grid), isa)

    @pytest.mark.parametrize("settings", [SHIPPED, (1, 1, 2, 3), (3, 17, 3, 3), (20, 8, 4, 3), (4, 16, 1, 3)])
    def test_channels(self, isa: str, settings):
        """Numbers of channels that fill no block and several of them; always three pairs."""
        assert_same(make(*settings), torch.randn(3, settings[0], *GRID), isa)

    def test_the_shipped_size(self, isa: str):
        assert_same(make(*SHIPPED, std=0.1), torch.rand(1, 9, 17, 17, 17, 17), isa)

    @pytest.mark.parametrize("value", [0.0, 1e30])
    def test_nothing_and_huge_values(self, isa: str, value: float):
        assert_same(make(2, 4, 1, 3), value * torch.randn(1, 2, *GRID), isa)

    def test_distant_matches_have_no_effect(self, isa: str):
        """Not even by rounding, although Winograd's sums contain more matches than an output depends on."""
        module, corr = make(2, 8, 1, 3), torch.randn(1, 2, 6, 6, 5, 5)
        changed = corr.clone()
        changed[:, :, 2, 3, 1, 4] = 1e20
        same = in_c(module, changed, isa) == in_c(module, corr, isa)
        same[:, 1:4, 2:5, 0:3, 3:5] = True
        assert same.all()

    def test_what_is_not_a_number_stays_so(self, isa: str):
        corr = torch.randn(1, 2, *GRID)
        corr[0, 0, 1, 1, 1, 1] = torch.nan
        assert in_c(make(2, 4, 2, 3), corr, isa)[0, 1, 1, 1, 1].isnan()

    def test_strided_inputs(self, isa: str):
        corr = torch.randn(2, 5, 4, 3, 2, 3).permute(0, 5, 2, 1, 4, 3)
        module = make(3, 4, 2, 3)
        for conv in (*module.convs, module.score):
            conv.weight.data = conv.weight.data.permute(0, 1, 5, 3, 4, 2)
        assert_same(module, corr, isa)


@needs_library
def test_neither_threads_nor_other_pairs_change_anything():
    module, corr = make(*SHIPPED), torch.randn(3, 9, 5, 4, 3, 6)
    before, results = torch.get_num_threads(), []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        results.append(in_c(module, corr))
    torch.set_num_threads(before)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
    assert torch.equal(results[0], torch.cat([in_c(module, pair[None]) for pair in corr]))


class Changed(NeighbourhoodConsensus):
    pass


class ChangedConv(Conv4d):
    pass


@needs_library
class TestWhereItRuns:
    @pytest.fixture
    def runs(self, monkeypatch: pytest.MonkeyPatch) -> list[torch.dtype]:
        """The type of every input of the library."""
        seen, convolve = [], native_conv.convolve_both_ways
        monkeypatch.setattr(
            native_conv, "convolve_both_ways", lambda x, convs: (seen.append(x.dtype), convolve(x, convs))[1]
        )
        return seen

    def test_in_inference_in_float32_on_a_cpu(self, runs, monkeypatch: pytest.MonkeyPatch):
        module, corr = NeighbourhoodConsensus(2, kernel=3), torch.rand(1, 2, *GRID)
        module(corr)  # gradients
        with torch.no_grad():
            module.double()(corr.double())
            NeighbourhoodConsensus(2, 1, 1, native_conv.MAX_KERNEL + 2)(corr[:, :, :1, :1, :1, :1])
            Changed(2)(corr)
            other = NeighbourhoodConsensus(2)
            other.score = ChangedConv(16, 1)
            other(corr)
            module.float().set_backend("eager")
            wanted = module(corr)
            module.set_backend("auto")
            monkeypatch.setenv(native.SWITCH, "0")
            module(corr)
            assert runs == []
            monkeypatch.delenv(native.SWITCH)
            torch.testing.assert_close(module(corr), wanted)
            assert runs == [torch.float32]

    def test_lower_precision_is_converted(self, runs):
        module, corr = NeighbourhoodConsensus(2), torch.rand(1, 2, *GRID).bfloat16()
        with torch.no_grad():
            found = module(corr)
            assert runs == [torch.float32]
            assert torch.equal(found, module(corr.float()))

    def test_beside_attention_it_follows_the_backend(self, runs):
        module = MatchToMatch(2, depth=1, consensus=NeighbourhoodConsensus(2))
        with torch.inference_mode():
            module.set_backend("eager")
            wanted = module(torch.ones(1, 2, *GRID))
            assert runs == []
            module.set_backend("auto")
            torch.testing.assert_close(module(torch.ones(1, 2, *GRID)), wanted)
        assert runs == [torch.float32]
