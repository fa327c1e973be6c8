"""The parts of a training run that need no run: rates, averages, groups of weights, sources of pairs."""

import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import coco_file
from helpers.training import tiny_config
from torch import nn

from transformatcher.config import DataConfig, SourceConfig, TrainConfig, model_config
from transformatcher.data.coco_pairs import CocoPairs
from transformatcher.errors import InputError
from transformatcher.models.build import build_matcher
from transformatcher.models.transformatcher import TransforMatcher
from transformatcher.training.objective import Average, make_optimiser, rate_scale, training_source
from transformatcher.training.trainer import Trainer

CPU = torch.device("cpu")


class TestRate:
    def test_warm_up_then_constant(self):
        assert [rate_scale(step, 10, 4, "constant") for step in range(6)] == [0.25, 0.5, 0.75, 1, 1, 1]
        assert rate_scale(0, 10, 0, "constant") == 1

    def test_cosine_falls_from_one_to_nothing(self):
        scales = [rate_scale(step, 100, 20, "cosine") for step in range(101)]
        assert scales[19] == scales[20] == 1
        assert scales[60] == pytest.approx(0.5)  # half way from the warm-up to the end
        assert scales[100] == pytest.approx(0)
        assert all(a > b for a, b in pairwise(scales[20:]))

    def test_a_run_shorter_than_its_warm_up(self):
        assert [rate_scale(step, 2, 4, "cosine") for step in range(2)] == [0.25, 0.5]
        assert math.isfinite(rate_scale(4, 4, 4, "cosine"))


def test_the_best_is_chosen_at_a_measured_threshold(tmp_path: Path):
    with pytest.raises(InputError, match=r"train\.select_alphas = \[0\.2\]: choose some of 0\.01, 0\.05, 0\.1, 0\.15"):
        Trainer(tiny_config(tmp_path / "any", select_alphas=[0.2]), tmp_path, CPU)


class TwoLayers(TransforMatcher):
    """Weights and running statistics, and nothing else of a matcher."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.backbone, self.refiner = nn.BatchNorm1d(3), nn.Linear(2, 2)


class TestAverage:
    def test_equals_a_naive_running_mean(self):
        model = TwoLayers()
        average = Average(model, 0.6)
        expected = {key: value.double().numpy() for key, value in model.state_dict().items()}
        for step in range(1, 30):
            for value in model.state_dict().values():
                value.add_(torch.randn_like(value) if value.is_floating_point() else 0)
            average.follow(step)
            decay = min(0.6, (1 + step) / (10 + step))  # early on, less of what was
            for key, value in model.state_dict().items():
                expected[key] = decay * expected[key] + (1 - decay) * value.double().numpy()
        for key, value in average.model.state_dict().items():
            np.testing.assert_allclose(value.double(), expected[key], atol=1e-5, err_msg=key)

    def test_follows_what_an_optimiser_or_a_checkpoint_makes_of_the_model(self):
        model = TwoLayers()
        average = Average(model, 0.5)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        model.refiner(torch.ones(1, 2)).sum().backward()
        optimiser.step()
        before = average.model.refiner.weight.clone()
        for step in range(100, 140):
            average.follow(step)
        assert not torch.equal(average.model.refiner.weight, before)
        torch.testing.assert_close(average.model.refiner.weight, model.refiner.weight.detach())
        model.load_state_dict({key: torch.zeros_like(value) for key, value in model.state_dict().items()})
        for step in range(100, 160):
            average.follow(step)
        torch.testing.assert_close(average.model.refiner.weight, torch.zeros(2, 2))

    def test_the_model_stays_and_the_average_does_not_learn(self):
        model = TwoLayers()
        average = Average(model, 0.9)
        before = model.refiner.weight.detach().clone()
        with torch.no_grad():
            average.model.refiner.weight.zero_()
        average.follow(5)
        assert torch.equal(model.refiner.weight, before)
        assert model.refiner.weight.requires_grad
        assert not any(p.requires_grad for p in average.model.parameters())


@pytest.fixture(scope="module")
def model() -> TransforMatcher:
    return build_matcher(model_config({"backbone": "resnet50_v1", "stages": 1, "grid": 4, "depth": 1}))


class TestOptimiser:
    def test_two_rates(self, model: TransforMatcher):
        optimiser = make_optimiser(model, TrainConfig(lr=3e-3, lr_backbone=4e-5, weight_decay=0.1), CPU)
        matcher, backbone = optimiser.param_groups
        assert (matcher["lr"], matcher["full_lr"], matcher["weight_decay"]) == (3e-3, 3e-3, 0.1)
        assert (backbone["lr"], backbone["full_lr"]) == (4e-5, 4e-5)
        assert {id(p) for p in backbone["params"]} == {id(p) for p in model.backbone.parameters()}
        every = [id(p) for group in optimiser.param_groups for p in group["params"]]
        assert sorted(every) == sorted(id(p) for p in model.parameters())

    def test_a_backbone_that_stays_as_it_is(self, model: TransforMatcher):
        (group,) = make_optimiser(model, TrainConfig(lr_backbone=0.0), CPU).param_groups
        assert {id(p) for p in group["params"]} == {id(p) for p in model.refiner.parameters()}

    def test_a_matcher_without_weights(self):
        raw = build_matcher(model_config({"variant": "raw", "backbone": "resnet50_v1", "stages": 1}))
        (group,) = make_optimiser(raw, TrainConfig(lr_backbone=1e-4), CPU).param_groups
        assert group["lr"] == 1e-4

    def test_without_decay_it_is_adam(self):
        ours, theirs = TwoLayers(), TwoLayers()
        theirs.load_state_dict(ours.state_dict())
        one = make_optimiser(ours, TrainConfig(lr=0.1, lr_backbone=0.0), CPU)
        other = torch.optim.Adam(theirs.refiner.parameters(), lr=0.1)
        for _ in range(3):
            for module, optimiser in ((ours, one), (theirs, other)):
                optimiser.zero_grad()
                module.refiner(torch.ones(1, 2)).square().sum().backward()
                optimiser.step()
        torch.testing.assert_close(ours.refiner.weight, theirs.refiner.weight)


class TestSource:
    @staticmethod
    def source(root: Path, **options) -> CocoPairs:
        item = SourceConfig("coco", root.name, share=2.0)
        source = training_source(item, DataConfig((item,), (item,), root=str(root.parent), **options), seed=3)
        assert source.share == 2.0
        assert isinstance(source.pairs, CocoPairs)
        return source.pairs

    def test_small_objects_are_left_out(self, tmp_path: Path):
        """Boxes of 40, 32, 16 pixels in images of 80 × 60; a fourth object has no box."""
        boxes = [[1, 2, 40, 10], [1, 2, 10, 32], [1, 2, 16, 16], None]
        notes = [
            {"id": i, "image_id": 1 + i % 3, "category_id": 1, "bbox": box, "keypoints": [9, 9, 2] * 4}
            for i, box in enumerate(boxes)
        ]
        coco_file(tmp_path / "coco", annotations=notes)
        for least, kept in ((0.0, "0123"), (0.2, "0123"), (0.39, "013"), (0.41, "03"), (0.5, "03")):
            if kept == "03":  # both lie in one image
                with pytest.raises(InputError, match="no two of the 2 annotated objects"):
                    self.source(tmp_path / "coco", min_object=least)
            else:
                objects = self.source(tmp_path / "coco", min_object=least).objects
                assert "".join(item.id for item in objects) == kept

    def test_the_rules_arrive(self, coco_root: Path):
        pairs = self.source(coco_root, mirror=0.25, balanced=False, min_shared=2, min_overlap=0.5)
        assert (pairs.seed, pairs.mirror, pairs.balanced) == (3, 0.25, False)
        assert {pairs[i].name.removesuffix("-mirrored") for i in range(9)} == {"1-2-cat", "2-1-cat"}
        with pytest.raises(InputError, match="4 keypoints in common"):
            self.source(coco_root, min_shared=4)

    def test_a_list_of_pairs(self, spair_root: Path):
        item = SourceConfig("spair", spair_root.name, split="val", share=0.5)
        source = training_source(item, DataConfig((item,), (item,), root=str(spair_root.parent)), seed=0)
        assert (len(source.pairs), source.share) == (2, 0.5)

    def test_photos_that_are_left_out(self, pascal_root: Path, coco_root: Path):
        """The list has a–b; then c–d as well, of which only those stay that no named set shows."""
        mat = (pascal_root / "Annotations" / "cat" / "b.mat").read_bytes()
        for name in "cd":
            (pascal_root / "Annotations" / "cat" / f"{name}.mat").write_bytes(mat)
        with (pascal_root / "trn_pairs.csv").open("a") as file:
            file.write("JPEGImages/c.jpg,JPEGImages/d.jpg,8,0\n")
        listed, test = (SourceConfig("pfpascal", pascal_root.name, split=split) for split in ("trn", "test"))
        coco = SourceConfig("coco", coco_root.name)

        def names(item: SourceConfig, *leave_out: SourceConfig) -> list[str]:
            data = DataConfig((item,), (item,), root=str(pascal_root.parent), leave_out=leave_out)
            pairs = training_source(item, data, seed=0).pairs
            return [thing.id for thing in pairs.objects] if item is coco else [pair.name for pair in pairs]

        assert names(listed) == ["0000-a-b-cat", "0001-c-d-cat"]
        assert names(listed, test) == ["0001-c-d-cat"]
        with pytest.raises(InputError, match=r"pairs: all 2 show photos that data\.leave_out names"):
            names(listed, test, listed)
        assert len(names(coco)) == 4
        assert names(coco, test) == names(coco)  # other photos
        with pytest.raises(InputError, match="objects: all 4 show photos"):
            names(coco, coco)
        with pytest.raises(InputError, match=r"data\.leave_out: .*elsewhere"):
            names(listed, SourceConfig("pfpascal", "elsewhere", split="test"))
