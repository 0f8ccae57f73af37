"""Publishing over HTTP: what reaches the Hub, what an update sends, and what a mistake or a broken line leaves."""

import json
import re
from types import SimpleNamespace

import pytest
import torch
from fresh_process import change_weights
from huggingface_hub import ModelCard
from huggingface_hub.utils import _http
from safetensors.torch import load_file
from transformers import AutoModel, AutoTokenizer

from glocal_xml.cli import main as command
from glocal_xml.cli.train import main as train
from glocal_xml.hub import publish

pytest_plugins = ["local_hub"]

TOKEN = {"token": "hf_writer0"}


def names(hub, repo_id, revision="main", kind="models"):
    return set(hub.repos[f"{kind}/{repo_id}"].files(revision)) - {".gitattributes"}


def test_a_repository_holds_the_model_and_nothing_private(hub, run_folder):
    for name in ("training_args.bin", "optimizer.pt", "my_script.py", "predictions.jsonl"):
        (run_folder / name).write_text("private")
    results = json.loads((run_folder / "results.json").read_text(encoding="utf-8"))
    results["settings"]["model"]["encoder_options"]["token"] = results["note"] = "hf_abcdefghij"
    (run_folder / "results.json").write_text(json.dumps(results), encoding="utf-8")
    published = publish(run_folder, "me/tiny", license="mit", language="en", **TOKEN)
    assert published.url == f"{hub.url}/me/tiny" and published.space_url is None
    assert published.commit == hub.repos["models/me/tiny"].branches["main"]
    held = names(hub, "me/tiny")
    assert {"README.md", "config.json", "model.safetensors", "labels.txt", "label_counts.json"} <= held
    assert {"results.json", "tokenizer.json", "tokenizer_config.json", "modeling_base.py", "experts.py"} <= held
    assert not {name for name in held if name.endswith((".bin", ".pt", ".jsonl")) or "/" in name or "my_" in name}
    files = {name: file.content for name, file in hub.repos["models/me/tiny"].files().items()}
    text = b"".join(content for name, content in files.items() if not name.endswith(".safetensors"))
    assert str(run_folder.parent).encode() not in text and b"hf_abcdefghij" not in text and b"/tmp/" not in text
    assert files["labels.txt"] == (run_folder / "labels.txt").read_bytes()
    card = ModelCard(files["README.md"].decode())
    assert (card.data.license, card.data.language, card.data.model_name) == ("mit", "en", "tiny")
    assert 'name = "me/tiny"' in card.text and card.data.eval_results[0].metric_type == "precision@1"
    publish(run_folder, "me/tiny", language="de", **TOKEN)
    card = ModelCard(hub.repos["models/me/tiny"].files()["README.md"].content.decode())
    assert (card.data.license, card.data.language) == ("mit", "de"), "what is not said again stays"


def test_an_update_sends_what_has_changed(hub, run_folder):
    first = publish(run_folder, "me/update", **TOKEN)
    repo = hub.repos["models/me/update"]
    hub.log.clear()
    again = publish(run_folder, "me/update", **TOKEN)
    assert again.commit == first.commit and len(repo.commits) == 2
    assert not [row for row in hub.log if row[0] == "PUT" or "/commit/" in row[1]]
    # Other label names: one small file, and weights stay where they are.
    (run_folder / "labels.txt").write_text("".join(f"{i}\n" for i in range(8)), encoding="utf-8")
    hub.log.clear()
    second = publish(run_folder, "me/update", commit_message="Other names", **TOKEN)
    assert second.commit != first.commit and hub.uploads() == []
    (sent,) = (size for _, path, size in hub.log if "/commit/" in path)
    assert sent < 1000
    change_weights(run_folder)
    publish(run_folder, "me/update", **TOKEN)
    assert hub.uploads() == [repo.files()["model.safetensors"].oid()] and len(repo.commits) == 4
    assert repo.commits[first.commit]["model.safetensors"] != repo.files()["model.safetensors"]


def test_outdated_files_go_and_those_of_others_stay(hub, run_folder):
    publish(run_folder, "me/stale", **TOKEN)
    repo = hub.repos["models/me/stale"]
    own = repo.files()["labels.txt"]
    stale = ("model-00001-of-00002.safetensors", "model.safetensors.index.json", "label_tree.npz")
    others = ("figure.png", "handler.py", "docs/notes.py")
    repo.commit("main", {**repo.files(), **dict.fromkeys((*stale, *others), own)})
    publish(run_folder, "me/stale", **TOKEN)
    assert not names(hub, "me/stale") & set(stale) and set(others) <= names(hub, "me/stale")


def test_a_branch_of_its_own(hub, run_folder):
    main = publish(run_folder, "me/branches", **TOKEN)
    change_weights(run_folder)
    branch = publish(run_folder, "me/branches", revision="v2", **TOKEN)
    assert hub.repos["models/me/branches"].branches == {"main": main.commit, "v2": branch.commit}
    with pytest.raises(ValueError, match="shows the main branch"):
        publish(run_folder, "me/branches", revision="v2", space=True, **TOKEN)


@pytest.mark.parametrize("place", ["lfs", "commit"])
def test_a_broken_line_leaves_the_old_revision(hub, run_folder, monkeypatch, place):
    # It tries several times, with seconds between.
    monkeypatch.setattr(_http, "time", SimpleNamespace(sleep=lambda _: None, time=_http.time.time))
    repo_id = f"me/broken-{place}"
    before = publish(run_folder, repo_id, **TOKEN).commit
    files = dict(hub.repos[f"models/{repo_id}"].files())
    change_weights(run_folder)
    monkeypatch.setattr(hub, "breaks_at", place)
    hub.log.clear()
    with pytest.raises(OSError, match="check the network and try again"):
        publish(run_folder, repo_id, **TOKEN)
    assert [path for _, path, _ in hub.log if path.startswith("/lfs/") or "/commit/" in path], "it got that far"
    repo = hub.repos[f"models/{repo_id}"]
    assert repo.branches == {"main": before} and repo.files() == files
    monkeypatch.setattr(hub, "breaks_at", None)
    after = publish(run_folder, repo_id, **TOKEN).commit
    assert after != before and repo.files()["model.safetensors"] != files["model.safetensors"]


def test_private_means_private(hub, run_folder):
    publish(run_folder, "me/hidden", private=True, **TOKEN)
    assert hub.repos["models/me/hidden"].private
    publish(run_folder, "me/hidden", private=True, **TOKEN)
    publish(run_folder, "me/open", **TOKEN)
    commits = len(hub.repos["models/me/open"].commits)
    with pytest.raises(ValueError, match="exists and is public"):
        publish(run_folder, "me/open", private=True, **TOKEN)
    assert len(hub.repos["models/me/open"].commits) == commits


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["me/new"], "There is no token for the Hub"),
        (["me/new", "--token", "hf_unknown"], "does not accept the token"),
        (["me/new", "--token", "hf_reader0"], "may not write to me/new"),
        (["me/new", "--token", "hf_other00"], "may not write to me/new"),
        (["new", "--token", "hf_writer0"], "has no owner"),
        (["me/a new one", "--token", "hf_writer0"], "cannot be the id of a repository"),
        (["me/../x", "--token", "hf_writer0"], "cannot be the id of a repository"),
    ],
)
def test_a_mistake_is_one_line(hub, trained, arguments, message, capsys):
    assert command(["publish", str(trained), *arguments]) == 2
    shown = capsys.readouterr()
    assert message in shown.err and len(shown.err.strip().splitlines()) == 1 and shown.out == ""
    assert "models/me/new" not in hub.repos


def test_a_folder_that_is_no_model_is_one_line(hub, run_folder, tmp_path, capsys):
    def error(folder):
        assert command(["publish", str(folder), "me/none", "--token", "hf_writer0"]) == 2
        (line,) = capsys.readouterr().err.strip().splitlines()
        return line

    assert "is no folder of a trained model" in error(tmp_path / "missing")
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    assert "model of type 'bert'" in error(tmp_path)
    for name, message in {
        "results.json": "neither results.json nor README.md",
        "labels.txt": "lacks labels.txt",
        "label_scores.py": "label_scores.py is missing",
        "model.safetensors": "has no weights",
    }.items():
        (run_folder / name).unlink()
        (run_folder / "README.md").unlink(missing_ok=True)
        assert message in error(run_folder)
    assert hub.repos.get("models/me/none") is None


def test_without_a_network(hub, trained, monkeypatch, capsys):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    assert command(["publish", str(trained), "me/none", "--token", "hf_writer0"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "The connection to http://127.0.0.1:9 failed" in line
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert command(["publish", str(trained), "me/none", "--token", "hf_writer0"]) == 2
    assert "HF_HUB_OFFLINE is set" in capsys.readouterr().err


def test_a_dry_run_touches_no_network(hub, trained, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    hub.log.clear()
    assert command(["publish", str(trained), "me/tiny", "--dry-run", "--space", "--license", "mit"]) == 0
    assert hub.log == []
    shown = capsys.readouterr().out
    size = (trained / "model.safetensors").stat().st_size
    assert f"{size:>15,}  model.safetensors\n" in shown and "spaces/me/tiny:" in shown and "predictions" not in shown
    card = ModelCard((tmp_path / "model_cards" / "tiny.md").read_text(encoding="utf-8"))
    assert card.data.license == "mit" and 'name = "me/tiny"' in card.text


@pytest.mark.parametrize(
    ("license", "notice"),
    [
        (None, "names no license"),
        ("Apache 2.0", "license 'Apache 2.0' is not.* Did you mean apache-2.0"),
        ("mit", None),
    ],
)
def test_a_license_that_nobody_knows_is_named(trained, tmp_path, monkeypatch, capsys, license, notice):
    monkeypatch.chdir(tmp_path)
    assert (
        command(["publish", str(trained), "me/tiny", "--dry-run", *(["--license", license] if license else [])]) == 0
    )
    shown = capsys.readouterr().out
    assert re.search(notice, shown) if notice else "license" not in shown


def test_a_card_that_a_person_wrote_is_published(hub, run_folder):
    (run_folder / "README.md").write_text("---\nlanguage: de\n---\nMine.\n", encoding="utf-8")
    publish(run_folder, "me/mine", license="mit", **TOKEN)
    card = ModelCard(hub.repos["models/me/mine"].files()["README.md"].content.decode())
    assert (card.data.license, card.data.language, card.text.strip()) == ("mit", "de", "Mine.")
    (run_folder / "README.md").write_text("---\nlicense: gpl-3.0\n---\nMine.\n", encoding="utf-8")
    publish(run_folder, "me/mine", **TOKEN)
    card = ModelCard(hub.repos["models/me/mine"].files()["README.md"].content.decode())
    assert (card.data.license, card.data.language) == ("gpl-3.0", "de")


NOTICE = "bags of token ids of 40 training texts"


def stored(hub, repo_id, folder):
    """What a repository holds, in a folder."""
    folder.mkdir()
    for name, file in hub.repos[f"models/{repo_id}"].files().items():
        (folder / name).write_bytes(file.content)
    return folder


def test_whoever_publishes_a_memory_is_told_before(hub, run_folder, tmp_path, monkeypatch, caplog, capsys):
    monkeypatch.chdir(tmp_path)
    assert command(["publish", str(run_folder), "me/told", "--dry-run"]) == 0
    assert NOTICE in capsys.readouterr().out
    sent = len(caplog.records)
    monkeypatch.setattr(hub, "breaks_at", "commit")
    monkeypatch.setattr(_http, "time", SimpleNamespace(sleep=lambda _: None, time=_http.time.time))
    with pytest.raises(OSError, match="try again"):
        publish(run_folder, "me/told", **TOKEN)
    assert [NOTICE in record.getMessage() for record in caplog.records[sent:]].count(True) == 1
    assert names(hub, "me/told") == set(), "told before anything was sent"


def test_a_copy_without_the_memory(hub, run_folder, tmp_path, caplog):
    before = {path.name: path.read_bytes() for path in run_folder.iterdir() if path.is_file()}
    publish(run_folder, "me/forgetful", leave_out_memory=True, **TOKEN)
    assert NOTICE not in caplog.text and "run `glocal-xml calibrate COPY FILE`" in caplog.text
    assert {path.name: path.read_bytes() for path in run_folder.iterdir() if path.is_file()} == before
    copy = stored(hub, "me/forgetful", tmp_path / "copy")
    assert not [name for name in load_file(copy / "model.safetensors") if name.startswith(("memory.", "dense."))]
    model, report = AutoModel.from_pretrained(copy, output_loading_info=True)
    assert not any(report.values()) and model.memory is None and model.config.memory is None
    assert model.dense is None and model.config.dense is None
    whole = AutoModel.from_pretrained(run_folder)
    assert whole.dense is not None and {"memory", "dense"} <= whole.config.blend["weights"].keys()
    # The others as they are, marked as not fitted.
    weights = {
        name: weight
        for name, weight in whole.config.blend["weights"].items()
        if name.split("_")[0] not in ("memory", "dense")
    }
    assert model.config.blend["weights"] == weights and model.config.blend["texts"] == 0
    inputs = AutoTokenizer.from_pretrained(copy)("apple dog", return_tensors="pt")
    full, rest = (loaded.score_labels(torch.arange(8), **inputs) for loaded in (whole, model))
    for name in rest.keys() - {"final"}:
        torch.testing.assert_close(rest[name], full[name])
    assert not torch.allclose(rest["final"], full["final"], atol=1e-3)
    card = (copy / "README.md").read_text(encoding="utf-8")
    assert "which was left out of this copy" in card and "token counts of" not in card
    # Fitted again, its scores are probabilities.
    rows = [{"text": f"{word} dog", "labels": ["is dog", f"is {word}"]} for word in ("apple", "fox", "house") * 20]
    (tmp_path / "other.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    assert command(["calibrate", str(copy), str(tmp_path / "other.jsonl")]) == 0
    assert AutoModel.from_pretrained(copy).config.blend["texts"] == 60


def test_a_copy_of_several_files_of_weights(hub, run_folder, tmp_path):
    model = AutoModel.from_pretrained(run_folder)
    (run_folder / "model.safetensors").unlink()
    model.save_pretrained(run_folder, max_shard_size="20KB")
    publish(run_folder, "me/shards", leave_out_memory=True, **TOKEN)
    copy, report = AutoModel.from_pretrained(stored(hub, "me/shards", tmp_path / "copy"), output_loading_info=True)
    assert copy.memory is None and not any(report.values()) and len(list((tmp_path / "copy").glob("model-*"))) > 1
    inputs = AutoTokenizer.from_pretrained(run_folder)("apple dog", return_tensors="pt")
    full, rest = (loaded.score_labels(torch.arange(8), **inputs) for loaded in (model, copy))
    torch.testing.assert_close(rest["lexical"], full["lexical"])


def test_no_memory_to_leave_out_is_named(hub, run_folder, tmp_path, text_file, capsys):
    model = AutoModel.from_pretrained(run_folder)
    model.set_expert("memory", None, None)
    model.set_expert("dense", None, None)
    model.save_pretrained(run_folder)
    arguments = ["me/none", "--leave_out_memory", "--token", "hf_writer0"]
    assert command(["publish", str(run_folder), *arguments]) == 2
    assert "has no memory that could be left out" in capsys.readouterr().err
    alone = [
        *("--encoder", "none", "--experts", "memory", "--train_file", text_file("train.jsonl", 40)),
        *("--use_cpu", "true", "--output_dir", str(tmp_path / "alone")),
    ]
    train(alone)
    capsys.readouterr()
    assert command(["publish", str(tmp_path / "alone"), *arguments]) == 2
    assert "The memory is all that" in capsys.readouterr().err
    # With it, a model without an encoder is published like any other.
    assert command(["publish", str(tmp_path / "alone"), "me/alone", "--token", "hf_writer0"]) == 0
    assert {"modeling_text_experts.py", "experts.py", "README.md", "model.safetensors"} <= names(hub, "me/alone")
    assert "models/me/none" not in hub.repos
