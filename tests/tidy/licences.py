"""The licences of everything that Kafila installs beside itself: ``python tests/tidy/licences.py`` prints the list."""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def installed_closure(requirements: list[str]) -> list[metadata.Distribution]:
    """The distributions that ``requirements`` bring, with what those need on this machine, by name."""
    found: dict[str, metadata.Distribution] = {}
    queue = [Requirement(text) for text in requirements]
    while queue:
        wanted = queue.pop()
        name = wanted.name.lower().replace("_", "-")
        if name in found or (wanted.marker and not wanted.marker.evaluate({"extra": ""})):
            continue
        try:
            found[name] = metadata.distribution(wanted.name)
        except metadata.PackageNotFoundError:
            continue  # an option of a dependency's that is not installed
        queue += [Requirement(text) for text in found[name].requires or ()]
    return [found[name] for name in sorted(found)]


def licence_of(distribution: metadata.Distribution) -> str:
    """What its metadata says, in a line."""
    fields = distribution.metadata
    if expression := fields.get("License-Expression"):
        return expression
    classifiers = [c.split(" :: ")[-1] for c in fields.get_all("Classifier") or () if c.startswith("License")]
    named = [c for c in classifiers if c != "OSI Approved"]
    return " / ".join(named) or (fields.get("License") or "").strip().split("\n")[0] or "not stated"


def main() -> None:
    """Print the list as Markdown."""
    runtime = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["agent"]]
    print("| package | licence |\n|---|---|")
    for distribution in installed_closure(runtime):
        print(f"| {distribution.metadata['Name']} | {licence_of(distribution)} |")


if __name__ == "__main__":
    main()
