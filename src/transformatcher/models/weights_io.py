"""safetensors file or model on the Hugging Face hub ↔ module. All keys and shapes must match."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from transformatcher.errors import InputError, missing_package
from transformatcher.files import atomic_write

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
WHOLE_NUMBERS = (torch.int64, torch.int32)


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
    """Raise for files that may contain code as well as tensors."""
    if path.suffix in {".pth", ".pt", ".bin", ".ckpt", ".pkl"}:
        raise InputError(
            f"{path}: pickled weights may contain code and are never opened; save them as .safetensors first"
        )


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Tensors → a safetensors file, atomically: an interruption or a full disk leaves the old file unchanged."""

    def write(new: Path) -> None:
        new.touch()
        mode = new.stat().st_mode  # by the user's umask; safetensors would make the file private
        try:
            save_file({key: value.contiguous() for key, value in tensors.items()}, new, dict(metadata or {}))
            new.chmod(mode)
        except SafetensorError as error:
            raise OSError(str(error)) from error

    atomic_write(path, write)


def load_strictly(module: nn.Module, tensors: Mapping[str, Tensor], source: str) -> None:
    """Copy ``tensors`` into ``module``; if a key or shape differs, raise an error that names it, and change nothing."""
    wanted = module.state_dict()
    given = dict(tensors)
    for key, value in wanted.items():  # the step counter of batch norms does not affect the output
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
        if value.dtype not in (FLOATS if wanted[key].is_floating_point() else WHOLE_NUMBERS):
            raise InputError(f"{source}: {key} is of type {value.dtype}, which weights are not; the file is damaged")
        if not value.isfinite().all():
            bad = int((~value.isfinite()).sum())
            raise InputError(
                f"{source}: {key} has {bad} of {value.numel()} values that are infinite or not a number; "
                f"the file is damaged, or was converted to float16, which ends at {torch.finfo(torch.float16).max:,.0f}"
            )
    with torch.no_grad():
        module.load_state_dict(given, strict=True)


def to_float16(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights → float16, except the statistics of batch norms: they are few, and a variance may exceed float16."""
    return {
        key: value.half() if value.is_floating_point() and ".running_" not in f".{key}" else value
        for key, value in tensors.items()
    }


def hash_tensors(tensors: Mapping[str, Tensor]) -> str:
    """A short hash of names and values, which identifies a set of weights."""
    digest = hashlib.sha256()
    for key in sorted(tensors):
        digest.update(key.encode())
        digest.update(tensors[key].detach().cpu().contiguous().numpy().data)
    return digest.hexdigest()[:16]


def _first(keys: list[str], most: int = 3) -> str:
    return ", ".join(keys[:most]) + (", …" if len(keys) > most else "")


def looks_like_hub_id(name: str) -> bool:
    """Whether a name has the form owner/name."""
    return re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name) is not None


def hub_folder(
    name: str,
    files: Sequence[str],
    optional: Sequence[str] = (),
    *,
    download: bool = False,
    revision: str | None = None,
) -> Path:
    """A name on the Hugging Face hub → the folder of its files in the hub's local cache.

    Args:
        name: owner/name.
        files: required files.
        optional: files that are downloaded as well if they exist.
        download: whether missing files may be downloaded; if not, the network is not used.
        revision: a branch, tag or commit; None: the main branch.
    """
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise missing_package(f"reading {name}", "huggingface_hub", "hub") from error
    wanted = [*files, *optional]
    try:
        found = snapshot_download(name, revision=revision, allow_patterns=wanted, local_files_only=not download)
    except Exception as error:  # network, hub and disk raise various errors
        if download:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise InputError(f"{name}: could not be downloaded from the Hugging Face hub ({reason})") from error
        raise InputError(_not_cached(name)) from error
    folder = Path(found)
    missing = [file for file in files if not (folder / file).is_file()]
    if missing and not download:
        raise InputError(_not_cached(f"{name}, {', '.join(missing)}"))
    if missing:
        raise InputError(f"{name}: has no {', '.join(missing)} on the Hugging Face hub")
    return folder


def _not_cached(name: str) -> str:
    return f"{name}: not in the cache of the Hugging Face hub; download it with download=True (--download)"
