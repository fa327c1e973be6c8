"""safetensors file ↔ module, strictly: every key and shape must fit, and the first that does not is named."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from transformatcher.errors import InputError
from transformatcher.files import atomic_write


def read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """A safetensors file → its tensors and its metadata."""
    if not path.is_file():
        raise InputError(f"{path}: no such weights file")
    try:
        with safe_open(path, framework="pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path}: not a readable safetensors file ({error})") from error


def refuse_pickles(path: Path) -> None:
    """An error for files that can hold code beside tensors."""
    if path.suffix in {".pth", ".pt", ".bin", ".ckpt", ".pkl"}:
        raise InputError(f"{path}: pickled weights are never opened; save them as .safetensors first")


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Tensors → a safetensors file, whole or not at all: an interruption or a full disk leaves the old file."""

    def write(new: Path) -> None:
        new.touch()
        mode = new.stat().st_mode  # as the user's umask has it; safetensors lets nobody else read
        try:
            save_file({key: value.contiguous() for key, value in tensors.items()}, new, dict(metadata or {}))
            new.chmod(mode)
        except SafetensorError as error:
            raise OSError(str(error)) from error

    atomic_write(path, write)


def load_strictly(module: nn.Module, tensors: Mapping[str, Tensor], source: str) -> None:
    """Copy ``tensors`` into ``module``, or say which keys and shapes differ and change nothing."""
    wanted = module.state_dict()
    given = dict(tensors)
    for key, value in wanted.items():  # batch-norm's step counter is not part of what a network computes
        if key.endswith("num_batches_tracked"):
            given.setdefault(key, value)
    differences = [
        ("missing", sorted(wanted.keys() - given.keys())),
        ("unexpected", sorted(given.keys() - wanted.keys())),
        (
            "of another shape",
            [
                f"{key} {tuple(given[key].shape)} where {tuple(wanted[key].shape)} is needed"
                for key in sorted(wanted.keys() & given.keys())
                if given[key].shape != wanted[key].shape
            ],
        ),
    ]
    found = [f"{len(keys)} {what}: {_first(keys)}" for what, keys in differences if keys]
    if found:
        raise InputError(f"{source}: these weights belong to another architecture ({'; '.join(found)})")
    for key, value in given.items():
        if not value.isfinite().all():
            bad = int((~value.isfinite()).sum())
            raise InputError(
                f"{source}: {key} has {bad} of {value.numel()} values that are infinite or not numbers; "
                f"the file is damaged, or was cut to float16, which ends at {torch.finfo(torch.float16).max:,.0f}"
            )
    with torch.no_grad():
        module.load_state_dict(given, strict=True)


def halved(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights → float16. Statistics of batch norms stay: they are few, and a variance may be too large for float16."""
    return {
        key: value.half() if value.is_floating_point() and ".running_" not in f".{key}" else value
        for key, value in tensors.items()
    }


def hash_tensors(tensors: Mapping[str, Tensor]) -> str:
    """A short hash of names and values, to tell one set of weights from another."""
    digest = hashlib.sha256()
    for key in sorted(tensors):
        digest.update(key.encode())
        digest.update(tensors[key].detach().cpu().contiguous().numpy().data)
    return digest.hexdigest()[:16]


def _first(keys: list[str], most: int = 3) -> str:
    return ", ".join(keys[:most]) + (", …" if len(keys) > most else "")
