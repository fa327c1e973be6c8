"""The files around the package: pinned versions, workflows, templates."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PINS = [line for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines() if line[:1] != "#"]


def requirements() -> list[Requirement]:
    """Everything that pyproject.toml asks for, extras and groups included."""
    project, groups = PROJECT["project"], PROJECT["dependency-groups"]
    lines = [*project["dependencies"], *PROJECT["build-system"]["requires"]]
    for more in (*project["optional-dependencies"].values(), *groups.values()):
        lines += [line for line in more if isinstance(line, str)]
    return [item for item in map(Requirement, lines) if item.name != project["name"]]


def test_pins_are_names_and_exact_versions():
    for line in PINS:
        assert re.fullmatch(r"[a-z0-9-]+==[\w.]+( ; .+)?", line), line


@pytest.mark.parametrize("item", requirements(), ids=str)
def test_every_requirement_is_pinned_within_its_range(item: Requirement):
    versions = [Requirement(line).specifier for line in PINS if Requirement(line).name == canonicalize_name(item.name)]
    assert versions, f"{item.name} is not in constraints.txt: make constraints"
    for exact in versions:
        (pin,) = exact
        assert item.specifier.contains(pin.version)


def test_groups_do_not_repeat_the_requirements_of_extras():
    extras = {
        Requirement(line).name for lines in PROJECT["project"]["optional-dependencies"].values() for line in lines
    }
    groups = [line for lines in PROJECT["dependency-groups"].values() for line in lines if isinstance(line, str)]
    assert not extras & {Requirement(line).name for line in groups}


def test_workflows_try_every_supported_python():
    supported = [line.split(" :: ")[-1] for line in PROJECT["project"]["classifiers"] if ":: Python :: 3." in line]
    workflows = {path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / ".github" / "workflows").glob("*.yml")}
    assert workflows.keys() == {"ci", "weekly", "release"}
    assert workflows["ci"]["jobs"]["test"]["strategy"]["matrix"]["python"] == supported
    assert workflows["weekly"]["jobs"]["versions"]["strategy"]["matrix"]["python"] == supported


def test_workflows_and_makefile_name_the_same_targets():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, re.M))
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        called = set(re.findall(r"run: make ([a-z]+)", path.read_text(encoding="utf-8")))
        assert called <= targets, path.name


def test_templates_and_hooks_are_valid_yaml():
    for path in (*(ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"), ROOT / ".pre-commit-config.yaml"):
        assert yaml.safe_load(path.read_text(encoding="utf-8")), path.name
