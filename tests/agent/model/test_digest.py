from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from kafila_agent.model import digest as digest_module
from kafila_agent.model.locate import find_by_digest, locate_model
from kafila_agent.model.manifest import ModelError, read_manifest


@pytest.fixture
def model(checkpoint, tmp_path: Path) -> Path:
    return shutil.copytree(checkpoint("llama"), tmp_path / "models" / "deep" / "tiny-llama")


def _flip_last_byte(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def test_equal_models_have_equal_digests_wherever_they_lie(model: Path, tmp_path: Path) -> None:
    twin = shutil.copytree(model, tmp_path / "twin")
    config = json.loads((twin / "config.json").read_text())
    (twin / "config.json").write_text(
        json.dumps(config | {"transformers_version": "0", "_name_or_path": "x"})
    )
    assert read_manifest(twin).digest == read_manifest(model).digest


def test_one_bit_of_a_weight_changes_the_digest_and_not_the_shapes(model: Path) -> None:
    before = read_manifest(model)
    whole, shapes = before.digest, before.shape_digest
    _flip_last_byte(model / "model.safetensors")
    after = read_manifest(model)
    assert after.shape_digest == shapes
    assert after.digest != whole


def test_a_field_that_tokens_depend_on_changes_the_digest(model: Path) -> None:
    before = read_manifest(model).digest
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.5}))
    assert read_manifest(model).digest != before


def test_content_is_hashed_once_until_the_file_changes(model: Path, tmp_path: Path, monkeypatch) -> None:
    cache = tmp_path / "cache"
    first = read_manifest(model, digest_cache=cache).digest
    with monkeypatch.context() as patched:
        patched.setattr(digest_module.hashlib, "file_digest", None)  # would raise, were it called
        assert read_manifest(model, digest_cache=cache).digest == first
    _flip_last_byte(model / "model.safetensors")
    assert read_manifest(model, digest_cache=cache).digest != first


def test_a_damaged_cache_is_computed_anew(model: Path, tmp_path: Path) -> None:
    first = read_manifest(model, digest_cache=tmp_path / "cache").digest
    for record in (tmp_path / "cache").iterdir():
        record.write_text("[]")
    assert read_manifest(model, digest_cache=tmp_path / "cache").digest == first


def test_a_model_is_found_by_its_digest_among_others(
    model: Path, checkpoint, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    digest = read_manifest(model).digest
    root = tmp_path / "models"
    shutil.copytree(checkpoint("qwen2"), root / "another")
    (root / "broken").mkdir()
    (root / "broken" / "config.json").write_text("{")
    hashed = []
    monkeypatch.setattr(digest_module, "_file_digest", lambda file, cache: hashed.append(file) or "0" * 64)
    assert find_by_digest(digest, "tiny-llama", [root]) is None
    assert {file.parent.name for file in hashed} == {"tiny-llama"}  # only what has its shapes is read
    monkeypatch.undo()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    assert find_by_digest(digest, "any name", [tmp_path / "absent", root]) == model


def test_a_model_is_found_in_the_hub_cache(model: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    snapshot = tmp_path / "hub" / "models--friends--tiny" / "snapshots" / "0123abcd"
    shutil.move(model, snapshot)
    manifest = read_manifest(snapshot)
    assert manifest.name == "friends/tiny"
    assert find_by_digest(manifest.digest, "friends/tiny", []) == snapshot


def test_a_model_is_located_by_path_and_by_name(model: Path, tmp_path: Path) -> None:
    assert locate_model(str(model)) == model
    assert locate_model("tiny-llama", [tmp_path / "models"]) == model
    assert locate_model("deep/tiny-llama", [tmp_path / "models"]) == model
    with pytest.raises(ModelError, match=r"no-such: no such model .*give a directory"):
        locate_model("no-such", [tmp_path / "models"])


def test_a_path_is_whole_wherever_it_was_given(model: Path, monkeypatch) -> None:
    """It is kept for a restart, which may be elsewhere."""
    monkeypatch.chdir(model.parent)
    assert locate_model(model.name) == model
    monkeypatch.chdir(model.parent.parent)
    assert locate_model("tiny-llama", [Path(model.parent.name)]) == model


def test_what_may_not_be_looked_into_is_named(model: Path, monkeypatch) -> None:
    with pytest.raises(ModelError, match=r"cannot be read .*too long.*--model-dir"):
        locate_model("x" * 300)
    weights = next(model.glob("*.safetensors"))
    manifest = read_manifest(model)

    def forbidden(*_, **__):
        raise PermissionError(13, "Permission denied", str(weights))

    monkeypatch.setattr(Path, "open", forbidden)
    with pytest.raises(ModelError, match=r"\.safetensors: cannot be read \(Permission denied\)"):
        _ = manifest.digest


def test_a_hub_id_that_cannot_be_fetched_says_so(monkeypatch) -> None:
    def absent(name: str, *, local_files_only: bool = False, **_: object) -> str:
        raise FileNotFoundError if local_files_only else OSError("offline")

    monkeypatch.setattr("huggingface_hub.snapshot_download", absent)
    with pytest.raises(
        ModelError, match=r"owner/name: not in the hub cache and not to be fetched \(offline\)"
    ):
        locate_model("owner/name")


def test_a_hub_snapshot_is_used_whole_or_fetched(model: Path, tmp_path: Path, monkeypatch) -> None:
    partial = tmp_path / "partial"
    partial.mkdir()
    (partial / "config.json").write_text((model / "config.json").read_text())
    asked = []

    def snapshot(name: str, *, local_files_only: bool = False, **_: object) -> str:
        asked.append((name, local_files_only))
        return str(partial if local_files_only else model)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    assert locate_model("owner/name") == model
    assert asked == [("owner/name", True), ("owner/name", False)]


def test_one_gguf_file_of_a_repository_or_of_a_directory_is_the_model(tmp_path: Path, monkeypatch) -> None:
    file = tmp_path / "model.Q4_0.gguf"
    file.write_bytes(b"GGUF")
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name, **_: str(tmp_path))
    assert locate_model("owner/name/model.Q4_0.gguf") == file
    assert locate_model(str(tmp_path)) == file
