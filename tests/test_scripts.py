"""What the repository checks itself with."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


class TestAudit:
    audit = script("audit")

    @pytest.mark.parametrize(
        ("entries", "code", "words"),
        [
            ([{"name": "a", "version": "1", "vulns": []}], 0, "1 packages without a known vulnerability"),
            (
                [
                    {"name": "a", "version": "1", "vulns": [{"id": "CVE-1", "fix_versions": ["1.1"]}]},
                    {"name": "b", "skip_reason": "b not found on PyPI"},
                ],
                1,
                "a 1: CVE-1, repaired in 1.1",
            ),
            ([{"name": "b", "skip_reason": "b not found on PyPI"}], 0, "SKIPPED: .*it knows none of them"),
            (
                [{"name": "a", "version": "1", "vulns": []}, {"name": "b", "skip_reason": "not found on PyPI"}],
                0,
                "1 packages without a known vulnerability; not audited, .*: b",
            ),
        ],
    )
    def test_verdicts(self, entries: list[dict[str, Any]], code: int, words: str):
        found, said = self.audit.verdict(json.dumps({"dependencies": entries}), "")
        assert found == code
        assert re.search(words, said), said

    def test_an_unreachable_service_is_said_and_anything_else_fails(self):
        code, words = self.audit.verdict("", "Traceback\nrequests.exceptions.ConnectionError: no such host")
        assert (code, "SKIPPED" in words, "no such host" in words) == (0, True, True)
        assert self.audit.verdict("", "TypeError: our own fault") == (
            1,
            "dependency audit failed: TypeError: our own fault",
        )

    def test_what_is_looked_up(self):
        found = self.audit.installed()
        assert {"torch", "numpy", "timm"} <= found.keys()
        assert "markupsafe" in found  # what a dependency needs is one, too
        assert "transformatcher" not in found
        assert "+" not in found["torch"]


class TestVersions:
    versions = script("check_versions")

    def test_lowest(self):
        assert self.versions.lowest(["torch>=2.6", "safetensors>=0.4.5"]) == ["torch==2.6", "safetensors==0.4.5"]
        with pytest.raises(SystemExit, match="expected name>=version"):
            self.versions.lowest(["torch"])
        assert len(self.versions.lowest(self.versions.dependencies())) == len(self.versions.dependencies())

    def test_pythons(self):
        assert self.versions.pythons(self.versions.classifiers()) == ["3.11", "3.12", "3.13"]
        here = f"{sys.version_info.major}.{sys.version_info.minor}"
        assert self.versions.find_python(here) is not None
        assert self.versions.find_python("3.99") is None

    def test_what_is_missing_is_skipped_by_name(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
        monkeypatch.setattr(self.versions, "find_python", lambda _: None)
        found = list(self.versions.combinations(None, tmp_path, suite=False, keep=False))
        assert [outcome.state for outcome in found] == ["skipped"] * 6
        assert found[2].remark == "no python3.12 is installed that runs"

    def test_what_cannot_be_installed_is_skipped_and_what_does_not_work_fails(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ):
        calls: list[list[str]] = []
        good = ["venv"]

        def run(command: list[Any], log: Path, **_: Path) -> bool:
            calls.append([str(word) for word in command])
            log.write_text("its last words\n")
            return any(word in calls[-1] or any(word in part for part in calls[-1]) for word in good)

        monkeypatch.setattr(self.versions, "run", run)
        outcome = self.versions.check("x", "python", [["torch==2.6"], []], tmp_path, suite=False, keep=False)
        assert (outcome.state, "cannot be installed (its last words)" in outcome.remark) == ("skipped", True)
        good.append("torch>=2.6")
        assert self.versions.check("x", "python", [[]], tmp_path, suite=False, keep=True).state == "failed"
        good.append("--force-reinstall")
        assert self.versions.check("x", "python", [[]], tmp_path, suite=False, keep=True).state == "failed"
        good.append("smoke.py")
        outcome = self.versions.check("x", "python", [[]], tmp_path, suite=False, keep=True)
        assert (outcome.state, outcome.remark) == ("passed", "its last words")


def scanned(path: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("detect-secrets-hook")), "--no-verify", str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.skipif(importlib.util.find_spec("detect_secrets") is None, reason="detect-secrets is not installed")
@pytest.mark.parametrize(
    ("parts", "kind"),
    [
        (("AKIA", "Z7QX4M2N8R5T1V3B"), "AWS Access Key"),
        (("ghp_", "a1B2c3D4e5F6g7H8i9", "J0k1L2m3N4o5P6q7R8"), "GitHub Token"),
        (("-----BEGIN RSA PRIV", "ATE KEY-----"), "Private Key"),
        (("https://someone:s3cr3t", "word@example.org/"), "Basic Auth Credentials"),
        (("pass", "word = 'correct-horse-9'"), "Secret Keyword"),
    ],
)
def test_a_secret_would_be_found(tmp_path: Path, parts: tuple[str, ...], kind: str):
    """Put together here, so that this file is not one of them."""
    (tmp_path / "settings.py").write_text(f"x = '{''.join(parts)}'\n" if "=" not in parts[1] else "".join(parts))
    result = scanned(tmp_path / "settings.py")
    assert result.returncode == 1
    assert kind in result.stdout
    (tmp_path / "settings.py").write_text("x = 'nothing to hide'\n")
    assert scanned(tmp_path / "settings.py").returncode == 0
