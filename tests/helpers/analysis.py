"""What other commands might have left: a small checkpoint, folders of eval, timings, nonlocality."""

import json
from dataclasses import asdict
from pathlib import Path

import torch
from torch import nn

from transformatcher.config import model_config
from transformatcher.evaluation.analysis.nonlocality_run import PairNonlocality
from transformatcher.evaluation.predict import PREDICTIONS, Prediction
from transformatcher.inference.checkpoint import save_checkpoint
from transformatcher.models.build import build_matcher
from transformatcher.run_folder import Run, write_run

BENCH = {
    "device": "cpu, 2 threads",
    "device_peaks": {},
    "rows": [
        {"mode": "infer", "backend": backend, "batch": 1, "size": 240, "backbone": "resnet101", "variant": "paper",
         "ms_per_pair": 812.3, "peak_gib": 1.5, "gflops": 33.1, "matches": 50625, "floor_ms": 400.0}
        for backend in ("fused", "eager")
    ],
}  # fmt: skip
SETTINGS = {
    "backbone": "resnet50",
    "stages": [3],
    "image_size": [64, 64],
    "sampler": "bilinear",
    "match2match.depth": 2,
}


def write_checkpoint(folder: Path, **settings: object) -> Path:
    torch.manual_seed(0)
    given = SETTINGS if settings.get("variant") != "raw" else {k: v for k, v in SETTINGS.items() if "." not in k}
    config = model_config({**given, **settings})
    model = build_matcher(config)
    for module in model.refiner.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight)
    save_checkpoint(folder, model, config)
    return folder


def prediction(name: str, error_px: float, category: str = "cat", **changes: object) -> Prediction:
    """Two keypoints, both found ``error_px`` to the right of where they are; the box is 40 pixels long."""
    true = [[15.0, 12.0], [40.0, 50.0]]
    fields = {
        "name": name,
        "category": category,
        "src_size": [60, 80],
        "trg_size": [60, 80],
        "kp_index": [0, 1],
        "src_kps": [[10.0, 10.0], [20.0, 30.0]],
        "trg_kps": true,
        "pred_kps": [[x + error_px, y] for x, y in true],
        "peak": [0.5, 0.5],
        "trg_bbox": [10.0, 10.0, 50.0, 50.0],
        "difficulty": {"viewpoint": 0, "scale": 1, "truncation": 2, "occlusion": 0},
        "cycle_error": [0.1, 0.1],
    }
    return Prediction(**{**fields, **changes})


def write_eval(folder: Path, predictions: list[Prediction], **arguments: object) -> Path:
    folder.mkdir(parents=True)
    usual = {"benchmark": "spair", "split": "val", "n_pairs": len(predictions), "weights_hash": "0123456789",
             "model": {"image_size": [272, 272]}}  # fmt: skip
    write_run(folder, Run("eval", usual | arguments))
    (folder / PREDICTIONS).write_text("".join(json.dumps(asdict(item)) + "\n" for item in predictions))
    return folder


def measured(name: str, phi: float, level: int) -> PairNonlocality:
    """One pair whose heads have Φ of ``phi`` and one more, and which is as hard as ``level``."""
    numbers = [[phi, phi + 1], [phi, phi + 1], [phi, phi + 1]]  # 3 layers of 2 heads
    levels = {"viewpoint": level, "scale": 0, "truncation": 2 - level, "occlusion": level % 2}
    return PairNonlocality(name, "cat", levels, "…", [4, 4, 4, 4], numbers, numbers, numbers)
