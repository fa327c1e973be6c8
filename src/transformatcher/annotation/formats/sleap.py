"""Photos with objects → a project of SLEAP (.slp), by sleap-io."""

from pathlib import Path
from typing import Any

import numpy as np

from transformatcher.annotation.formats.objects import Contents, ObjectToExport, Point
from transformatcher.annotation.records import VISIBLE, Category
from transformatcher.files import atomic_write
from transformatcher.schema import Size


def write_sleap(contents: Contents, out: Path) -> list[str]:
    """Write the project; it names the photos where they are. Returns what gets lost."""
    import sleap_io

    skeletons = {category.id: _skeleton(category) for category in contents.categories}
    sizes: dict[Size, list[str]] = {}
    for photo in contents.photos:
        sizes.setdefault(photo.size, []).append(photo.file.absolute().as_posix())
    videos = {size: _video(size, files) for size, files in sizes.items()}  # all frames of a video have one size
    seen = dict.fromkeys(sizes, 0)
    frames = []
    for photo in contents.photos:
        instances = [one for item in photo.objects for one in _instances(item, skeletons[item.category.id])]
        video, number = videos[photo.size], seen[photo.size]
        frames.append(sleap_io.LabeledFrame(video=video, frame_idx=number, instances=instances))
        seen[photo.size] += 1
    labels = sleap_io.Labels(frames, videos=list(videos.values()), skeletons=list(skeletons.values()))
    atomic_write(out, lambda new: sleap_io.save_slp(labels, str(new), embed=False, verbose=False))
    lost = []
    if any(item.box is not None for item in contents.objects):
        lost.append("SLEAP has no boxes")
    if contents.says_not_there:
        lost.append("SLEAP has no “not there”: such keypoints look like those of which nothing is known")
    if len(skeletons) > 1:
        lost.append(f"SLEAP trains on one skeleton, this file has {len(skeletons)}: one for each category")
    return lost


def _skeleton(category: Category) -> Any:
    import sleap_io

    names = {keypoint.id: keypoint.name for keypoint in category.keypoints}
    twins = [(names[k.id], names[k.twin]) for k in category.keypoints if k.twin is not None and k.id < k.twin]
    edges = [(names[a], names[b]) for a, b in category.skeleton]
    return sleap_io.Skeleton(nodes=list(category.names), edges=edges, symmetries=twins, name=category.name)


def _video(size: Size, files: list[str]) -> Any:
    import sleap_io

    h, w = size
    metadata = {  # as SLEAP itself writes it; nothing is read from the photos
        "type": "ImageVideo",
        "shape": (len(files), h, w, 3),
        "filename": files[0],
        "filenames": files,
        "height_": h,
        "width_": w,
        "channels_": 3,
        "grayscale": False,
    }
    return sleap_io.Video(filename=files, backend_metadata=metadata, open_backend=False)


def _instances(item: ObjectToExport, skeleton: Any) -> list[Any]:
    """An object as what a person marked, what was predicted, or both."""
    import sleap_io

    found = None
    if item.score is not None:
        scores = [p.confidence if p.confidence is not None else 0.0 for p in item.points]
        points = np.array([_xy(p) if p.confidence is not None else (np.nan, np.nan) for p in item.points])
        found = sleap_io.PredictedInstance.from_numpy(
            points, skeleton=skeleton, point_scores=np.array(scores), score=item.score
        )
    if not any(point.marked and point.xy is not None for point in item.points):
        return [] if found is None else [found]
    # A hidden point has its position and is not visible; one that is not there has none.
    rows = [(*_xy(p), p.visibility == VISIBLE) if p.marked else (np.nan, np.nan, False) for p in item.points]
    marked = sleap_io.Instance.from_numpy(np.array(rows, dtype=float), skeleton=skeleton, from_predicted=found)
    return [marked] if found is None else [marked, found]


def _xy(point: Point) -> tuple[float, float]:
    return point.xy or (float("nan"), float("nan"))
