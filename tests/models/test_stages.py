"""Every stage of the pipeline: against naive loops, by gradcheck, and by what it must do."""

import itertools

import numpy as np
import pytest
import torch
from helpers import reference
from torch.autograd import gradcheck

from transformatcher.config import model_config
from transformatcher.coords import grid_norm
from transformatcher.errors import InputError
from transformatcher.models.attention import PaperAttention, ReleasedAttention
from transformatcher.models.build import build_refiner
from transformatcher.models.correlation import MultiLevelCorrelation, cosine_correlation
from transformatcher.models.flow import KernelSoftArgmax, swap_source_target
from transformatcher.models.match2match import MatchToMatch, MeanCorrelation
from transformatcher.models.resize4d import resize4d
from transformatcher.models.rotary import AxialRotary, Checkerboard, NoPosition
from transformatcher.models.sampler import bilinear_sample, soft_sample

GRID = (2, 3, 3, 2)  # nothing square, axes of even and odd length
POSITIONS = list(itertools.product(*(range(n) for n in GRID)))


def random64(*shape, grad=False):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=grad)


def weights_of(module):
    return {key: value.detach().numpy() for key, value in module.state_dict().items()}


class TestCorrelation:
    def test_equals_equation_4(self):
        src, trg = random64(1, 5, 2, 3), random64(1, 5, 4, 2)
        expected = reference.correlation(src[0].numpy(), trg[0].numpy())
        np.testing.assert_allclose(cosine_correlation(src, trg)[0], expected, atol=1e-12)

    def test_paper_resizes_the_maps(self):
        src, trg = [random64(1, 4, 3, 4), random64(1, 6, 2, 2)], [random64(1, 4, 3, 4), random64(1, 6, 2, 2)]
        out = MultiLevelCorrelation("resize-correlation")(src, trg)
        assert out.shape == (1, 2, 3, 4, 3, 4)
        expected = reference.resize(reference.correlation(src[1][0].numpy(), trg[1][0].numpy()), (3, 4, 3, 4))
        np.testing.assert_allclose(out[0, 1], expected, atol=1e-12)

    def test_released_resizes_normalised_features(self):
        src, trg = [random64(1, 6, 2, 2)], [random64(1, 6, 2, 2)]
        out = MultiLevelCorrelation("resize-features", grid=(3, 4))(src, trg)
        unit = [(f / f.norm(dim=1, keepdim=True))[0].numpy() for f in (*src, *trg)]
        f, g = (reference.resize(u, (6, 3, 4)) for u in unit)
        np.testing.assert_allclose(out[0, 0], np.maximum(np.einsum("cij,ckl->ijkl", f, g), 0), atol=1e-12)

    def test_both_are_equal_on_features_that_passed_a_relu(self):
        src, trg = ([random64(1, 4, 5, 3).relu() + 0.01, random64(1, 6, 3, 2).relu() + 0.01] for _ in range(2))
        paper, released = (MultiLevelCorrelation(kind)(src, trg) for kind in ("resize-correlation", "resize-features"))
        torch.testing.assert_close(paper, released, rtol=0, atol=1e-12)

    def test_source_and_target_grids_may_differ(self):
        out = MultiLevelCorrelation()([random64(1, 4, 3, 4)], [random64(1, 4, 5, 2)])
        assert out.shape == (1, 1, 3, 4, 5, 2)

    def test_mean_is_that_of_the_channels(self):
        src, trg = ([random64(2, 4, 3, 4), random64(2, 6, 2, 2)] for _ in range(2))
        multi, mean = (MultiLevelCorrelation(layer_fusion=layer_fusion)(src, trg) for layer_fusion in ("multi", "mean"))
        torch.testing.assert_close(mean, (multi[:, :1] + multi[:, 1:]) / 2)

    @pytest.mark.parametrize("kind", ["resize-correlation", "resize-features"])
    def test_concat_is_the_cosine_of_features_one_behind_the_other(self, kind):
        src, trg = ([random64(1, 4, 3, 4), random64(1, 6, 2, 2)] for _ in range(2))
        out = MultiLevelCorrelation(kind, layer_fusion="concat")(src, trg)
        assert out.shape == (1, 1, 3, 4, 3, 4)
        f, g = (
            np.concatenate([fine[0].numpy(), reference.resize(coarse[0].numpy(), (6, 3, 4))])
            for fine, coarse in (src, trg)
        )
        np.testing.assert_allclose(out[0, 0], reference.correlation(f, g), atol=1e-12)

    def test_the_grid_is_that_of_the_finest_layer(self):
        src, trg = ([random64(1, 4, 3, 4), random64(1, 6, 2, 2), random64(1, 6, 2, 2)] for _ in range(2))
        every, some = (MultiLevelCorrelation(grid=(3, 4))(src[i:], trg[i:]) for i in (0, 1))
        assert torch.equal(some, every[:, 1:])
        assert MultiLevelCorrelation()(src[1:], trg[1:]).shape == (1, 2, 2, 2, 2, 2)

    def test_uneven_layers_are_refused(self):
        with pytest.raises(InputError, match="2 and 1"):
            MultiLevelCorrelation()([random64(1, 4, 3, 4)] * 2, [random64(1, 4, 3, 4)])

    @pytest.mark.parametrize("kind", ["resize-correlation", "resize-features"])
    @pytest.mark.parametrize("layer_fusion", ["multi", "concat", "mean"])
    def test_gradcheck(self, kind, layer_fusion):
        features = [random64(1, 3, 2, 2, grad=True), random64(1, 2, 2, 3, grad=True)]
        other = [random64(1, 3, 2, 2, grad=True), random64(1, 2, 2, 3, grad=True)]
        stage = MultiLevelCorrelation(kind, grid=(2, 3), layer_fusion=layer_fusion)
        assert gradcheck(lambda a, b, c, d: stage([a, b], [c, d]), (*features, *other))


class TestResize4d:
    def test_equals_naive_interpolation(self):
        corr = random64(1, 2, 3, 3, 2)
        expected = reference.resize(corr[0].numpy(), (4, 5, 6, 3))
        np.testing.assert_allclose(resize4d(corr, (4, 5), (6, 3))[0], expected, atol=1e-12)

    def test_gradcheck(self):
        assert gradcheck(lambda c: resize4d(c, (3, 4), (2, 5)), random64(1, 2, 3, 2, 2, grad=True))


class TestRotary:
    def test_equals_naive_rotation(self):
        x = random64(1, 8, len(POSITIONS), 4)
        out = AxialRotary(8, 4)(x, GRID)
        for head, (index, position) in itertools.product(range(8), enumerate(POSITIONS)):
            expected = reference.rotate_axial(x[0, head, index].numpy(), position, head, heads=8)
            np.testing.assert_allclose(out[0, head, index], expected, atol=1e-12)

    @pytest.mark.parametrize("axis", range(4))
    def test_interaction_depends_on_the_offset_alone(self, axis):
        """⟨rot(q, m), rot(k, n)⟩ stays when m and n move together along an axis, and changes when one moves alone."""
        grid = (5, 6, 4, 7)
        q, k = random64(8, 4), random64(8, 4)

        def interaction(m, n):
            x = torch.zeros(2, 8, int(np.prod(grid)), 4, dtype=torch.float64)
            i, j = np.ravel_multi_index(m, grid), np.ravel_multi_index(n, grid)
            x[0, :, i], x[1, :, j] = q, k
            rotated = AxialRotary(8, 4)(x, grid)
            return (rotated[0, :, i] * rotated[1, :, j]).sum(dim=1)  # one number a head

        step = np.eye(4, dtype=int)[axis]
        m, n = np.array([1, 0, 2, 3]), np.array([0, 2, 1, 1])
        together = interaction(m + step, n + step)
        torch.testing.assert_close(together, interaction(m, n), rtol=0, atol=1e-12)
        assert (interaction(m + step, n) - interaction(m, n)).abs().max() > 1e-3

    @pytest.mark.parametrize("axis", range(4))
    def test_every_axis_turns_its_own_share_of_planes(self, axis):
        angles = AxialRotary(8, 4).angle_of_plane
        assert (angles[axis] != 0).sum() == 4
        assert ((angles != 0).sum(dim=0) == 1).all()
        assert len(angles[axis][angles[axis] != 0].unique()) == 4

    def test_fewer_frequencies(self):
        angles = AxialRotary(8, 4, frequencies=2).angle_of_plane
        assert len(angles[angles != 0].unique()) == 2
        with pytest.raises(InputError, match="5 frequencies, expected 1 to 4"):
            AxialRotary(8, 4, frequencies=5)

    def test_lengths_are_kept(self):
        x = random64(2, 8, len(POSITIONS), 4)
        torch.testing.assert_close(AxialRotary(8, 4)(x, GRID).norm(dim=-1), x.norm(dim=-1))

    def test_too_few_planes_are_refused(self):
        with pytest.raises(InputError, match="1 heads of 4 channels give 2 planes"):
            AxialRotary(1, 4)

    def test_checkerboard_is_a_sign(self):
        x = random64(1, 2, len(POSITIONS), 4)
        signs = torch.tensor([(-1.0) ** sum(p) for p in POSITIONS], dtype=torch.float64)
        torch.testing.assert_close(Checkerboard()(x, GRID), x * signs[:, None], rtol=0, atol=0)

    def test_checkerboard_is_the_released_rotation_on_odd_grids(self):
        """Rotation of the flattened index by π and 5π, as the released code writes it."""
        grid = (3, 3, 3, 3)
        x = random64(1, 1, 81, 4)
        turns = np.arange(81)[:, None] * np.array([np.pi, 5 * np.pi])
        z = x[0, 0].numpy()[:, 0::2] + 1j * x[0, 0].numpy()[:, 1::2]
        z = z * np.exp(1j * turns)
        expected = np.stack([z.real, z.imag], axis=-1).reshape(81, 4)
        np.testing.assert_allclose(Checkerboard()(x, grid)[0, 0], expected, atol=1e-10)


ATTENTIONS = [
    (PaperAttention, lambda: AxialRotary(4, 4), reference.paper_attention),
    (ReleasedAttention, Checkerboard, reference.released_attention),
]


class TestAttention:
    @pytest.mark.parametrize(("kind", "position", "reference"), ATTENTIONS)
    def test_equals_the_equations(self, kind, position, reference):
        attention = kind(6, heads=4, head_dim=4, position=position()).double()
        x = random64(2, len(POSITIONS), 6)
        out = attention(x, GRID).detach()
        for row in range(2):
            expected = reference(x[row].numpy(), POSITIONS, weights_of(attention), 4, 4)
            np.testing.assert_allclose(out[row], expected, atol=1e-12)

    @pytest.mark.parametrize("kind", [PaperAttention, ReleasedAttention])
    @pytest.mark.parametrize("position", [NoPosition, Checkerboard, lambda: AxialRotary(4, 2)])
    def test_gradcheck(self, kind, position):
        attention = kind(3, heads=4, head_dim=2, position=position()).double()
        parameters = tuple(attention.parameters())

        def run(x, *_):
            return attention(x, (1, 2, 2, 1))

        assert gradcheck(run, (random64(1, 4, 3, grad=True), *parameters))

    @pytest.mark.parametrize("kind", [PaperAttention, ReleasedAttention])
    def test_without_position_matches_have_no_order(self, kind):
        attention = kind(6, heads=4, head_dim=4).double()
        x = random64(1, len(POSITIONS), 6)
        order = torch.randperm(len(POSITIONS))
        torch.testing.assert_close(attention(x[:, order], GRID), attention(x, GRID)[:, order])

    def test_released_needs_couples_of_channels(self):
        with pytest.raises(InputError, match="head_dim 3"):
            ReleasedAttention(6, heads=2, head_dim=3)


class TestMatchToMatch:
    @pytest.mark.parametrize("backend", ["eager", "fused"])
    def test_equals_naive_blocks(self, backend):
        refiner = MatchToMatch(
            3, dim=4, depth=2, ffn_ratio=2, make_attention=lambda d: PaperAttention(d, 4, 2)
        ).double()
        for name, value in refiner.named_parameters():  # LayerNorm starts as ones and zeros: make it count
            if "norm" in name:
                torch.nn.init.normal_(value)
        refiner.set_backend(backend)
        corr = random64(1, 3, *GRID)
        w = weights_of(refiner)
        x = corr[0].flatten(1).T.numpy() @ w["embed.weight"].T + w["embed.bias"]
        for n in range(2):
            part = {key.removeprefix(f"blocks.{n}."): value for key, value in w.items()}
            attention = {key.removeprefix("attention."): v for key, v in part.items() if key.startswith("attention.")}
            normed = np.array(
                [reference.layer_norm(r, part["norm_attention.weight"], part["norm_attention.bias"]) for r in x]
            )
            still = [(0, 0, 0, 0)] * len(x)  # no position: nothing turns
            x = x + reference.paper_attention(normed, still, attention, 4, 2)
            gain, shift = part["norm_ffn.weight"], part["norm_ffn.bias"]
            normed = np.array([reference.layer_norm(row, gain, shift) for row in x])
            hidden = reference.gelu(normed @ part["ffn.0.weight"].T + part["ffn.0.bias"])
            x = x + hidden @ part["ffn.2.weight"].T + part["ffn.2.bias"]
        expected = (x @ w["score.weight"].T + w["score.bias"]).reshape(GRID)
        np.testing.assert_allclose(refiner(corr)[0].detach(), expected, atol=1e-12)

    @pytest.mark.parametrize("backend", ["eager", "fused"])
    def test_gradcheck(self, backend):
        refiner = MatchToMatch(2, dim=4, depth=1, make_attention=lambda d: PaperAttention(d, 4, 2)).double()
        refiner.set_backend(backend)
        assert gradcheck(refiner, random64(1, 2, 1, 2, 2, 1, grad=True))

    def test_wrong_number_of_layers_is_named(self):
        with pytest.raises(InputError, match="built for 3 correlation layers, got 2"):
            MatchToMatch(3)(torch.randn(1, 2, 2, 2, 2, 2))

    def test_another_attention_is_one_argument(self):
        class Nothing(torch.nn.Module):
            def forward(self, x, _grid):
                return torch.zeros_like(x)

        refiner = MatchToMatch(3, depth=1, make_attention=lambda _: Nothing())
        assert refiner(torch.randn(1, 3, 2, 3, 2, 2)).shape == (1, 2, 3, 2, 2)

    @pytest.mark.parametrize("kind", [PaperAttention, ReleasedAttention])
    @pytest.mark.parametrize("backend", ["eager", "fused"])
    def test_a_raw_start_is_the_mean_correlation(self, backend, kind):
        refiner = MatchToMatch(4, depth=2, make_attention=kind, correlation_skip=7.0).double()  # a quarter is exact
        refiner.set_backend(backend)
        corr = random64(2, 4, *GRID)
        torch.testing.assert_close(refiner(corr), 7 * MeanCorrelation()(corr), rtol=0, atol=1e-12)

    def test_a_raw_start_learns_on_both_ways(self):
        refiner = MatchToMatch(3, depth=1, correlation_skip=7.0).double()
        corr = random64(2, 3, *GRID)
        weights = random64(2, *GRID)
        (refiner(corr) * weights).sum().backward()
        expected = 7 * torch.einsum("blhwij,bhwij->l", corr, weights)
        torch.testing.assert_close(refiner.mix.grad, expected)
        assert refiner.score.weight.grad.any()

    @pytest.mark.parametrize("kind", [PaperAttention, ReleasedAttention])
    def test_raw_gain_on_the_fast_path(self, kind):
        refiner = MatchToMatch(2, dim=8, depth=2, make_attention=lambda d: kind(d, 4, 2), correlation_skip=3.0).double()
        for parameter in refiner.parameters():
            torch.nn.init.normal_(parameter, std=0.4)
        results = {}
        for backend in ("eager", "fused"):
            refiner.set_backend(backend)
            corr = torch.linspace(0, 1, 2 * 36, dtype=torch.float64).sin().reshape(1, 2, *GRID).requires_grad_()
            out = refiner(corr)
            results[backend] = out, *torch.autograd.grad(out.square().sum(), (corr, *refiner.parameters()))
        torch.testing.assert_close(results["fused"], results["eager"], rtol=1e-9, atol=1e-9)

    def test_without_a_raw_start_there_is_no_mixture(self):
        assert "mix" not in MatchToMatch(2, depth=1).state_dict()
        refiner = build_refiner(model_config({"correlation_skip": 5, "match2match.depth": 1}), layers=4)
        assert refiner.correlation_skip == 5.0
        torch.testing.assert_close(refiner.state_dict()["mix"], torch.full((4,), 0.25))

    def test_mean_correlation(self):
        corr = random64(2, 3, *GRID)
        torch.testing.assert_close(MeanCorrelation()(corr), (corr[:, 0] + corr[:, 1] + corr[:, 2]) / 3)


class TestFlow:
    @pytest.mark.parametrize("kernel_on", ["logits", "probabilities", "none"])
    def test_equals_the_paper(self, kernel_on):
        refined = random64(1, 2, 2, 3, 2)
        flow = KernelSoftArgmax(upsample=2, kernel_sigma=1.7, temperature=0.6, kernel_on=kernel_on)(refined)
        scores = reference.resize(refined[0].numpy(), (4, 4, 6, 4))
        expected = reference.kernel_soft_argmax(scores, 1.7, 0.6, kernel_on)
        np.testing.assert_allclose(flow.trg_norm[0], expected, atol=1e-6)

    @pytest.mark.parametrize("kernel_on", ["logits", "probabilities", "none"])
    def test_gradcheck(self, kernel_on):
        readout = KernelSoftArgmax(upsample=2, kernel_sigma=1.5, kernel_on=kernel_on)
        assert gradcheck(lambda c: readout(c).trg_norm, random64(1, 2, 1, 2, 3, grad=True))

    def test_distribution_sums_to_one(self):
        readout = KernelSoftArgmax(kernel_on="probabilities")
        refined = random64(1, *GRID)
        p = readout.distribution(refined)
        assert p.shape == (1, 4, 6, 6, 4)
        torch.testing.assert_close(p.sum(dim=(3, 4)), torch.ones(1, 4, 6, dtype=torch.float64))
        torch.testing.assert_close(readout(refined).peak, p.flatten(3).amax(dim=3))

    @pytest.mark.parametrize("shift", [(0, 0), (1, 0), (0, -2)])
    def test_known_translation_is_recovered(self, shift):
        dx, dy = shift
        h, w = 6, 7
        corr = torch.zeros(1, h, w, h, w, dtype=torch.float64)
        for y, x in itertools.product(range(h), range(w)):
            if 0 <= y + dy < h and 0 <= x + dx < w:
                corr[0, y, x, y + dy, x + dx] = 100.0
        flow = KernelSoftArgmax(upsample=1, kernel_sigma=3.0)(corr).trg_norm[0]
        moved = flow - grid_norm((h, w), like=flow)
        inside = corr[0].flatten(2).amax(dim=2) > 0
        expected = torch.tensor([2 * dx / (w - 1), 2 * dy / (h - 1)], dtype=torch.float64)
        torch.testing.assert_close(moved[inside], expected.expand(int(inside.sum()), 2), rtol=0, atol=1e-6)

    def test_gaussian_on_negative_logits_pushes_the_peak_away(self):
        """The defect of the paper's formula, and the remedy: all scores negative, the best one in a corner."""
        scores = torch.full((1, 1, 1, 9, 9), -5.0, dtype=torch.float64)
        scores[0, 0, 0, 0, 0] = -4.0
        corner = torch.tensor([-1.0, -1.0], dtype=torch.float64)
        away, near = (
            (KernelSoftArgmax(1, 2.0, kernel_on=g)(scores).trg_norm[0, 0, 0] - corner).norm()
            for g in ("logits", "probabilities")
        )
        assert away > 1.4  # beyond the middle of the image
        assert near < 0.6

    def test_reverse_swaps_the_sides(self):
        corr = random64(1, *GRID)
        assert swap_source_target(corr)[0, 2, 1, 0, 2] == corr[0, 0, 2, 2, 1]


class TestKeypointTransfer:
    def test_soft_sampler_equals_the_paper(self):
        flow, points = random64(1, 6, 5, 2), torch.rand(1, 7, 2, dtype=torch.float64) * 2 - 1
        out = soft_sample(flow, points, threshold=0.6)
        for row in range(7):
            expected = reference.soft_sample(flow[0].numpy(), points[0, row].numpy(), 0.6)
            np.testing.assert_allclose(out[0, row], expected, atol=1e-6)

    def test_bilinear_equals_naive_interpolation(self):
        flow = random64(1, 3, 3, 2)
        fine = reference.resize(flow[0].numpy(), (5, 9, 2))
        points = grid_norm((5, 9), like=flow).flatten(0, 1)[None]
        np.testing.assert_allclose(bilinear_sample(flow, points)[0], fine.reshape(45, 2), atol=1e-6)

    def test_bilinear_is_exact_on_the_identity_and_the_soft_sampler_is_not(self):
        identity = grid_norm((30, 30), like=torch.zeros(1, dtype=torch.float64))[None]
        points = torch.rand(1, 500, 2, dtype=torch.float64) * 2 - 1
        exact, soft = bilinear_sample(identity, points), soft_sample(identity, points, threshold=0.05)
        assert (exact - points).norm(dim=-1).max() < 1e-6
        assert 1.5 < (soft - points).norm(dim=-1).mean() * 120 < 2.7  # pixels of 240: the known floor of about 2.1

    def test_points_outside_are_taken_at_the_border(self):
        identity = grid_norm((30, 30), like=torch.zeros(1))[None]
        outside = torch.tensor([[[1.3, -1.2]]])
        torch.testing.assert_close(bilinear_sample(identity, outside), torch.tensor([[[1.0, -1.0]]]))
        assert soft_sample(identity, outside, threshold=0.1)[0, 0].tolist() == pytest.approx([1, -1], abs=0.05)

    def test_threshold_that_misses_points_is_refused(self):
        with pytest.raises(InputError, match=r"threshold 0\.05, some points of a 15 × 15 grid have no cell"):
            soft_sample(torch.zeros(1, 15, 15, 2), torch.zeros(1, 1, 2), threshold=0.05)

    @pytest.mark.parametrize("sample", [bilinear_sample, lambda f, p: soft_sample(f, p, threshold=0.9)])
    def test_gradcheck(self, sample):
        points = torch.tensor([[[0.13, -0.37], [0.71, 0.22]]], dtype=torch.float64, requires_grad=True)
        assert gradcheck(sample, (random64(1, 4, 3, 2, grad=True), points))
