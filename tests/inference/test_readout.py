"""One read-out for everybody: against a plain loop, lazily, in batches and in both directions."""

import numpy as np
import pytest
import torch

from transformatcher.inference.calibration import Calibration
from transformatcher.inference.readout import TwoWayFlow, read_flow, read_grid, read_points
from transformatcher.models.flow import KernelSoftArgmax, swap_source_target
from transformatcher.models.sampler import soft_sample

CALIBRATION = Calibration(bias=1.0, sharpness=0.5, consistency=-1.0)


class CountingReadOut(KernelSoftArgmax):
    """Counts the maps it was given."""

    maps = 0

    def forward(self, refined):
        self.maps += len(refined)
        return super().forward(refined)


@pytest.fixture
def readout() -> CountingReadOut:
    return CountingReadOut(upsample=2, kernel_sigma=1.5, kernel_on="probabilities")


@pytest.fixture
def refined() -> torch.Tensor:
    return 8 * torch.randn(3, 5, 4, 6, 5)


def interpolated(field: np.ndarray, x: float, y: float) -> np.ndarray:
    """A field (h, w, c) at (x, y) in [-1, 1]², outer cells on the border."""
    column, row = ((v + 1) / 2 * (n - 1) for v, n in ((x, field.shape[1]), (y, field.shape[0])))
    column, row = np.clip(column, 0, field.shape[1] - 1), np.clip(row, 0, field.shape[0] - 1)
    j, i = min(int(column), field.shape[1] - 2), min(int(row), field.shape[0] - 2)
    right, down = column - j, row - i
    upper = (1 - right) * field[i, j] + right * field[i, j + 1]
    lower = (1 - right) * field[i + 1, j] + right * field[i + 1, j + 1]
    return (1 - down) * upper + down * lower


def test_points_as_a_plain_loop_finds_them(readout, refined):
    points = torch.rand(3, 7, 2) * 2 - 1
    matches = read_points(TwoWayFlow.of(readout, refined), points, CALIBRATION)
    forward, backward = readout(refined), readout(swap_source_target(refined))
    for b in range(3):
        flow, back = forward.trg_norm[b].double().numpy(), backward.trg_norm[b].double().numpy()
        for n, (x, y) in enumerate(points[b].tolist()):
            target = interpolated(flow, x, y)
            peak = interpolated(forward.peak[b, ..., None].double().numpy(), x, y)[0]
            error = np.linalg.norm(interpolated(back, *target) - (x, y))
            np.testing.assert_allclose(matches.trg_norm[b, n], target, atol=1e-5)
            assert matches.peak[b, n].item() == pytest.approx(peak, rel=1e-4)
            assert matches.cycle_error[b, n].item() == pytest.approx(error, abs=1e-5)
            wanted = 1 / (1 + np.exp(-(1 + 0.5 * np.log(peak) - np.log(max(error, 0.02)))))
            assert matches.confidence[b, n].item() == pytest.approx(wanted, rel=1e-3)


def test_a_permutation_is_cycle_consistent():
    eye = 50 * torch.eye(20).reshape(1, 4, 5, 4, 5)
    flows = TwoWayFlow.of(KernelSoftArgmax(upsample=1, kernel_sigma=1.0, kernel_on="probabilities"), eye)
    cells = read_grid(flows)
    assert cells.cycle_consistent.all()
    torch.testing.assert_close(cells.trg_norm, cells.src_norm)
    shuffled = eye.reshape(1, 20, 20)[:, :, torch.randperm(20)].reshape(eye.shape).contiguous()
    one_sided = shuffled.clone()
    one_sided[0, 0, 0] = one_sided[0, 3, 4]  # two sources want the same target: at most one gets back
    back = read_grid(TwoWayFlow.of(flows_readout := KernelSoftArgmax(1, 1.0, kernel_on="probabilities"), one_sided))
    assert not back.cycle_consistent.all()
    assert read_grid(TwoWayFlow.of(flows_readout, shuffled)).cycle_consistent.all()


def test_only_what_is_used_is_read_out(readout, refined):
    flows = TwoWayFlow.of(readout, refined)
    assert readout.maps == 0
    matches = read_points(flows, torch.zeros(3, 1, 2))
    assert (matches.confidence == matches.peak.double()).all()  # without a calibration there is no need to go back
    assert readout.maps == 3
    read_points(flows, torch.zeros(3, 2, 2), CALIBRATION).confidence  # noqa: B018
    read_grid(flows, CALIBRATION).confidence  # noqa: B018
    assert readout.maps == 6


def test_pairs_of_a_batch_share_its_read_out(readout, refined):
    flows = TwoWayFlow.of(readout, refined)
    points = torch.rand(3, 7, 2) * 2 - 1
    whole = read_points(flows, points, CALIBRATION)
    for rows in (slice(1, 2), [2, 0]):
        part = read_points(flows.rows(rows), points[rows], CALIBRATION)
        assert torch.equal(part.trg_norm, whole.trg_norm[rows])
        assert torch.equal(part.confidence, whole.confidence[rows])
    back = read_points(flows.swapped(), points, CALIBRATION)
    assert readout.maps == 6
    again = read_points(TwoWayFlow.of(readout, swap_source_target(refined)), points, CALIBRATION)
    assert torch.equal(back.trg_norm, again.trg_norm)
    assert torch.equal(back.confidence, again.confidence)
    assert flows.swapped().grid == (6, 5)


def test_the_sampler_of_a_model_may_be_another(readout, refined):
    points = torch.rand(3, 7, 2) * 2 - 1
    flows = TwoWayFlow.of(readout, refined)
    matches = read_points(flows, points, transfer=lambda flow, kps: soft_sample(flow.trg_norm, kps, threshold=0.4))
    assert torch.equal(matches.trg_norm, soft_sample(flows.forward.trg_norm, points, threshold=0.4))
    assert not torch.allclose(matches.trg_norm, read_points(flows, points).trg_norm)


def test_all_cells_of_the_flow(readout, refined):
    cells = read_flow(TwoWayFlow.of(readout, refined), CALIBRATION, precision=torch.float32)
    assert torch.equal(cells.trg_norm, cells.flows.forward.trg_norm.flatten(1, 2))
    assert cells.confidence.dtype == torch.float32
    torch.testing.assert_close(cells.peak, cells.flows.forward.peak.flatten(1))
    same = read_points(cells.flows, cells.src_norm, CALIBRATION)
    torch.testing.assert_close(cells.confidence, same.confidence.float(), rtol=1e-3, atol=1e-4)
