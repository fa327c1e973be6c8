"""Any bytes → what the loaders make of them: something sound, or one sentence. Anything else is a fault of ours."""

import atexit
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
from PIL import Image

from transformatcher.cli.inputs import read_points
from transformatcher.config import model_config, read_model_config, read_run_config, to_plain
from transformatcher.data.coco_keypoints import load_coco_objects
from transformatcher.data.coco_pairs import CocoPairs, SelfPairs
from transformatcher.data.pf import load_pfpascal, load_pfwillow
from transformatcher.data.spair import load_spair
from transformatcher.errors import InputError
from transformatcher.evaluation.predict import read_predictions
from transformatcher.evaluation.scores import score
from transformatcher.images import image_size, read_image
from transformatcher.inference.bulk.pair_list import open_list
from transformatcher.inference.calibration import load_calibration
from transformatcher.models.weights_io import read_safetensors
from transformatcher.schema import ImagePair
from transformatcher.web.errors import RequestError
from transformatcher.web.uploads import STORED_SIDE, check_upload, read_upload

MOST_PIXELS = 200_000  # larger pictures take time and show nothing that small ones do not
SPARE = Path(tempfile.mkdtemp(prefix="fuzz-"))
atexit.register(shutil.rmtree, SPARE, ignore_errors=True)


@contextmanager
def one_sentence(part: str = "") -> Iterator[None]:
    """What is inside works, or says why not, and of what."""
    try:
        yield
    except (InputError, RequestError) as error:
        said = str(error)
        assert said
        assert part in said


def check_image(data: bytes) -> None:
    """As a file for the command line, and as an upload for the page."""
    Image.MAX_IMAGE_PIXELS = MOST_PIXELS
    path = SPARE / "photo"
    path.write_bytes(data)
    for orient in (True, False):
        with one_sentence(str(path)):
            pixels = read_image(path, orient=orient)
            assert pixels.dtype == np.uint8
            assert pixels.ndim == 3
            assert pixels.shape[2] == 3
            assert image_size(path, orient=orient) == pixels.shape[:2]
        with suppress(InputError):
            image_size(path, orient=orient)
    with one_sentence("photo"):
        upload = read_upload(data, "photo", MOST_PIXELS)
        assert max(upload.pixels.shape[:2]) <= STORED_SIDE
        assert upload.size[0] * upload.size[1] <= MOST_PIXELS
        check_upload(data, "photo", MOST_PIXELS)  # what can be decoded is accepted


def check_pair(pair: ImagePair) -> None:
    """What every user of a pair takes for granted."""
    assert isinstance(pair.category, str)
    assert pair.src_kps_px.shape == pair.trg_kps_px.shape == (len(pair.visible), 2)
    assert pair.visible.any()
    for points in (pair.src_kps_px, pair.trg_kps_px, pair.absent_px):
        assert points.ndim == 2
        assert points.shape[1] == 2
        assert np.isfinite(points).all()
    for box in (pair.src_bbox_px, pair.trg_bbox_px):
        assert box is None or (np.isfinite(box).all() and (box[:2] < box[2:]).all())


def _coco(data: bytes) -> None:
    path = SPARE / "annotations.json"
    path.write_bytes(data)
    objects = load_coco_objects(path, SPARE, on_problem=lambda _: None)
    for item in objects:
        assert item.kps_px.shape == (len(item.visible), 2) == (len(item.kp_names), 2)
    for make in (lambda: CocoPairs(objects, min_shared=1, mirror=0.5), lambda: SelfPairs(objects)):
        with suppress(InputError):
            pairs = make()
            for index in range(2):
                check_pair(pairs[index])


def _spair(data: bytes) -> None:
    """What follows the first empty line is the list, what precedes it the annotation of every pair in it."""
    note, _, listed = data.partition(b"\n\n")
    root = SPARE / "spair"
    folder = root / "PairAnnotation" / "val"
    for path in (folder, root / "Layout" / "large"):
        path.mkdir(parents=True, exist_ok=True)
    (root / "Layout" / "large" / "val.txt").write_bytes(listed or b"pair")
    (folder / "pair.json").write_bytes(note)
    for pair in load_spair(root, "val", on_problem=lambda _: None):
        check_pair(pair)


def _pascal(data: bytes) -> None:
    """The list; its pairs may name a.mat and b.mat, whose bytes follow the first empty line."""
    text, _, mat = data.partition(b"\n\n")
    root = SPARE / "pascal"
    folder = root / "Annotations" / "cat"
    folder.mkdir(parents=True, exist_ok=True)
    (root / "test_pairs.csv").write_bytes(text)
    for name in ("a.mat", "b.mat"):
        (folder / name).write_bytes(mat)
    for pair in load_pfpascal(root, "test", on_problem=lambda _: None):
        check_pair(pair)


def _willow(data: bytes) -> None:
    root = SPARE / "willow"
    root.mkdir(exist_ok=True)
    (root / "test_pairs.csv").write_bytes(data)
    for pair in load_pfwillow(root, "test", on_problem=lambda _: None):
        check_pair(pair)


def _config(data: bytes) -> None:
    for name in ("config.toml", "config.json"):
        (SPARE / name).write_bytes(data)
        for read in (read_model_config, read_run_config):
            with suppress(InputError):
                config = read(SPARE / name)
                plain = json.loads(json.dumps(to_plain(config)))
                assert read is not read_model_config or model_config(plain) == config


def _points(data: bytes) -> None:
    (SPARE / "points.json").write_bytes(data)
    for text in (str(SPARE / "points.json"), data.decode("utf-8", "replace")):
        with suppress(InputError):
            for x, y in read_points(text).values():
                assert isinstance(x, float)
                assert isinstance(y, float)


def _left_by_commands(data: bytes) -> None:
    for name in ("predictions.jsonl", "calibration.json", "model.safetensors"):
        (SPARE / name).write_bytes(data)
    with suppress(InputError):
        score(read_predictions(SPARE))
    with suppress(InputError):
        calibration = load_calibration(SPARE)
        assert calibration is not None
        with np.errstate(over="ignore"):  # an infinite logit is a probability of one
            assert np.isfinite(calibration(np.array([0.5]), np.array([0.1]))).all()
    with suppress(InputError):
        read_safetensors(SPARE / "model.safetensors")


def _pair_list(data: bytes) -> None:
    for name in ("pairs.csv", "pairs.jsonl"):
        (SPARE / name).write_bytes(data)
        with suppress(InputError):
            pairs = open_list(SPARE / name)
            listed = [pair for _, part in pairs.shards(range(0, pairs.count, 2), 2) for pair in part]
            assert [pair.index for pair in listed] == list(range(pairs.count))
            assert all(pair.error or (pair.src and pair.trg) for pair in listed)


PARSERS: tuple[Callable[[bytes], None], ...] = (
    _coco,
    _spair,
    _pascal,
    _willow,
    _config,
    _points,
    _left_by_commands,
    _pair_list,
)


def check_annotation(data: bytes) -> None:
    """The first byte says which loader the others are for."""
    if data:
        with suppress(InputError):
            PARSERS[data[0] % len(PARSERS)](data[1:])
