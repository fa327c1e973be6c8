"""Whatever a file or an option says: it is read, or one sentence says why not. Nothing else is ever raised."""

import csv
import io
import json
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from conftest import SPAIR_NOTE
from helpers.calibration import fine_calibration
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from scipy.io import savemat

from transformatcher.cli.inputs import read_points
from transformatcher.config import (
    VARIANTS,
    ModelConfig,
    model_config,
    parse_overrides,
    read_model_config,
    read_run_config,
    run_config,
    to_plain,
)
from transformatcher.data.coco_keypoints import load_coco_objects, parse_coco_objects
from transformatcher.data.coco_pairs import CocoPairs, SelfPairs
from transformatcher.data.pf import load_pfpascal, load_pfwillow
from transformatcher.data.spair import load_spair
from transformatcher.errors import InputError
from transformatcher.evaluation.predict import read_predictions
from transformatcher.evaluation.scores import parse_alphas, parse_frame, score
from transformatcher.inference.calibration import load_calibration
from transformatcher.inference.cues import PAIR_CUES, POINT_CUES, PairCues, PointCues
from transformatcher.models.weights_io import read_safetensors
from transformatcher.run_folder import flatten
from transformatcher.schema import ImagePair

HUGE = 10**400  # a number that JSON and TOML write, and no float holds
DEEP = "[" * 100_000
MOST = 10_000_000

texts = st.text(max_size=12) | st.sampled_from(["", "a.jpg", "\0", "²", "/", "..", "x" * 300, "\ud800", "1e999", "NaN"])
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-5, 100)
    | st.sampled_from([HUGE, -HUGE, 2**63, -(2**64)])
    | st.floats(allow_nan=True, allow_infinity=True)
    | texts
)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=3))
numbers = st.integers(0, 60) | st.floats(0, 60)
files = st.binary(max_size=60) | texts.map(lambda text: text.encode("utf-8", "replace")) | st.just(DEEP.encode())


@contextmanager
def folder() -> Iterator[Path]:
    """Of this example alone: pytest's own is for all of them."""
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


@contextmanager
def one_sentence(part: str = "") -> Iterator[None]:
    """What is inside works, or says why not, and of what."""
    try:
        yield
    except InputError as error:
        said = str(error)
        assert said
        assert part in said


def dumped(value: Any) -> bytes:
    return json.dumps(value).encode()


def mostly(sound: Any, *others: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A sound value, or now and then another."""
    return (
        st.one_of(*[st.just(sound)] * 6, *others)
        if not isinstance(sound, st.SearchStrategy)
        else st.one_of(*[sound] * 6, *others)
    )


# ---------------------------------------------------------------- annotations


def check_pair(pair: ImagePair) -> None:
    """What every user of a pair takes for granted."""
    n = len(pair.visible)
    assert pair.src_kps_px.shape == pair.trg_kps_px.shape == (n, 2)
    assert pair.visible.any()
    for points in (pair.src_kps_px, pair.trg_kps_px, pair.absent_px):
        assert np.isfinite(points).all()
        assert points.shape[1] == 2
    for box in (pair.src_bbox_px, pair.trg_bbox_px):
        assert box is None or (np.isfinite(box).all() and (box[:2] < box[2:]).all())
    assert isinstance(pair.category, str)


def read_either_way(load: Any, *args: Any) -> list[ImagePair]:
    """With the first problem raised, and with all collected: one sentence for each, and the rest is sound."""
    try:
        strict = load(*args)
    except InputError:
        strict = None
    problems: list[str] = []
    try:
        found = load(*args, on_problem=problems.append)
    except InputError:
        assert strict is None
        return []
    assert (strict is None) == bool(problems)
    for pair in found:
        check_pair(pair)
    return list(found)


points_lists = st.lists(st.lists(numbers, min_size=2, max_size=2), min_size=1, max_size=3)
spair_notes = st.fixed_dictionaries({key: mostly(value, values, points_lists) for key, value in SPAIR_NOTE.items()})


@given(spair_notes.map(dumped) | values.map(dumped) | files, mostly("000000-a-b:cat", texts).map(lambda t: t + "\n"))
@example(dumped(SPAIR_NOTE | {"src_kps": [[HUGE, 1], [2, 2]]}), "x")
@example(dumped(SPAIR_NOTE | {"src_bndbox": [0, 0, HUGE, 1]}), "x")
@example(dumped(SPAIR_NOTE | {"truncation": float("inf")}), "x")
@example(dumped(SPAIR_NOTE), "x" * 300)
@example(DEEP.encode(), "x")
def test_spair(note, listed):
    with folder() as root:
        (root / "Layout" / "large").mkdir(parents=True)
        (root / "PairAnnotation" / "val").mkdir(parents=True)
        (root / "Layout" / "large" / "val.txt").write_bytes(listed.encode("utf-8", "replace"))
        for name in listed.replace("\0", "").encode("utf-8", "replace").decode().split():
            if "/" not in name and len(name.encode()) < 250:
                (root / "PairAnnotation" / "val" / f"{name}.json").write_bytes(note)
        read_either_way(load_spair, root, "val")


@given(st.binary(max_size=40))
@example(b"\xff\xfe")
def test_spair_lists_of_any_bytes(listed):
    with folder() as root:
        (root / "Layout" / "large").mkdir(parents=True)
        (root / "Layout" / "large" / "val.txt").write_bytes(listed)
        assert read_either_way(load_spair, root, "val") == []


def cells(good: str) -> st.SearchStrategy[str]:
    return mostly(good, texts, numbers.map(str), st.lists(numbers.map(str), max_size=3).map(";".join))


def as_csv(rows: list[dict[str, str]]) -> bytes:
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue().encode("utf-8", "replace")


PASCAL_ROW = {
    "source_image": "a.jpg", "target_image": "b.jpg", "class": "8", "flip": "0",
    "XA": "1;2", "YA": "3;4", "XB": "5;6", "YB": "7;8",
}  # fmt: skip
pascal_rows = st.lists(st.fixed_dictionaries({k: cells(v) for k, v in PASCAL_ROW.items()}), min_size=1, max_size=3)
number_arrays = st.sampled_from([np.float64, np.int16, np.complex128, np.dtype("U3"), np.bool_]).flatmap(
    lambda kind: arrays(kind, array_shapes(max_dims=3, max_side=3))
)
mat_contents = st.fixed_dictionaries(
    {"kps": mostly(np.array([[1.0, 2], [3, np.nan]]), number_arrays), "bbox": mostly(np.arange(4.0), number_arrays)}
)


def written_mat(path: Path, content: dict[str, Any] | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what MATLAB could not read is welcome here
            savemat(path, content)


@given(pascal_rows.map(as_csv) | files, mat_contents | st.binary(max_size=200), mat_contents)
@example(as_csv([PASCAL_ROW | {"class": "²"}]), {}, {})
@example(as_csv([PASCAL_ROW]), {"kps": np.ones((2, 3))}, {"kps": np.full((2, 3), np.nan)})
@example(as_csv([PASCAL_ROW]), {"kps": np.array(["ab", "cd"])}, {"kps": np.ones((2, 2))})
@example(as_csv([PASCAL_ROW | {"source_image": "x" * 300}]), {}, {})
def test_pf_pascal(text, mat_a, mat_b):
    with folder() as root:
        (root / "test_pairs.csv").write_bytes(text)
        written_mat(root / "Annotations" / "cat" / "a.mat", mat_a)
        written_mat(root / "Annotations" / "cat" / "b.mat", mat_b)
        read_either_way(load_pfpascal, root, "test")


WILLOW_ROW = {"imageA": "car/a.png", "imageB": "car/b.png"} | {
    f"{axis}{side}{i}": str(i) for axis in "XY" for side in "AB" for i in range(1, 11)
}
willow_rows = st.lists(st.fixed_dictionaries({k: cells(v) for k, v in WILLOW_ROW.items()}), min_size=1, max_size=2)


@given(willow_rows.map(as_csv) | files)
@example(as_csv([WILLOW_ROW | {"imageA": "x" * 300}]))
@example(as_csv([WILLOW_ROW | {"XA1": "1" * 400}]))
@example(as_csv([WILLOW_ROW]) + b'"\n"' + b"x" * 200_000)
def test_pf_willow(text):
    with folder() as root:
        (root / "test_pairs.csv").write_bytes(text)
        read_either_way(load_pfwillow, root, "test")


triples = st.lists(st.tuples(numbers, numbers, st.integers(0, 2)), min_size=2, max_size=2).map(
    lambda rows: [value for row in rows for value in row]
)
boxes = st.lists(numbers, min_size=4, max_size=4)
coco_images = st.fixed_dictionaries(
    {"id": mostly(st.integers(1, 3), values), "file_name": mostly("1.jpg", texts, values)},
    optional={"width": mostly(80, values), "height": mostly(60, values)},
)
coco_categories = st.fixed_dictionaries(
    {"id": mostly(st.integers(1, 2), values), "name": mostly("cat", values)},
    optional={"keypoints": mostly(["left eye", "right eye"], values, st.lists(values, max_size=3))},
)
coco_notes = st.fixed_dictionaries(
    {
        "id": mostly(st.integers(1, 50), values),
        "image_id": mostly(st.integers(1, 3), values),
        "category_id": mostly(st.integers(1, 2), values),
        "keypoints": mostly(triples, values, st.lists(scalars, max_size=7)),
    },
    optional={"bbox": mostly(boxes, values), "iscrowd": mostly(0, values)},
)
coco_files = st.fixed_dictionaries(
    {
        "images": mostly(st.lists(coco_images, max_size=4), values),
        "categories": mostly(st.lists(coco_categories, max_size=3), values),
        "annotations": mostly(st.lists(coco_notes, max_size=5), values),
    }
)
GOOD_COCO = {
    "images": [{"id": i, "file_name": f"{i}.jpg", "width": 80, "height": 60} for i in (1, 2)],
    "categories": [{"id": 1, "name": "cat", "keypoints": ["left eye", "right eye"]}],
    "annotations": [
        {"id": i, "image_id": i, "category_id": 1, "bbox": [1, 2, 30, 40], "keypoints": [5, 6, 2, 7, 8, 2]}
        for i in (1, 2)
    ],
}


def changed_coco(**changes: Any) -> dict[str, Any]:
    """Every annotation, image and category changed alike."""
    return {
        key: [entry | changes.get(key, {}) for entry in entries]  # type: ignore[operator]
        for key, entries in GOOD_COCO.items()
    }


@given(coco_files | values)
@example(GOOD_COCO)
@example(changed_coco(annotations={"bbox": [100, 100, 20, 20]}))  # beside the image
@example(changed_coco(annotations={"bbox": [-30, -30, 20, 20]}))
@example(changed_coco(annotations={"bbox": [0, 0, HUGE, 3]}))
@example(changed_coco(annotations={"bbox": [1e308, 0, 1e308, 3]}))
@example(changed_coco(annotations={"keypoints": [HUGE, 1, 2, 3, 4, 2]}))
@example(changed_coco(categories={"keypoints": [["left"], {"right": 1}]}))
@example(changed_coco(categories={"keypoints": "ab"}))
@example(changed_coco(images={"width": 0, "height": -5}))
@example(changed_coco(images={"width": HUGE}))
@example(changed_coco(images={"width": "80"}))
def test_coco(data):
    problems: list[str] = []
    try:
        objects = parse_coco_objects(data, "a file", Path("images"), on_problem=problems.append)
    except InputError:
        return
    for item in objects:
        assert item.kps_px.shape == (len(item.visible), 2) == (len(item.kp_names), 2)
        assert np.isfinite(item.kps_px).all()
        assert item.image_size is None or min(item.image_size) > 0
        assert all(isinstance(name, str) for name in item.kp_names)
    for source in (CocoPairs, SelfPairs):
        try:
            pairs: Any = CocoPairs(objects, min_shared=1, mirror=0.5) if source is CocoPairs else SelfPairs(objects)
        except InputError:
            continue
        for index in range(3):
            check_pair(pairs[index])


@given(files | coco_files.map(dumped))
@example(b"[1e999]")
@example(b"1" * 5000)
def test_coco_files_of_any_bytes(content):
    with folder() as root:
        (root / "annotations.json").write_bytes(content)
        with one_sentence("annotations.json"):
            load_coco_objects(root / "annotations.json", root)


# ---------------------------------------------------------------- options and configs

KEYS = [*flatten(asdict(ModelConfig())), "match2match", "depht", "match2match.depht", "a.b.c", ""]
toml_words = (
    st.sampled_from([*VARIANTS, "all", "[1, 2]", "[15, 20]", "true", "none", "nan", "-inf", "1_000", "2020-01-01"])
    | st.sampled_from(["9" * 400, "9" * 5000, "[" * 20_000, "{a=1}", "1\nother = 2", '"', "'''", "[[1]]", "soft"])
    | numbers.map(str)
    | texts
)
settings_lists = st.lists(st.tuples(st.sampled_from(KEYS) | texts, toml_words).map("=".join) | texts, max_size=4)


@given(settings_lists)
@example(["variant=[1]"])
@example(["kernel_sigma=" + "9" * 400])
@example(["match2match.depth=" + "9" * 5000])
@example(["grid=" + "[" * 20_000])
@example(["match2match.depth=4\nheads = 2"])
@example(["image_size=nan"])
@example(["layers=[[1]]"])
def test_overrides(settings):
    try:
        config = model_config(parse_overrides(settings))
    except InputError:
        return
    assert model_config(to_plain(config)) == config  # what is written is read again


@given(st.dictionaries(st.sampled_from(KEYS), values, max_size=3))
@example({"image_size": {"": None}})
def test_model_configs_of_any_values(given_values):
    try:
        config = model_config(given_values)
    except InputError:
        return
    assert model_config(to_plain(config)) == config


RUN = {
    "model": {"variant": "paper"},
    "data": {
        "root": "x",
        "train": [{"benchmark": "spair", "folder": "a", "weight": 2}],
        "validate": [{"benchmark": "coco", "folder": "b", "limit": 3}],
    },
    "train": {"epochs": 2, "max_grad_norm": 0.1},
}
tables = st.fixed_dictionaries(
    {
        "data": st.fixed_dictionaries(
            {key: mostly(value, values, st.lists(values, max_size=2)) for key, value in RUN["data"].items()},
            optional={"p_color": mostly(0.5, values), "pairs_per_epoch": mostly(5, values)},
        )
    },
    optional={
        "model": mostly({}, values),
        "train": st.dictionaries(
            st.sampled_from(["epochs", "max_grad_norm", "lr", "seed", "init_from", "ema_decay"]), values
        ),
    },
)


@given(tables | values)
@example(RUN)
@example(RUN | {"train": {"seed": HUGE, "lr": float("nan")}})
@example(RUN | {"train": {"batch_size": 2.5}})
def test_run_configs(content):
    if isinstance(content, dict):
        try:
            config = run_config(content)
        except InputError:
            pass
        else:
            assert run_config(to_plain(config)) == config
    with folder() as root:
        (root / "run.json").write_bytes(dumped(content))
        for settings in ([], ["train.epochs=3"], ["epochs=3"], ["x.y=1"]):
            with one_sentence():
                read_run_config(root / "run.json", settings)


toml_files = (
    files
    | st.lists(st.tuples(texts, toml_words).map(" = ".join), max_size=4).map(
        lambda lines: "\n".join(["[model]", *lines]).encode("utf-8", "replace")
    )
    | st.sampled_from(
        [b"model = 3", b"[[model]]", b"[model.match2match]\ndepth = " + b"9" * 5000, b"x = " + b"[" * 20_000]
    )
)


@given(toml_files, st.sampled_from([".toml", ".json", ""]))
@example(b"[1]", ".json")
@example(DEEP.encode(), ".json")
@example(b"x = " + b"{a = " * 20_000, ".toml")
def test_config_files_of_any_bytes(content, ending):
    with folder() as root:
        path = root / f"config{ending}"
        path.write_bytes(content)
        for read in (read_model_config, read_run_config):
            with one_sentence():
                read(path)


@given(texts | st.lists(st.tuples(numbers, numbers).map(lambda p: f"{p[0]},{p[1]}"), max_size=4).map(";".join))
@example("1,2;" * 2000)
@example("²,1")
@example("1," + "9" * 5000)
@example("\0.json")
@example("\ud800.json")
@example("x" * 300 + ".json")
@example(".json")
@example("~")
def test_points_on_the_command_line(text):
    with one_sentence():
        points = read_points(text)
        assert points
        assert all(isinstance(number, float) for point in points.values() for number in point)


@given(values.map(dumped) | points_lists.map(dumped) | files)
@example(dumped([[HUGE, 1]]))
@example(dumped({"nose": [1, 2]}))
@example(dumped([[True, None]]))
@example(DEEP.encode())
def test_files_of_points(content):
    with folder() as root, one_sentence():
        (root / "points.json").write_bytes(content)
        points = read_points(str(root / "points.json"))
        assert all(isinstance(number, float) for point in points.values() for number in point)


@given(texts | st.tuples(numbers, numbers).map(lambda p: f"{p[0]}x{p[1]}"))
@example("²")
@example("9" * 5000)
@example("240x320")
def test_frames(text):
    with one_sentence():
        frame = parse_frame(text)
        assert frame is None or min(frame) > 0


@given(st.lists(st.floats(), max_size=4))
def test_alphas(given_alphas):
    with one_sentence():
        alphas = parse_alphas(given_alphas)
        assert alphas == sorted(set(given_alphas))


# ---------------------------------------------------------------- what commands left on the disk


@given(values.map(dumped) | files)
@example(dumped([1, 2, 3, 0.1, "img", "x"]))
@example(dumped("abcdef"))
@example(dumped([0, 0, 2**63]))
@example(dumped({"one_pass": {"bias": "x", "sharpness": 1, "consistency": 1}}))
@example(dumped({"one_pass": {"bias": 1, "sharpness": 1, "consistency": HUGE}}))
@example(dumped({"coarse_to_fine": {"right_weights": {"bias": HUGE}, "same_kind_weights": {"bias": 0.0}}}))
@example(dumped({"coarse_to_fine": asdict(fine_calibration({"gap": 1e6}, {"bias": -1e6}))}))
@example(dumped({"coarse_to_fine": asdict(fine_calibration()) | {"right_weights": {"gap": 1e300}}}))
def test_calibrations(content):
    with folder() as root, one_sentence():
        (root / "calibration.json").write_bytes(content)
        calibrations = load_calibration(root)
        if (calibration := calibrations.one_pass) is not None:
            assert np.isfinite(calibration(np.array([0.5]), np.array([0.1]))).all()
        if (fine := calibrations.coarse_to_fine) is not None:
            pair = PairCues(torch.ones(1, len(PAIR_CUES)))
            assert fine.right(PointCues(torch.ones(1, 2, len(POINT_CUES))), pair).isfinite().all()
            assert fine.same_kind(pair).isfinite().all()


@given(files | st.integers(0, 2**64 - 1).map(lambda n: n.to_bytes(8, "little") + b'{"a":{"dtype":"F32"}}'))
@example((2).to_bytes(8, "little") + b"{}")
def test_weights_of_any_bytes(content):
    with folder() as root, one_sentence():
        (root / "model.safetensors").write_bytes(content)
        read_safetensors(root / "model.safetensors")


PREDICTION = {
    "name": "0", "category": "cat", "src_size": [60, 80], "trg_size": [60, 80], "kp_index": [0, 1],
    "src_kps": [[1, 2], [3, 4]], "trg_kps": [[1, 2], [3, 4]], "pred_kps": [[1, 2], [3, 4]], "peak": [0.5, 0.5],
    "trg_bbox": [1, 2, 3, 4], "difficulty": {"scale": 1},
}  # fmt: skip
prediction_lines = st.fixed_dictionaries({key: mostly(value, values) for key, value in PREDICTION.items()})


@given(
    st.lists(prediction_lines | values, max_size=2).map(lambda rows: b"".join(dumped(r) + b"\n" for r in rows)) | files
)
@example(dumped(PREDICTION) + b"\n")
@example(dumped(PREDICTION | {"trg_size": [0, 0]}) + b"\n")
@example(dumped(PREDICTION | {"difficulty": {"scale": 7}}) + b"\n")
@example(dumped(PREDICTION | {"pred_kps": []}) + b"\n")
@example(dumped(PREDICTION | {"category": []}) + b"\n")
@example(dumped(PREDICTION | {"difficulty": None}) + b"\n")
@example(DEEP.encode() + b"\n")
def test_predictions(content):
    with folder() as root, one_sentence():
        (root / "predictions.jsonl").write_bytes(content)
        scores = score(read_predictions(root))
        assert scores["n_pairs"] >= 1
