"""Photos of a thing whose eight parts a small random model tells apart, and where those parts are."""

from pathlib import Path

import numpy as np
from helpers.propagation import make_photo
from PIL import Image, ImageDraw, ImageEnhance

PARTS = {  # name → colour and position on the photo that all others are made from
    "left front wheel": ("red", (40, 30)),
    "right front wheel": ("lime", (150, 30)),
    "left back wheel": ("blue", (100, 90)),
    "right back wheel": ("yellow", (60, 70)),
    "left headlight": ("magenta", (125, 62)),
    "right headlight": ("cyan", (30, 100)),
    "left mirror": ("white", (170, 95)),
    "right mirror": ("black", (95, 25)),
}
RADIUS = 9

Points = dict[str, tuple[float, float]]


def make_car_photos(folder: Path, n: int = 40) -> dict[str, Points]:
    """Write car_00.jpg, car_01.jpg, …, crops of one photo, larger or brighter → positions by file name and part."""
    whole = make_photo(0)
    draw = ImageDraw.Draw(whole)
    for colour, (x, y) in PARTS.values():
        draw.ellipse((x - RADIUS, y - RADIUS, x + RADIUS, y + RADIUS), fill=colour)
    truth: dict[str, Points] = {}
    for number in range(n):
        random = np.random.default_rng(number)
        x0, y0, right, bottom = random.uniform(0, 12, 4)
        box = (x0, y0, whole.width - right, whole.height - bottom)
        scale = random.uniform(1.2, 2)
        w, h = round(scale * (box[2] - x0)), round(scale * (box[3] - y0))
        photo = ImageEnhance.Brightness(whole.resize((w, h), Image.Resampling.BICUBIC, box=box))
        photo.enhance(random.uniform(0.8, 1.2)).save(folder / f"car_{number:02d}.jpg", quality=92)
        factor = w / (box[2] - x0), h / (box[3] - y0)
        truth[f"car_{number:02d}.jpg"] = {
            name: (float((x - x0) * factor[0]), float((y - y0) * factor[1])) for name, (_, (x, y)) in PARTS.items()
        }
    return truth
