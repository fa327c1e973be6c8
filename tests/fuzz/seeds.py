"""What a fuzzer starts from: small sound files of every kind. Usage: seeds.py FOLDER, which gets three folders."""

import csv
import io
import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from scipy.io import savemat
from targets import PARSERS

COMMAND_LINES = 40
PIXELS = np.random.default_rng(0).integers(0, 255, (9, 13, 3), dtype=np.uint8)


def images() -> Iterator[tuple[str, bytes]]:
    """Every mode, orientation and format that photos come in."""
    photo = Image.fromarray(PIXELS)
    kinds: list[tuple[str, str, Image.Image, dict[str, Any]]] = [
        (
            f"mode-{mode}",
            "TIFF" if mode in {"CMYK", "LAB", "YCbCr", "F"} else "PNG",
            photo.convert("RGB").convert(mode),
            {},
        )
        for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "I", "F")
    ]
    kinds += [("16-bit", kind, Image.fromarray(PIXELS[..., 0].astype(np.uint16) * 257), {}) for kind in ("PNG", "TIFF")]
    for orientation in (1, 3, 6, 8):
        exif = Image.Exif()
        exif[0x0112] = orientation
        for kind in ("JPEG", "PNG", "WEBP", "TIFF"):
            kinds.append((f"turned-{orientation}", kind, photo, {"exif": exif}))
    for kind in ("BMP", "GIF", "PPM", "TGA", "ICO", "PCX", "DDS", "SGI", "IM", "MSP", "XBM", "JPEG2000", "AVIF", "QOI"):
        kinds.append(("plain", kind, photo.convert("1") if kind in {"MSP", "XBM"} else photo, {}))
    for compression in ("tiff_lzw", "packbits", "tiff_adobe_deflate", "jpeg"):
        kinds.append((compression, "TIFF", photo, {"compression": compression}))
    kinds.append(("progressive", "JPEG", photo, {"progressive": True}))
    kinds.append(("transparent", "GIF", photo.quantize(4), {"transparency": 0}))
    kinds.append(("moving", "GIF", photo, {"save_all": True, "append_images": [photo.rotate(90)]}))
    for name, kind, image, options in kinds:
        buffer = io.BytesIO()
        try:
            image.save(buffer, kind, **options)
        except (OSError, KeyError, ValueError):  # a Pillow without this format
            continue
        yield f"{name}.{kind.lower()}", buffer.getvalue()


def annotations() -> Iterator[tuple[str, bytes]]:
    """A sound file for every loader."""
    names = [parser.__name__.lstrip("_") for parser in PARSERS]

    def seed(name: str, *, word: str = "", content: bytes) -> tuple[str, bytes]:
        return f"{name}{word}", bytes([names.index(name)]) + content

    coco = {
        "images": [{"id": i, "file_name": f"{i}.jpg", "width": 80, "height": 60} for i in (1, 2)],
        "categories": [{"id": 1, "name": "cat", "keypoints": ["left eye", "right eye"]}],
        "annotations": [
            {"id": i, "image_id": i, "category_id": 1, "bbox": [1, 2, 30, 40], "keypoints": [5, 6, 2, 7, 8, 2]}
            for i in (1, 2)
        ],
    }
    yield seed("coco", content=json.dumps(coco).encode())
    note = {
        "category": "cat", "src_imname": "a.jpg", "trg_imname": "b.jpg", "src_bndbox": [5, 5, 60, 50],
        "trg_bndbox": [10, 10, 50, 55], "truncation": 2, "src_kps": [[1, 1], [2, 3]], "trg_kps": [[1, 2], [4, 5]],
    }  # fmt: skip
    yield seed("spair", content=json.dumps(note).encode() + b"\n\npair\n")
    header = "source_image,target_image,class,flip,XA,YA,XB,YB\n"
    yield seed("pascal", content=f"{header}a.jpg,b.jpg,8,1,1;2,3;4,5;6,7;8".encode())
    for word, kps in (("-mat", np.array([[1.0, 2], [3, np.nan]])), ("-int", np.ones((2, 2), np.int16))):
        buffer = io.BytesIO()
        savemat(buffer, {"kps": kps, "bbox": np.arange(4.0)[None]})
        mat = buffer.getvalue()
        yield seed("pascal", word=word, content=b"source_image,target_image,class\na.jpg,b.jpg,8\n\n" + mat)
    row = {"imageA": "car/a.png", "imageB": "car/b.png"}
    row |= {f"{axis}{side}{i}": str(i) for axis in "XY" for side in "AB" for i in range(1, 11)}
    text = io.StringIO()
    writer = csv.DictWriter(text, list(row))
    writer.writeheader()
    writer.writerow(row)
    yield seed("willow", content=text.getvalue().encode())
    for path in sorted((Path(__file__).parents[2] / "configs").glob("*.toml")):
        yield seed("config", word=f"-{path.stem}", content=path.read_bytes())
    yield seed("config", word="-json", content=b'{"variant": "released", "grid": [15, 20], "kernel_sigma": 1e1}')
    yield seed("points", content=b"168,115;262.5,241")
    yield seed("points", word="-list", content=b"[[168, 115], [262.5, 241]]")
    yield seed("points", word="-names", content=b'{"nose": [168, 115]}')
    line = {
        "name": "0", "category": "cat", "src_size": [60, 80], "trg_size": [60, 80], "kp_index": [0], "peak": [0.5],
        "src_kps": [[1, 2]], "trg_kps": [[1, 2]], "pred_kps": [[1, 2]], "trg_bbox": [1, 2, 3, 4],
        "difficulty": {"scale": 1},
    }  # fmt: skip
    yield seed("left_by_commands", content=json.dumps(line).encode() + b"\n")
    yield seed("left_by_commands", word="-calibration", content=b'{"bias": 1.5, "sharpness": 0.5, "consistency": -1}')
    tensor = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    yield seed("left_by_commands", word="-tensors", content=struct.pack("<Q", len(tensor)) + tensor + bytes(4))

    yield seed("pair_list", content=b'src,trg,keypoints\na.jpg,b.jpg,"1,2;3,4"\na.jpg,c.jpg,\n')
    yield seed("pair_list", word="-json", content=b'{"src": "a.jpg", "trg": "b.jpg", "keypoints": [[1, 2]]}\n')


def commands() -> Iterator[tuple[str, bytes]]:
    """Choices of a command, its arguments, its files and its environment."""
    rng = np.random.default_rng(0)
    for number in range(COMMAND_LINES):
        yield f"choices-{number:02d}", rng.bytes(60)


def write(folder: Path) -> None:
    """Write all corpora."""
    for name, seeds in (("images", images()), ("annotations", annotations()), ("commands", commands())):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for file, content in seeds:
            (folder / name / file).write_bytes(content)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
