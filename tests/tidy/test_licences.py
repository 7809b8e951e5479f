"""What is installed beside us may be passed on, and is listed."""

from __future__ import annotations

import re

import pytest
from packaging.requirements import Requirement

from tests.tidy.licences import PROJECT, ROOT, installed_closure, licence_of

RUNTIME = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["agent"]]
PERMISSIVE = re.compile(
    r"MIT(-0)?|0?BSD|Apache|ISC|MPL|Mozilla|PSF|Python|Zlib|CC0|CNRI|BSL-1\.0|Unlicense|LicenseRef-NVIDIA|NVIDIA"
)


def test_every_licence_is_permissive():
    odd = {
        distribution.metadata["Name"]: licence
        for distribution in installed_closure(RUNTIME)
        for licence in [licence_of(distribution)]
        if not all(PERMISSIVE.search(part) for part in re.split(r" AND | / ", licence)) or "GPL" in licence
    }
    assert not odd


def test_every_dependency_is_listed_and_pinned():
    listed = (ROOT / "docs/LICENCES.md").read_text().lower().replace("_", "-")
    for text in [*RUNTIME, *PROJECT["optional-dependencies"]["dev"]]:
        requirement = Requirement(text)
        assert any(one.operator in ("==", "<") for one in requirement.specifier), f"{text} has no upper bound"
        if text in RUNTIME:
            assert f"| {requirement.name.lower().replace('_', '-')} |" in listed, (
                f"{text}: python tests/tidy/licences.py"
            )


@pytest.mark.parametrize(
    ("file", "wanted"),
    [("rendezvous-requirements.txt", PROJECT["dependencies"]), ("agent-requirements.txt", RUNTIME)],
)
def test_what_is_deployed_is_pinned_by_hash_and_is_what_the_project_asks_for(file, wanted):
    text = (ROOT / "deploy" / file).read_text()
    blocks = re.split(r"\n(?=\S)", text.strip())
    assert all("--hash=sha256:" in block for block in blocks)
    assert "http" not in re.sub(r"httpx2|httpcore2", "", text)
    pinned = {}
    for block in blocks:
        one = Requirement(block.split("\\")[0].strip())
        pinned.setdefault(one.name, set()).add(next(iter(one.specifier)).version)
    for text in wanted:
        requirement = Requirement(text)
        versions = pinned[requirement.name.replace("_", "-")]
        assert all(requirement.specifier.contains(version) for version in versions), text
