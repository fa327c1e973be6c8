"""Two folders that eval wrote for the same pairs → how far their confidences and positions are apart.

Usage: python docs/make/confidences.py out/default out/float32
"""

import sys
from pathlib import Path

import numpy as np
import torch

from transformatcher.evaluation.predict import Prediction, read_predictions
from transformatcher.inference.calibration import load_calibration
from transformatcher.inference.checkpoint import SHIPPED
from transformatcher.inference.cues import PairCues, PointCues


def main(folders: list[Path]) -> None:
    """Print the mean differences."""
    one, other = ({p.name: p for p in read_predictions(folder)} for folder in folders)
    names = sorted(one.keys() & other.keys())
    confidence = np.concatenate([np.abs(_confidence(one[n]) - _confidence(other[n])) for n in names])
    moved = np.concatenate([np.linalg.norm(_points(one[n]) - _points(other[n]), axis=1) for n in names])
    print(f"{len(names)} pairs, {len(confidence)} points")
    print(f"confidence: mean difference {confidence.mean():.4f}")
    print(f"position: median difference {np.median(moved):.2f} pixels")


def _points(prediction: Prediction) -> np.ndarray:
    return np.array(prediction.pred_kps)


def _confidence(prediction: Prediction) -> np.ndarray:
    calibration = load_calibration(SHIPPED).coarse_to_fine
    assert calibration is not None
    cues = (torch.tensor(values, dtype=torch.float64)[None] for values in (prediction.cues, prediction.pair_cues))
    return calibration.right(PointCues(next(cues)), PairCues(next(cues)))[0].numpy()


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:3]])
