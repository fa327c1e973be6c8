"""A tiny benchmark, config and study for tests that train; as a script, one step of one of several processes."""

import csv
import json
import sys
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from safetensors.torch import save_file

from transformatcher.config import RunConfig, run_config
from transformatcher.data.synthetic import synthetic_pair
from transformatcher.training.distributed import init_distributed
from transformatcher.training.trainer import Trainer


def write_benchmark(root: Path, n_train: int = 8, n_val: int = 4) -> Path:
    """Synthetic pairs in PF-PASCAL's layout."""
    (root / "JPEGImages").mkdir(parents=True)
    for split, seeds in (("trn", range(n_train)), ("val", range(100, 100 + n_val))):
        rows = []
        for seed in seeds:
            pair, _ = synthetic_pair(seed, size=(48, 64), n_points=5)
            names = [f"{seed}-{side}.png" for side in "ab"]
            for name, pixels in zip(names, (pair.src_image, pair.trg_image), strict=True):
                Image.fromarray(pixels).save(root / "JPEGImages" / name)
            points = {"XA": pair.src_kps_px[:, 0], "YA": pair.src_kps_px[:, 1]}
            points |= {"XB": pair.trg_kps_px[:, 0], "YB": pair.trg_kps_px[:, 1]}
            texts = {key: ";".join(f"{value:.3f}" for value in values) for key, values in points.items()}
            rows.append({"source_image": names[0], "target_image": names[1], "class": "8", **texts})
        with (root / f"{split}_pairs.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return root


def tiny_tables(root: Path, **train: Any) -> dict[str, Any]:
    """A config that trains in seconds."""
    return {
        "model": {
            "backbone": "resnet50_v1", "stages": [2], "image_size": 48, "correlation_skip": 20.0,
            "sampler": "bilinear", "match2match.depth": 1,
        },
        "data": {
            "root": str(root.parent), "cache_size": 48, "threads": 1, "workers": 0,
            "train": [{"benchmark": "pfpascal", "folder": root.name, "split": "trn"}],
            "validate": [{"benchmark": "pfpascal", "folder": root.name, "split": "val"}],
        },
        "train": {
            "batch_size": 2, "epochs": 2, "batch_norm": "frozen", "w_cross_entropy": 1.0, "ema_decay": 0.9,
            "warmup_steps": 2, "lr_schedule": "cosine", "max_grad_norm": 1.0, "save_every": 1, **train,
        },
    }  # fmt: skip


def tiny_config(root: Path, **train: Any) -> RunConfig:
    """The same, checked."""
    return run_config(tiny_tables(root, **train))


def to_toml(tables: dict[str, Any]) -> str:
    """Tables of keys as TOML, each list of tables on one line."""

    def value(item: Any) -> str:
        if isinstance(item, dict):
            return "{" + ", ".join(f"{key} = {value(entry)}" for key, entry in item.items()) + "}"
        return "[" + ", ".join(map(value, item)) + "]" if isinstance(item, list) else json.dumps(item)

    return "\n".join(
        f"[{name}]\n" + "\n".join(f"{key} = {value(entry)}" for key, entry in table.items())
        for name, table in tables.items()
    )


def write_study(folder: Path) -> Path:
    """A study of two rows and two seeds on a tiny benchmark."""
    root = write_benchmark(folder / "PF")
    path = folder / "study.toml"
    path.write_text(f"""
title = "A title"
question = "A question?"
seeds = [0, 1]
measure = [{{ benchmark = "pfpascal", folder = "PF", split = "val" }}]

{to_toml(tiny_tables(root, epochs=1, save_every=1000))}

[[row]]
label = "axial"

[[row]]
label = "no position"
set = {{ "model.match2match.position" = "none" }}
""")
    return path


def one_step(root: Path, out: Path) -> dict[str, torch.Tensor]:
    """Gradients of the first batch, and the validation score before it."""
    device = torch.device("cpu")
    torch.set_num_threads(1)
    with init_distributed(device) as (distributed, device):
        trainer = Trainer(tiny_config(root, batch_size=4, max_grad_norm=None), out, device, distributed)
        scores = next(iter(trainer.validate().values()))
        trainer.step(next(trainer.batches.stream(0, 0, 1)))
        tensors = {name: p.grad for name, p in trainer.model.named_parameters() if p.grad is not None}
        tensors["scores"] = torch.tensor(list(scores.values()), dtype=torch.float64)
        tensors["loss"] = distributed.sum(trainer.unread_losses[0].double()) / distributed.world_size
        if distributed.is_main:
            save_file(tensors, out)
    return tensors


if __name__ == "__main__":
    one_step(*(Path(argument) for argument in json.loads(sys.argv[1])))
