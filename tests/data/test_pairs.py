"""Batches of decoded pairs, evenly spaced subsets of a list."""

from pathlib import Path

import numpy as np

from transformatcher.data.pairs import collate, load_pair, subsample_evenly
from transformatcher.data.pf import load_pfwillow
from transformatcher.data.spair import load_spair


def test_collate_masks_what_it_fills(spair_root: Path, willow_root: Path):
    pairs = load_spair(spair_root, "val")[:1] + load_pfwillow(willow_root)
    batch = collate([load_pair(pair, (32, 48)) for pair in pairs])
    assert batch.src.shape == (2, 3, 32, 48)
    assert batch.visible.sum(dim=1).tolist() == [2, 10]
    np.testing.assert_allclose(batch.src_kps_norm[0, 0], [10 * 2 / 80 - 1, 10 * 2 / 60 - 1], atol=1e-6)
    np.testing.assert_allclose(batch.trg_kps_norm[0, 0], [15 * 2 / 80 - 1, 12 * 2 / 60 - 1], atol=1e-6)


def test_subsample_evenly():
    assert subsample_evenly(range(10), 4) == [0, 3, 6, 9]
    assert subsample_evenly(range(3), 4) == subsample_evenly(range(3), None) == [0, 1, 2]
