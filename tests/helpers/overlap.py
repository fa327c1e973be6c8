"""PF-PASCAL with a training list, and an evaluation of pairs that the list holds in part."""

from pathlib import Path

from helpers.analysis import prediction, write_eval

FAR, NEAR, RIGHT = 50.0, 6.0, 0.0  # pixels of 80: wrong, right within 0.1 alone, right
TEST = {"b-a": RIGHT, "b-c": NEAR, "a-d": NEAR, "d-a": FAR, "d-e": FAR}  # a pair of the list exchanged, and others


def add_lists(pascal_root: Path) -> Path:
    """Give PF-PASCAL a training list of a–b (mirrored) and c–a, and the test list of ``TEST``."""
    mat = (pascal_root / "Annotations" / "cat" / "b.mat").read_bytes()
    for name in "cde":
        (pascal_root / "Annotations" / "cat" / f"{name}.mat").write_bytes(mat)
    with (pascal_root / "trn_pairs.csv").open("a") as file:
        file.write("JPEGImages/c.jpg,JPEGImages/a.jpg,8,0\n")
    lines = [f"JPEGImages/{name[0]}.jpg,JPEGImages/{name[2]}.jpg,8,1;2,3;4,5;6,7;8" for name in TEST]
    (pascal_root / "test_pairs.csv").write_text("\n".join(["source_image,target_image,class,XA,YA,XB,YB", *lines]))
    return pascal_root


def write_overlap_eval(folder: Path) -> Path:
    """An evaluation of the test list, with the errors of ``TEST``."""
    found = [prediction(f"{i:04d}-{name}-cat", error) for i, (name, error) in enumerate(TEST.items())]
    return write_eval(folder, found, benchmark="pfpascal", split="test")
