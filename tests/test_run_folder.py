"""Whose folder it is, files of lines that are continued, commands from arguments."""

import json
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest

from transformatcher.errors import InputError
from transformatcher.files import exclusive_lock
from transformatcher.run_folder import (
    RUN,
    LineFile,
    Run,
    check_run_folder,
    describe_differences,
    differences,
    flatten,
    format_command,
    open_run_folder,
    read_arguments,
    read_run,
    write_run,
)

EVAL = Run("eval", {"benchmark": "spair", "model": {"depth": 6, "size": [240, 240]}, "weights_hash": "abc"})
OTHER = Run("eval", {"benchmark": "spair", "model": {"depth": 4, "size": [240, 240]}, "weights_hash": "def"})
RESULTS = ["lines.jsonl", "part-*.parquet"]


class TestDifferences:
    def test_nested_keys_are_dotted(self):
        assert flatten({"a": {"b": {"c": 1}, "d": [1]}, "e": {}}) == {"a.b.c": 1, "a.d": [1]}
        found = differences(EVAL.arguments, OTHER.arguments)
        assert found == [("model.depth", 6, 4), ("weights_hash", "abc", "def")]
        assert describe_differences(found) == 'model.depth (6 there, 4 here), weights_hash ("abc" there, "def" here)'

    def test_a_tuple_is_a_list_and_a_missing_key_is_null(self):
        assert differences({"size": [1, 2], "limit": None}, {"size": (1, 2)}) == []
        assert differences({}, {"limit": 3}) == [("limit", None, 3)]
        assert differences({"old": 1}, {}) == [("old", 1, None)]

    def test_keys_that_may_differ(self):
        there, here = {"data": {"root": "a", "seed": 1}, "x": 1}, {"data": {"root": "b", "seed": 2}, "x": 1}
        assert [found.key for found in differences(there, here, ignore=["data.root"])] == ["data.seed"]
        assert differences(there, here, ignore=["data"]) == []

    def test_long_values_and_many_keys_do_not_make_a_long_sentence(self):
        assert describe_differences(differences({"list": [0] * 99}, {"list": [1] * 99})) == "list"
        many = differences({}, {f"k{i}": i for i in range(9)})
        assert describe_differences(many).endswith("k5 (null there, 5 here) and 3 more")


class TestRunFile:
    def test_round_trip(self, tmp_path: Path):
        write_run(tmp_path, Run("train", {"lr": 0.1}, {"torch": "2.9"}))
        assert read_run(tmp_path) == Run("train", {"lr": 0.1}, {"torch": "2.9"})
        assert read_arguments(tmp_path) == {"lr": 0.1}
        assert json.loads((tmp_path / RUN).read_text())["command"] == "train"

    @pytest.mark.parametrize("text", ["{", "[]", "{}", '{"command": 1}', '{"command": "eval", "arguments": []}'])
    def test_damaged(self, tmp_path: Path, text):
        (tmp_path / RUN).write_text(text)
        assert read_run(tmp_path) is None
        assert read_arguments(tmp_path) == {}


class TestFolder:
    def test_fresh(self, tmp_path: Path):
        assert not check_run_folder(tmp_path / "nowhere", EVAL, RESULTS)
        write_run(tmp_path, OTHER)  # it never wrote a result
        assert not check_run_folder(tmp_path, EVAL, RESULTS)

    def test_resumed(self, tmp_path: Path):
        write_run(tmp_path, EVAL)
        (tmp_path / "part-7.parquet").touch()
        assert check_run_folder(tmp_path, EVAL, RESULTS)
        assert check_run_folder(tmp_path, OTHER, RESULTS, ignore=["model", "weights_hash"])

    def test_another_run(self, tmp_path: Path):
        write_run(tmp_path, OTHER)
        (tmp_path / "lines.jsonl").touch()
        message = (
            rf"^{tmp_path}: holds another run, which differs in model\.depth \(4 there, 6 here\), weights_hash "
            r'\("def" there, "abc" here\); choose another --out, or give --overwrite$'
        )
        with pytest.raises(InputError, match=message):
            check_run_folder(tmp_path, EVAL, RESULTS)
        with pytest.raises(InputError, match=r"here\); give --resume$"):
            check_run_folder(tmp_path, EVAL, RESULTS, way_out="give --resume")
        assert not check_run_folder(tmp_path, EVAL, RESULTS, overwrite=True)

    def test_results_of_nobody(self, tmp_path: Path):
        (tmp_path / "lines.jsonl").touch()
        for text in (None, "{"):
            if text:
                (tmp_path / RUN).write_text(text)
            with pytest.raises(InputError, match=r"holds results, but no valid run\.json that says which run made th"):
                check_run_folder(tmp_path, EVAL, RESULTS)
        assert not check_run_folder(tmp_path, EVAL, RESULTS, overwrite=True)

    def test_another_command_keeps_its_folder(self, tmp_path: Path):
        write_run(tmp_path, Run("train", {}))
        for overwrite in (False, True):
            with pytest.raises(InputError, match="results of transformatcher train, not of transformatcher eval; choo"):
                check_run_folder(tmp_path, EVAL, RESULTS, overwrite=overwrite)

    def test_opened(self, tmp_path: Path):
        out = tmp_path / "out"
        with open_run_folder(out, EVAL, RESULTS) as resumes:
            assert not resumes
            assert read_run(out) == EVAL
            with pytest.raises(InputError, match="another process is writing there"), exclusive_lock(out):
                pass
            (out / "lines.jsonl").touch()
        with open_run_folder(out, EVAL, RESULTS) as resumes:
            assert resumes
        with pytest.raises(InputError, match="another run"), open_run_folder(out, OTHER, RESULTS):
            pass
        assert read_run(out) == EVAL
        with open_run_folder(out, OTHER, RESULTS, overwrite=True) as resumes:
            assert not resumes
        assert [path.name for path in out.iterdir()] == [RUN]
        assert read_run(out) == OTHER


@dataclass(frozen=True)
class Square:
    name: str
    value: int


def squares(names):
    return (Square(name, int(name) ** 2) for name in names)


class TestLines:
    def file(self, folder: Path) -> LineFile[Square]:
        return LineFile(folder / "lines.jsonl", lambda data: Square(**data), "a square")

    def test_continued(self, tmp_path: Path):
        lines, seen = self.file(tmp_path), []
        assert lines.read() == {}
        assert lines.complete(["1", "2"], squares) == {"1": Square("1", 1), "2": Square("2", 4)}
        with lines.path.open("a") as file:
            file.write('{"name": "3", "va')  # killed while it was writing
        assert list(lines.read()) == ["1", "2"]
        asked = []

        def compute(names):
            asked.extend(names)
            return squares(names)

        found = lines.complete(["4", "3", "2"], compute, lambda *counts: seen.append(counts))
        assert asked == ["4", "3"]
        assert seen == [(1, 3), (2, 3), (3, 3)]
        assert list(found) == list(lines.read()) == ["1", "2", "4", "3"]

    def test_what_was_done_before_an_error_stays(self, tmp_path: Path):
        with pytest.raises(ValueError, match="invalid literal"):
            self.file(tmp_path).complete(["5", "no number"], squares)
        assert list(self.file(tmp_path).read()) == ["5"]

    def test_damaged(self, tmp_path: Path):
        lines = self.file(tmp_path)
        lines.path.write_text('{"name": "1", "value": 1}\n{"name": "1", "value": 1}\n')
        with pytest.raises(InputError, match=r"lines\.jsonl, line 2: a second line for 1; delete the file to start"):
            lines.read()
        for text in ("5", "{", '{"name": "1"}', "[" * 100_000):
            lines.path.write_text(text + "\n")
            with pytest.raises(InputError, match=r"lines\.jsonl, line 1: not a square \(.*\); delete the file"):
                lines.read()


def test_command():
    options = {
        "benchmark": "spair", "root": "my data", "split": None, "json": True, "train": False, "weights": "",
        "batch": [1, 16], "seed": 0,
        "set": {"sigma": 3, "size": [4, 5], "on": True, "kind": "none", "refiner": {"a": 1}},
        "backbone_weights": "x",
    }  # fmt: skip
    words = shlex.split(format_command(["eval", "a b"], options))
    assert words == [
        "transformatcher", "eval", "a b", "--benchmark", "spair", "--root", "my data", "--json", "--batch", "1", "16",
        "--seed", "0", "--set", "sigma=3", "--set", "size=[4, 5]", "--set", "on=true", "--set", "kind=none",
        "--set", "refiner.a=1", "--backbone-weights", "x",
    ]  # fmt: skip
