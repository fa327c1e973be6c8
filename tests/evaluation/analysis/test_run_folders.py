"""Folders of eval and files of bench, and the commands that made them."""

import json
import shlex

import pytest
from helpers.analysis import BENCH, prediction, write_eval

from transformatcher.cli.main import build_parser
from transformatcher.errors import InputError
from transformatcher.evaluation.analysis.run_folders import bench_command, read_bench, read_eval


class TestCommands:
    """What is printed must be what the parser takes, and mean the same."""

    def parsed(self, command: str):
        first, *rest = shlex.split(command)
        assert first == "transformatcher"
        return build_parser().parse_args(rest)

    def evaluated(self, tmp_path, **arguments):
        """The arguments of the command behind a folder that eval wrote."""
        return self.parsed(read_eval(write_eval(tmp_path / "mine", [prediction("a", 1.0)], **arguments)).command)

    def test_shipped_model(self, tmp_path):
        args = self.evaluated(tmp_path, limit=7)
        assert (args.benchmark, args.split, args.limit, args.weights, args.out) == ("spair", "val", 7, None, "out/mine")

    def test_changed_read_out(self, tmp_path):
        args = self.evaluated(tmp_path, set={"kernel_sigma": 3, "image_size": [480, 640], "kernel_on": "none"})
        assert args.weights is None
        assert args.settings == ["kernel_sigma=3", "image_size=[480, 640]", "kernel_on=none"]

    def test_own_weights(self, tmp_path):
        args = self.evaluated(tmp_path, weights="runs/my run/best", set={"kernel_sigma": 3})
        assert args.weights == "runs/my run/best"
        assert args.settings == ["kernel_sigma=3"]

    def test_raw_correlation(self, tmp_path):
        args = self.evaluated(
            tmp_path, refiner="none", backbone="resnet50_v1", backbone_weights="a.safetensors",
            set={"image_size": [352, 352]},
        )  # fmt: skip
        assert (args.refiner, args.backbone, args.backbone_weights) == ("none", "resnet50_v1", "a.safetensors")
        assert args.settings == ["image_size=[352, 352]"]

    def test_pairs_of_another_seed(self, tmp_path):
        args = self.evaluated(tmp_path, benchmark="coco", split=None, limit=1, seed=3)
        assert (args.benchmark, args.limit, args.seed) == ("coco", 1, 3)

    def test_bench(self):
        args = self.parsed(bench_command(BENCH))
        assert (args.batch, args.size, args.train, args.json) == ([1], [240], None, True)
        assert args.backend == ["fused", "eager"]
        assert args.device == "cpu"


class TestErrors:
    def test_no_folder(self, tmp_path):
        with pytest.raises(InputError, match="no such folder; name one that transformatcher eval wrote"):
            read_eval(tmp_path / "nowhere")

    def test_no_predictions(self, tmp_path):
        with pytest.raises(InputError, match="no predictions there"):
            read_eval(tmp_path)

    @pytest.mark.parametrize("data", [[], {}, {"device": "cpu", "rows": []}, {"device": "cpu", "rows": [{"path": 1}]}])
    def test_not_a_bench(self, tmp_path, data):
        (tmp_path / "b.json").write_text(json.dumps(data))
        with pytest.raises(InputError, match="not what transformatcher bench --json prints"):
            read_bench(tmp_path / "b.json")

    @pytest.mark.parametrize("name", ["../../elsewhere", "spair/x", "<script>", 5, ["spair"]])
    def test_a_benchmark_that_is_none_of_ours(self, tmp_path, name):
        folder = write_eval(tmp_path / "x", [prediction("a", 1.0)], benchmark=name)
        with pytest.raises(InputError, match=r"run\.json: .* is no benchmark that is known here"):
            read_eval(folder)
