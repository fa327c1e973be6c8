"""What a model would take is known before it is built."""

import pytest
import torch

from transformatcher.config import model_config
from transformatcher.errors import InputError
from transformatcher.models import cost
from transformatcher.models.build import build_matcher, pair_memory

RESNET = {"backbone": "resnet50"}


@pytest.mark.parametrize(
    "settings",
    [
        {"grid": 128},
        {"image_size": 4096},
        {"upsample": 16, "image_size": 400},
        {"match2match.depth": 64, "match2match.dim": 1024, "match2match.ffn_ratio": 16},
        {"match2match.conv_branch_depth": 16, "match2match.conv_branch_kernel": 9, "match2match.dim": 1024},
        {"refiner": "nc4d", "nc4d.depth": 16, "nc4d.kernel": 9, "nc4d.dim": 256},
        {"match2match.attention": "linformer", "match2match.linformer_rank": 4096, "image_size": 1000},
        {"match2match.position": "absolute-table", "grid": 64, "match2match.dim": 512},
    ],
    ids=str,
)
def test_what_no_machine_has_is_refused_with_both_figures(settings, monkeypatch):
    monkeypatch.setattr(cost, "machine_bytes", lambda: 6 * cost.GIB)
    with pytest.raises(InputError, match=r"takes about [\d,.]+ GiB of memory for a pair of photos, .* has 6\.0 GiB"):
        build_matcher(model_config(RESNET | settings))


def test_the_weights_count(monkeypatch):
    config = model_config(RESNET | {"image_size": 64})
    model = build_matcher(config)
    weights = cost.weight_count(model)
    assert weights == sum(value.numel() for value in model.state_dict().values())
    needed = 4 * weights + pair_memory(config, layers=9)
    monkeypatch.setattr(cost, "machine_bytes", lambda: needed)
    build_matcher(config)
    monkeypatch.setattr(cost, "machine_bytes", lambda: needed - 1)
    with pytest.raises(InputError, match=r"^with its \d+ million weights, this model takes about 0\.\d GiB"):
        build_matcher(config)


def test_several_passes_do_not_upsample_all_matches():
    once, twice = ({"upsample": 4}, {"upsample": 4, "coarse_to_fine.passes": 2})
    assert pair_memory(model_config(RESNET | once)) > 4 * pair_memory(model_config(RESNET | twice))


def test_the_memory_of_this_machine(tmp_path, monkeypatch):
    assert cost.machine_bytes() > 2**30
    limit = tmp_path / "memory.max"
    limit.write_text("max\n")
    monkeypatch.setattr(cost, "CGROUP_LIMITS", [limit])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    whole = cost.machine_bytes()
    limit.write_text("123456789\n")
    assert cost.machine_bytes() == 123456789 < whole
    assert cost.largest_batch(100_000_000) == 1
    assert cost.largest_batch(10_000_000) == 6
