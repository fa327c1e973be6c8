"""Numbers that the paper prints, with the table each stands in; † is training with augmentation. None: not printed."""

from collections.abc import Mapping
from typing import NamedTuple

SHORT_NAMES = {
    "aeroplane": "aero", "bicycle": "bike", "bird": "bird", "boat": "boat", "bottle": "bottle", "bus": "bus",
    "car": "car", "cat": "cat", "chair": "chair", "cow": "cow", "dog": "dog", "horse": "horse", "motorbike": "mbike",
    "person": "person", "pottedplant": "plant", "sheep": "sheep", "train": "train", "tvmonitor": "tv",
}  # fmt: skip


class Published(NamedTuple):
    """A row of Table 1. PCK in percent: F trained on the benchmark, T transferred from PF-PASCAL."""

    spair_f: float | None  # bbox, 0.1
    spair_t: float | None
    pascal_05: float | None  # img
    pascal_10: float | None
    willow_kp: float | None  # bbox-kp, 0.1
    willow_padded: float | None  # "bbox" there; it is the padded artefact, see metrics.py
    ms: int | None
    gb: float | None
    gflops: float | None


# Table 1, the rows with strong supervision.
TABLE_1: Mapping[str, Published] = {
    "HPF": Published(28.2, None, 60.1, 84.8, 74.4, None, 63, None, None),
    "SCOT": Published(35.6, None, 63.1, 85.4, 76.0, None, 151, 4.6, 6.2),
    "DHPF": Published(37.3, 27.4, 75.7, 90.7, 71.0, 77.6, 58, 1.6, 2.0),
    "ANC-Net": Published(None, 28.7, None, 86.1, None, None, 216, 0.9, 44.9),
    "PMD": Published(37.4, None, None, 90.7, 75.6, None, None, None, None),
    "CHMNet": Published(46.3, 30.1, 80.1, 91.6, 69.6, 79.4, 54, 1.6, 19.6),
    "PMNC": Published(50.4, None, 82.4, 90.6, None, None, None, None, None),
    "MMNet": Published(40.9, None, 77.6, 89.1, None, None, 86, None, None),
    "CATs": Published(43.5, None, None, None, None, None, 45, 1.6, 28.4),
    "CATs†": Published(49.9, 27.1, 75.4, 92.6, 69.0, 79.2, 45, 1.6, 28.4),
    "TransforMatcher": Published(50.2, 30.5, 78.9, 90.5, 66.7, 75.1, 54, 1.6, 33.5),
    "TransforMatcher†": Published(53.7, 30.1, 80.8, 91.8, 65.3, 76.0, 54, 1.6, 33.5),
}

# Table 2: SPair-71k, bbox, 0.05, trained there.
SPAIR_05: Mapping[str, float] = {"TransforMatcher": 30.5, "TransforMatcher†": 32.4}

# Table 2: SPair-71k at 0.05, 0.1 (bbox) and PF-PASCAL at 0.05, 0.1 (img), each trained there, by position embedding and
# augmentation. Its row "rotary, not augmented" says 90.4 where Table 1 says 90.5.
TABLE_2: Mapping[str, tuple[float, float, float, float]] = {
    "absolute, not augmented": (29.9, 48.7, 74.5, 89.4),
    "absolute, augmented": (26.6, 48.9, 79.4, 91.8),
    "rotary, not augmented": (30.5, 50.2, 78.9, 90.4),
    "rotary, augmented": (32.4, 53.7, 80.8, 91.8),
}

# Table 3: PCK on SPair-71k at 0.05 and 0.1 (bbox), trained there with absolute positions and augmentation.
TABLE_3_PCK: Mapping[str, tuple[float, float]] = {
    "Linformer": (0.34, 1.3),
    "Performer": (28.2, 48.8),
    "additive attention": (26.6, 48.9),
}

# Table A2: the same, by the channels of the correlation map.
TABLE_A2: Mapping[str, tuple[float, float]] = {
    "one channel: features concatenated": (20.9, 41.7),
    "one channel: mean of the maps": (24.1, 45.1),
    "a channel for each layer": (32.4, 53.7),
}

# Table 3: (ms, GB, GFLOP) of the same model with other kinds of attention.
TABLE_3: Mapping[str, tuple[int | None, float | None, float | None]] = {
    "Transformer": (None, None, None),  # "Out-Of-Memory"
    "Linformer": (36, 1.7, 33.4),
    "Performer": (88, 1.6, 35.9),
    "additive attention": (54, 1.6, 33.5),
}

# Table A1: SPair-71k test, bbox, 0.1, trained on SPair-71k; categories in the order of SHORT_NAMES, then all.
_TABLE_A1 = """
NC-Net           23.4 16.7 40.2 14.3 36.4 27.7 26.0 32.7 12.7 27.4 22.8 13.7 20.9 21.0 17.5 10.2 30.8 34.1 20.6
HPF              25.2 18.9 52.1 15.7 38.0 22.8 19.1 52.9 17.9 33.0 32.8 20.6 24.4 27.9 21.1 14.9 31.5 35.6 28.2
SCOT             34.9 20.7 63.8 21.1 43.5 27.3 21.3 63.1 20.0 42.9 42.5 31.1 29.8 35.0 27.7 24.4 48.4 40.8 35.6
DHPF             38.4 23.8 68.3 18.9 42.6 27.9 20.1 61.6 22.0 46.9 46.1 33.5 27.6 40.1 27.6 28.1 49.5 46.5 37.3
CHMNet           49.6 29.3 68.7 29.7 45.3 48.4 39.5 64.9 20.3 60.5 56.1 46.0 33.8 44.2 38.9 31.3 72.2 55.6 46.4
PMNC             54.1 35.9 74.9 36.5 42.1 48.8 40.0 72.6 21.1 67.6 58.1 50.5 40.1 54.1 43.3 35.7 74.5 59.9 50.4
MMNet            43.5 27.0 62.4 27.3 40.1 50.1 37.5 60.0 21.0 56.3 50.3 41.3 30.9 19.2 30.1 33.2 64.2 43.6 40.9
CATs             46.5 26.9 69.1 24.3 44.3 38.5 30.2 65.7 15.9 53.7 52.2 46.7 32.7 35.2 32.2 31.2 68.0 49.1 42.4
CATs†            52.0 34.7 72.2 34.3 49.9 57.5 43.6 66.5 24.4 63.2 56.5 52.0 42.6 41.7 43.0 33.6 72.6 58.0 49.9
TransforMatcher  54.5 33.9 72.2 38.5 47.7 55.3 45.6 65.7 25.2 62.6 58.0 47.0 40.7 44.2 43.1 35.3 71.9 61.6 50.2
TransforMatcher† 59.2 39.3 73.0 41.2 52.5 66.3 55.4 67.1 26.1 67.1 56.6 53.2 45.0 39.9 42.1 35.3 75.2 68.6 53.7
"""


def class_wise() -> dict[str, dict[str, float]]:
    """Table A1: method → category (and "all") → PCK."""
    rows = (line.split() for line in _TABLE_A1.strip().splitlines())
    return {name: dict(zip([*SHORT_NAMES, "all"], map(float, values), strict=True)) for name, *values in rows}
