"""``bireme pull``, ``bireme models`` and what lies in the caches. A local stand-in answers for the Hub."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import scripted
from project.fake_hub import FakeHub, serve
from typer.testing import CliRunner, Result

from bireme.models import hub_room, stored
from bireme.models.hub_choice import offers
from bireme.server.cli import app
from bireme.server.commands.complete import complete_model, complete_stored
from bireme.server.commands.models import age

GGUF = scripted.SCRIPTED.read_bytes()


@pytest.fixture(autouse=True)
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    """A Hub with two quantisations of one model, one that can't be read, and empty caches."""
    from huggingface_hub import constants

    repos = {
        "org/one": {"one-Q4_K_M.gguf": GGUF, "one-Q8_0.gguf": GGUF + b"\0" * 64, "README.md": b"x"},
        "org/bad": {"bad.gguf": b"GGUF nonsense"},
    }
    with serve(FakeHub(repos=repos)) as fake:
        monkeypatch.setenv("HF_ENDPOINT", fake.endpoint)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("BIREME_CACHE", str(tmp_path / "own"))
        monkeypatch.chdir(tmp_path)
        yield fake


def bireme(*arguments: str, typed: str | None = None) -> Result:
    return CliRunner().invoke(app, list(arguments), input=typed)


def listed(*arguments: str) -> dict[str, dict[str, object]]:
    return {row["name"]: row for row in json.loads(bireme("models", "--json", *arguments).stdout)}


def test_pull_fetches_checks_and_says_what_it_is() -> None:
    result = bireme("pull", "org/one:Q8_0", "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == 0 and found["model"] == "org/one:Q8_0"
    assert Path(found["path"]).name == "one-Q8_0.gguf" and Path(found["path"]).is_file()
    assert found["context"] > 0 and found["weight_bytes"] > 0
    assert "bireme serve org/one:Q8_0" in bireme("pull", "org/one:Q8_0").stdout


def test_pull_of_what_cannot_be_served_fails() -> None:
    result = bireme("pull", "org/bad")
    assert result.exit_code == 2 and "bad.gguf" in result.stderr
    assert bireme("pull", "org/none").exit_code == 2


def test_a_full_disk_is_known_before_anything_is_fetched(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_room, "free_disk", lambda folder: 1000)
    result = bireme("pull", "org/one:Q8_0")
    assert result.exit_code == 1 and "0.0 GB free" in result.stderr and "HF_HUB_CACHE" in result.stderr
    assert hub.fetched == []


def test_what_is_there_needs_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    assert bireme("pull", "org/one:Q8_0").exit_code == 0
    monkeypatch.setattr(hub_room, "free_disk", lambda folder: 1000)
    assert bireme("pull", "org/one:Q8_0").exit_code == 0


def test_what_was_fetched_in_part_needs_less_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_room, "free_disk", lambda folder: 1000)
    blobs = tmp_path / "hub" / "models--org--one" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / "x.incomplete").write_bytes(b"\0" * 200)
    hub_room.check_room("org/one", {"a": 1200}, None)
    with pytest.raises(hub_room.NoRoomError):
        hub_room.check_room("org/one", {"a": 1201}, None)


def test_no_name_is_broken_however_long_it_is(tmp_path: Path) -> None:
    """What stands in the first column is to be copied, and cut out of a pipe."""
    long = tmp_path / ("a-folder-of-some-length-" * 5) / "a-model-with-a-long-name.gguf"
    long.parent.mkdir()
    long.write_bytes(b"GGUF nonsense")
    lines = bireme("models", "--folder", str(tmp_path)).stdout.splitlines()
    assert [line.split()[0] for line in lines[:2]] == ["NAME", str(long)]


def test_an_empty_cache_says_what_to_do() -> None:
    assert listed() == {}
    assert "bireme pull demo" in bireme("models").stdout


def test_models_of_every_place(tmp_path: Path) -> None:
    for name in ("org/one:Q8_0", "org/one:Q4_K_M", "org/bad"):
        bireme("pull", name)
    (tmp_path / "own" / "models").mkdir(parents=True)
    shutil.copy(scripted.SCRIPTED, tmp_path / "own" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf")
    (tmp_path / "more").mkdir()
    shutil.copy(scripted.SCRIPTED, tmp_path / "more" / "mine.gguf")
    rows = listed("--folder", str(tmp_path / "more"))
    mine = str(tmp_path / "more" / "mine.gguf")
    assert set(rows) == {"org/one:Q8_0", "org/one:Q4_K_M", "org/bad:bad", "demo", mine}
    assert rows["org/one:Q8_0"]["bytes"] == len(GGUF) + 64
    assert rows["org/one:Q8_0"]["place"] == "hub" and rows["demo"]["place"] == "bireme"
    assert rows["org/one:Q4_K_M"]["context"] == rows[mine]["context"] and rows[mine]["context"]
    assert rows["org/bad:bad"]["problem"] and rows["demo"]["problem"] is None
    table = bireme("models").stdout
    assert "org/one:Q8_0" in table and "just now" in table and "org/bad:bad can't be served" in table
    assert complete_stored("org/o") == ["org/one:Q4_K_M", "org/one:Q8_0"]
    assert complete_model("dem") == ["demo"]
    assert complete_model("mo") == ["more/"] and complete_model("more/") == ["more/mine.gguf"]


def test_half_a_model_is_called_so(tmp_path: Path) -> None:
    (tmp_path / "half").mkdir()
    shutil.copy(scripted.SCRIPTED, tmp_path / "half" / "big-00001-of-00002.gguf")
    (row,) = listed("--folder", str(tmp_path / "half")).values()
    assert "big-00002-of-00002.gguf missing" in str(row["problem"])


@pytest.mark.parametrize("index", ["{", "[]", "{}", '{"weight_map": 3}'])
def test_a_broken_index_hides_no_other_model(tmp_path: Path, index: str) -> None:
    folder = tmp_path / "more" / "broken"
    folder.mkdir(parents=True)
    for name, text in (("config.json", "{}"), ("model.safetensors", ""), ("model.safetensors.index.json", index)):
        (folder / name).write_text(text)
    shutil.copy(scripted.SCRIPTED, tmp_path / "more" / "good.gguf")
    rows = listed("--folder", str(tmp_path / "more"))
    assert "that can be read missing" in str(rows[str(folder)]["problem"])
    assert rows[str(tmp_path / "more" / "good.gguf")]["problem"] is None


def test_rm_asks_and_deletes_one_quantisation(tmp_path: Path) -> None:
    for name in ("org/one:Q8_0", "org/one:Q4_K_M"):
        bireme("pull", name)
    refused = bireme("models", "rm", "org/one:Q8_0", typed="n\n")
    assert refused.exit_code == 1 and "org/one:Q8_0" in listed()
    assert bireme("models", "rm", "org/one:Q8_0", typed="y\n").exit_code == 0
    assert set(listed()) == {"org/one:Q4_K_M"}
    base = tmp_path / "hub" / "models--org--one"
    assert [len(blob.read_bytes()) for blob in (base / "blobs").iterdir()] == [len(GGUF)]
    assert bireme("models", "rm", "org/one:Q4_K_M", "--yes").exit_code == 0
    assert listed() == {} and not base.exists()


def test_rm_of_what_is_not_there() -> None:
    result = bireme("models", "rm", "org/gone", "--yes")
    assert result.exit_code == 2 and "no cache holds a model 'org/gone'" in result.stderr


def test_nothing_outside_the_caches_is_deleted(tmp_path: Path) -> None:
    shutil.copy(scripted.SCRIPTED, tmp_path / "mine.gguf")
    (model,) = stored.stored_models([tmp_path])
    with pytest.raises(ValueError, match="delete it by hand"):
        model.remove()
    assert (tmp_path / "mine.gguf").exists()


def test_safetensors_share_their_side_files_with_nobody(tmp_path: Path, hub: FakeHub) -> None:
    golden = Path(scripted.FOLDER).parent / "golden" / "m02_mixed"
    hub.repos["org/two"] = {path.name: path.read_bytes() for path in golden.iterdir()} | {"two-F16.gguf": GGUF}
    bireme("pull", "org/two")
    bireme("pull", "org/two:F16")
    assert set(listed()) == {"org/two", "org/two:F16"}
    bireme("models", "rm", "org/two", "--yes")
    assert set(listed()) == {"org/two:F16"}
    assert not list((tmp_path / "hub").rglob("config.json"))


def test_a_quantisation_is_named_by_the_shortest_end_that_means_it() -> None:
    files = ["b/a-7B.IQ4_XS.gguf", "a-7B-UD-Q8_0.gguf", "a-7B-Q8_0.gguf"]
    assert list(offers("o/a", dict.fromkeys(files, 0))) == ["o/a:Q8_0", "o/a:UD-Q8_0", "o/a:IQ4_XS"]


@pytest.mark.parametrize(
    "seconds, words", [(5, "just now"), (61, "1 minute ago"), (7300, "2 hours ago"), (86400 * 400, "1 year ago")]
)
def test_age(seconds: float, words: str) -> None:
    assert age(seconds) == words
