"""Asks which weaknesses are known of what deploy/*-requirements.txt pins.

Exit status: 0 none, 1 some (each is named with what mends it), 2 not everything could be asked about, and why.
pip-audit alone ends well where its database answers "not found" to every question, so one package is asked about
first, and one that was skipped counts as not asked.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CANARY = "cryptography==42.0.0"  # old enough that weaknesses are known of it
TOOL = [sys.executable, "-m", "pip_audit", "--disable-pip", "--progress-spinner", "off", "--format", "json"]


class NotAsked(Exception):
    """The database did not answer; the message says what was said instead."""


def ask(*arguments: str, stdin: str | None = None) -> list[dict]:
    """What is known of each package. Raises NotAsked."""
    asked = subprocess.run(
        [*TOOL, *arguments], input=stdin, capture_output=True, text=True, check=False, timeout=600
    )
    try:
        dependencies = json.loads(asked.stdout)["dependencies"]
    except (ValueError, KeyError):
        said = asked.stderr.strip().splitlines() or [f"exit status {asked.returncode}"]
        raise NotAsked(said[-1]) from None
    skipped = [dependency for dependency in dependencies if "skip_reason" in dependency]
    if skipped or not dependencies:
        raise NotAsked(skipped[0]["skip_reason"] if skipped else "no package was asked about")
    return dependencies


def main() -> int:
    """Print what is known."""
    files = sorted((ROOT / "deploy").glob("*-requirements.txt"))
    try:
        if not ask("--no-deps", "--requirement", "/dev/stdin", stdin=CANARY)[0]["vulns"]:
            raise NotAsked(f"it knows nothing of {CANARY}")
        dependencies = ask(*(word for file in files for word in ("--requirement", str(file))))
    except NotAsked as error:
        print(f"audit: the advisory database could not be asked: {error}", file=sys.stderr)
        return 2
    known = [(d, weakness) for d in dependencies for weakness in d["vulns"]]
    for dependency, weakness in known:
        mended = ", ".join(weakness["fix_versions"]) or "none yet"
        print(f"{dependency['name']} {dependency['version']}: {weakness['id']}; mended in: {mended}")
    print(f"audit: {len(dependencies)} packages, {len(known)} known weaknesses")
    return 1 if known else 0


if __name__ == "__main__":
    sys.exit(main())
