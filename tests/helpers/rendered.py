"""What a figure shows: its pixels, marks, lines and texts."""

from functools import lru_cache

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import ConnectionPatch

from transformatcher.schema import Matches


def plain(h: int, w: int, value: int = 120) -> np.ndarray:
    return np.full((h, w, 3), value, dtype=np.uint8)


@lru_cache(maxsize=4)
def rendered(figure: Figure) -> np.ndarray:
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3]


def colour_at(
    figure: Figure, axis: Axes, point: tuple[float, float], shift: tuple[float, float] = (0, 0)
) -> np.ndarray:
    """Of the rendered figure, at a point of an image, moved by some pixels of the figure (x, y upwards)."""
    picture = rendered(figure)
    x, y = axis.transData.transform(point) + shift
    return picture[int(picture.shape[0] - y), int(x)].astype(int)


def near(colour: np.ndarray, expected: tuple[float, ...], tolerance: int = 12) -> bool:
    return bool(np.abs(colour - np.array(expected)).max() <= tolerance)


def some_matches(src: np.ndarray, trg: np.ndarray, confidence: list[float]) -> Matches:
    shares = np.stack([np.linspace(0.2, 0.8, len(confidence)), np.linspace(0.3, 0.7, len(confidence))], axis=1)
    sides = [np.array([image.shape[1], image.shape[0]]) for image in (src, trg)]
    return Matches(shares * sides[0], shares * sides[1], np.array(confidence))


def marks_at(figure: Figure, axis: Axes, point: tuple[float, float]) -> list[Line2D]:
    """The marks at a point of a photo."""
    marks = [
        artist for artist in figure.artists if isinstance(artist, Line2D) and artist.get_transform() == axis.transData
    ]
    return [mark for mark in marks if np.allclose(mark.get_xydata()[0], point)]


def lines_of(figure: Figure) -> list[ConnectionPatch]:
    return [artist for artist in figure.artists + figure.patches if isinstance(artist, ConnectionPatch)]


def words(figure: Figure) -> str:
    return " | ".join(text.get_text() for text in figure.texts)
