"""Small models, a small evaluation, and photos that cannot be used."""

import struct
from pathlib import Path

import pytest
from conftest import write_image
from helpers.analysis import prediction, write_checkpoint, write_eval
from safetensors.torch import save_file

from transformatcher.models.backbones.resnet import ResNetFeatures

SMALL = ["--set", "image_size=[64, 64]", "--set", "stages=[3]"]


@pytest.fixture(scope="session")
def backbone_file(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("weights") / "backbone.safetensors"
    save_file(ResNetFeatures("resnet50_v1").state_dict(), path)
    return str(path)


@pytest.fixture
def raw(backbone_file: str) -> list[str]:
    """Options for raw correlation of small images."""
    return ["--refiner", "none", "--backbone", "resnet50_v1", "--backbone-weights", backbone_file, *SMALL]


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("weights"))


@pytest.fixture
def evaluated(tmp_path: Path) -> Path:
    pairs = [prediction("000000-a-b:cat", 2.0), prediction("000001-b-a:cat", 20.0)]
    return write_eval(tmp_path / "out" / "mine", pairs)


@pytest.fixture(params=["truncated", "empty", "dot", "huge", "text", "gone", "folder", "long"])
def bad_photo(request, tmp_path: Path) -> tuple[Path, str]:
    path = tmp_path / "bad" / f"{request.param}.jpg"
    path.parent.mkdir()
    if request.param == "truncated":
        content = write_image(path).read_bytes()
        path.write_bytes(content[: len(content) // 2])
        return path, "not an image that can be decoded"
    if request.param == "empty":
        path.write_bytes(b"")
        return path, "the file is empty"
    if request.param == "dot":
        return write_image(path, (1, 1)), "1 × 1 pixels; a photo to be matched has at least"
    if request.param == "huge":
        write_image(path).write_bytes(with_size(path.read_bytes(), 30_000, 30_000))
        return path, "too many pixels to be decoded"
    if request.param == "text":
        path.write_text("Dear all,")
        return path, "not an image that can be decoded"
    if request.param == "gone":
        return path, "no such image file"
    if request.param == "folder":
        path.mkdir()
        return path, "a folder, not an image"
    return path.with_name("x" * 300), "File name too long"


def with_size(jpeg: bytes, width: int, height: int) -> bytes:
    """A JPEG that claims another size."""
    start = jpeg.index(b"\xff\xc0") + 5
    return jpeg[:start] + struct.pack(">HH", height, width) + jpeg[start + 4 :]
