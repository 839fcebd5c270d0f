"""Naming a model: paths, Hub ids, and what is said when there is none. A local stand-in answers for the Hub."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from project.fake_hub import COMMIT, FakeHub, serve

from bireme.models.hub import HubUnreachableError, ModelNotFoundError, resolve

SAFETENSORS = {
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "README.md": b"not wanted",
    "model-00001-of-00002.safetensors": b"a" * 300,
    "model-00002-of-00002.safetensors": b"b" * 200,
    "model-stray.safetensors": b"c" * 100,
    "consolidated.safetensors": b"d" * 500,
    "model.safetensors.index.json": json.dumps(
        {"weight_map": {"x": "model-00001-of-00002.safetensors", "y": "model-00002-of-00002.safetensors"}}
    ).encode(),
}
GGUF = {
    "tiny-Q8_0.gguf": b"8" * 90,
    "tiny-Q4_K_M-00001-of-00002.gguf": b"4" * 60,
    "tiny-Q4_K_M-00002-of-00002.gguf": b"5" * 50,
    "tiny-Q4_K_S.gguf": b"6" * 40,
    "mmproj-tiny-F16.gguf": b"7" * 30,
}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    """A Hub with one model of each kind, and an empty cache."""
    from huggingface_hub import constants

    repos = {"org/st": SAFETENSORS, "org/gg": GGUF, "org/one": {"only.gguf": b"1" * 20}, "org/none": {"a.bin": b"x"}}
    with serve(FakeHub(repos=repos, gated={"org/gated"})) as fake:
        monkeypatch.setenv("HF_ENDPOINT", fake.endpoint)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        yield fake


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing listens on the discard port: every connection is refused at once."""
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")


def test_path_to_gguf_and_folder(tmp_path: Path) -> None:
    file = tmp_path / "a.GGUF"
    file.touch()
    assert resolve(str(file)) == file
    (tmp_path / "config.json").touch()
    assert resolve(str(tmp_path)) == tmp_path


def test_paths_that_are_no_model(tmp_path: Path) -> None:
    other = tmp_path / "weights.bin"
    other.touch()
    with pytest.raises(ModelNotFoundError, match=r"not a \.gguf file"):
        resolve(str(other))
    with pytest.raises(ModelNotFoundError, match="neither a .gguf file nor a config.json"):
        resolve(str(tmp_path))
    with pytest.raises(ModelNotFoundError, match="no file or folder here .*org/name"):
        resolve(str(tmp_path / "missing.gguf"))


@pytest.mark.parametrize("name", ["plain-name", "./org/name", "models/missing.gguf", "a/b/c", "org/name:"])
def test_what_cannot_be_a_hub_id_is_said_at_once(name: str, offline: None) -> None:
    with pytest.raises(ModelNotFoundError, match="no Hub id"):
        resolve(name)


def test_safetensors_as_the_index_says(hub: FakeHub) -> None:
    seen: list[tuple[int, int]] = []
    folder = resolve("org/st", lambda done, total: seen.append((done, total)))
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
    ]
    assert seen[-1][0] == seen[-1][1] == 504 + len(SAFETENSORS["model.safetensors.index.json"])
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_named_quantisation_brings_all_its_shards(hub: FakeHub) -> None:
    path = resolve("org/gg:q4_k_m")
    assert path.name == "tiny-Q4_K_M-00001-of-00002.gguf"
    assert (path.parent / "tiny-Q4_K_M-00002-of-00002.gguf").read_bytes() == b"5" * 50
    assert resolve("org/gg:tiny-Q4_K_S.gguf").name == "tiny-Q4_K_S.gguf"
    assert resolve("org/gg") == path


def test_only_gguf_of_a_repository(hub: FakeHub) -> None:
    assert resolve("org/one").read_bytes() == b"1" * 20


def test_second_time_nothing_is_fetched(hub: FakeHub) -> None:
    first = resolve("org/one")
    before = list(hub.fetched)
    assert resolve("org/one") == first
    assert hub.fetched == before == ["only.gguf"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("org/gg:Q3_K", "no GGUF file for 'Q3_K'; it has: tiny-Q4_K_M, tiny-Q4_K_S, tiny-Q8_0"),
        ("org/none", "neither safetensors .* it has: a.bin"),
        ("org/gated", "gated model: accept its terms .* HF_TOKEN"),
        ("org/absent", "no model 'org/absent' that you may see"),
    ],
)
def test_refusals_say_what_to_do(hub: FakeHub, name: str, words: str) -> None:
    with pytest.raises(ModelNotFoundError, match=words):
        resolve(name)


def test_offline_without_a_cache(hub: FakeHub, offline: None) -> None:
    with pytest.raises(HubUnreachableError, match="not in the local cache, and the Hub can't be reached .* path"):
        resolve("org/one")


@pytest.mark.parametrize("name", ["org/st", "org/gg:Q4_K_M", "org/one"])
def test_offline_out_of_the_cache(hub: FakeHub, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    online = resolve(name)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert resolve(name) == online


def test_a_busy_hub_is_as_good_as_none(hub: FakeHub) -> None:
    online = resolve("org/one")
    hub.busy = True
    assert resolve("org/one") == online
    with pytest.raises(HubUnreachableError, match="503"):
        resolve("org/st")


def test_offline_with_half_a_model(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = resolve("org/gg:Q4_K_M").parent
    (folder / "tiny-Q4_K_M-00002-of-00002.gguf").unlink()
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(HubUnreachableError, match="without tiny-Q4_K_M-00002-of-00002.gguf"):
        resolve("org/gg:Q4_K_M")


def test_a_broken_transfer_is_never_used(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda seconds: None, raising=False)
    hub.repos["org/long"] = {"long.gguf": b"z" * 4_000_000}
    hub.broken.add("long.gguf")
    with pytest.raises(HubUnreachableError, match="connection to the Hub was lost .* not be fetched twice"):
        resolve("org/long")
    hub.broken.clear()
    assert resolve("org/long").stat().st_size == 4_000_000
    assert COMMIT in str(resolve("org/long"))
