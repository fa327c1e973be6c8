"""The package's dependencies, as they are installed → whether one of them has a known vulnerability (pip-audit).

All that the package and its extras bring is looked up, and nothing else that the environment may hold. Where the
service that knows cannot be reached, this is said and the audit skipped: it is the only check that needs the network.
"""

import json
import re
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PACKAGE = "transformatcher"
UNREACHABLE = re.compile(
    r"ConnectionError|ConnectTimeout|ReadTimeout|ProxyError|SSLError|ServiceError|Max retries exceeded"
)
UNKNOWN = "not found on PyPI"  # how pip-audit words an answer of 404


def installed(package: str = PACKAGE) -> dict[str, str]:
    """Name → version of everything that a package and all its extras need, directly or not, as far as it is here."""
    own = metadata.distribution(package)
    extras = own.metadata.get_all("Provides-Extra") or []
    todo = [(package, frozenset(extras))]
    seen: set[tuple[str, frozenset[str]]] = set()
    found: dict[str, str] = {}
    while todo:
        name, wanted = todo.pop()
        if (name, wanted) in seen:
            continue
        seen.add((name, wanted))
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:  # of an extra that is not installed
            continue
        if name != canonicalize_name(package):
            found[name] = distribution.version.partition("+")[0]  # torch's 2.6.0+cpu is known as 2.6.0
        for line in distribution.requires or []:
            requirement = Requirement(line)
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in (*wanted, "")):
                todo.append((canonicalize_name(requirement.name), frozenset(requirement.extras)))
    return found


def verdict(answer: str, complaint: str) -> tuple[int, str]:
    """What pip-audit printed, on both streams → exit code and words."""
    try:
        entries: list[dict[str, Any]] = json.loads(answer)["dependencies"]
    except (ValueError, KeyError, TypeError):
        last = (complaint.strip().splitlines() or ["it said nothing"])[-1]
        if UNREACHABLE.search(complaint):
            return 0, f"dependency audit SKIPPED: the advisory service cannot be reached ({last[:200]})"
        return 1, f"dependency audit failed: {last}"
    bad = [entry for entry in entries if entry.get("vulns")]
    if bad:
        lines = [
            f"{entry['name']} {entry['version']}: {vuln['id']}"
            + (f", repaired in {', '.join(vuln['fix_versions'])}" if vuln.get("fix_versions") else "")
            for entry in bad
            for vuln in entry["vulns"]
        ]
        return 1, "\n".join(["known vulnerabilities:", *lines])
    unknown = [entry["name"] for entry in entries if "skip_reason" in entry]
    known = len(entries) - len(unknown)
    if not known:
        reason = entries[0]["skip_reason"] if entries else "no dependency is installed"
        why = "it knows none of them" if UNKNOWN in reason else reason
        return 0, f"dependency audit SKIPPED: the advisory service was of no use for {len(entries)} packages ({why})"
    rest = f"; not audited, as the service does not know them: {', '.join(unknown)}" if unknown else ""
    return 0, f"dependency audit: {known} packages without a known vulnerability{rest}"


def main() -> int:
    """Audit, and say what came of it."""
    with tempfile.TemporaryDirectory() as folder:
        pins = Path(folder) / "installed.txt"
        pins.write_text("".join(f"{name}=={version}\n" for name, version in sorted(installed().items())))
        command = [sys.executable, "-m", "pip_audit", "--requirement", pins, "--no-deps", "--disable-pip"]
        options = ["--format", "json", "--progress-spinner", "off", "--timeout", "15"]
        result = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    code, words = verdict(result.stdout, result.stderr)
    print(words)
    return code


if __name__ == "__main__":
    sys.exit(main())
