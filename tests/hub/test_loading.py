"""Published models in fresh processes: by the code of the card, by id, of an old commit, private, and offline."""

import json
import re
import shutil
from types import SimpleNamespace

import pytest
from close_rankings import assert_best
from fresh_process import HIDDEN, change_weights, fresh_process
from transformers import pipeline

from glocal_xml.hub import publish

pytest_plugins = ["local_hub"]

# What follows a script: the sum of all weights of a model, and the rest of what is compared.
SUMS = """
import json
from transformers import AutoModel
def weight_sum(**options):
    model = AutoModel.from_pretrained("me/load", **options)
    return sum(parameter.double().sum().item() for parameter in model.parameters()), model.label_names
"""


@pytest.fixture(scope="module")
def load(hub, trained, tmp_path_factory):
    """A repository with two commits, and a private one; of each commit what the folder it came from predicts."""
    folder = shutil.copytree(trained, tmp_path_factory.mktemp("published") / "tiny")
    commits, sums, found = [], [], []
    for _ in range(2):
        commits.append(publish(folder, "me/load", token="hf_writer0").commit)
        tagger = pipeline("extreme-multi-label-classification", model=str(folder))
        sums.append(sum(parameter.double().sum().item() for parameter in tagger.model.parameters()))
        found.append(tagger("The text to label", top_k=8))
        change_weights(folder)
    publish(folder, "me/secret", private=True, token="hf_writer0")
    names = (folder / "labels.txt").read_text(encoding="utf-8").splitlines()
    return SimpleNamespace(commits=commits, sums=sums, found=found, names=names)


@pytest.mark.compatibility(
    "Loading and saving",
    "`trust_remote_code=True` without the package",
    "works: models and pipeline travel with the weights",
    since="0.1",
)
def test_the_code_of_the_card_and_an_old_commit_without_the_package(hub, load):
    card = hub.repos["models/me/load"].files()["README.md"].content.decode()
    code = re.findall(r"```python\n(.*?)```", card, flags=re.DOTALL)[0]
    old = f"print(json.dumps(weight_sum(revision={load.commits[0]!r}, trust_remote_code=True)))"
    shown = fresh_process(hub, HIDDEN + code + SUMS + old).strip().splitlines()
    rows = [line.split(" ", 1) for line in shown[:-1]]
    assert len(rows) == 5
    # Printed with two digits. Weights are changed by chance here, and scores may come close to each other and to one.
    assert_best([{"label": label, "score": float(score)} for score, label in rows], load.found[1], tolerance=0.0051)
    total, names = json.loads(shown[-1])
    assert total == pytest.approx(load.sums[0], abs=1e-6) != load.sums[1] and names == load.names
    # What was loaded once is there without the server, and with it out of reach.
    cached = f"""
from huggingface_hub import constants
print(json.dumps(weight_sum(trust_remote_code=True)))
constants.HF_HUB_OFFLINE = False
print(json.dumps(weight_sum(trust_remote_code=True)))
print(json.dumps(weight_sum(revision={load.commits[0]!r}, trust_remote_code=True)))
"""
    nowhere = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "1"}
    lines = fresh_process(hub, HIDDEN + SUMS + cached, **nowhere).strip().splitlines()
    assert [json.loads(line)[0] for line in lines] == pytest.approx([load.sums[1], load.sums[1], load.sums[0]])
    assert all(json.loads(line)[1] == load.names for line in lines)


def test_by_id_with_the_package(hub, load, tmp_path):
    """Both blocks of the card, a private model with the right and with wrong tokens, and commands."""
    card = hub.repos["models/me/load"].files()["README.md"].content.decode()
    first, second = re.findall(r"```python\n(.*?)```", card, flags=re.DOTALL)
    (tmp_path / "texts.jsonl").write_text(json.dumps({"text": "apple banana", "labels": ["is apple"]}) + "\n")
    code = f"""
from transformers import AutoModel
from glocal_xml.cli import main
for token in (False, "hf_unknown", "hf_other00"):
    try:
        AutoModel.from_pretrained("me/secret", token=token)
    except OSError as error:
        print("refused")
print(len(AutoModel.from_pretrained("me/secret", token="hf_reader0").label_names))
files = ["texts.jsonl", "--output", "tagged.jsonl"]
print(main(["predict", "me/load", *files, "--revision", {load.commits[0]!r}]))
print(main(["predict", "me/secret", *files]))
print(main(["predict", "me/load", *files, "--revision", "missing"]))
print(main(["evaluate", "me/load", "texts.jsonl", "--output_dir", "evaluated"]))
"""
    shown = fresh_process(hub, first + second + code, cwd=tmp_path)
    assert load.found[1][0]["label"] in shown and "refused\nrefused\nrefused\n8\n0\n2\n2\n" in shown
    assert shown.splitlines()[-1] == "0"
    tagged = json.loads((tmp_path / "tagged.jsonl").read_text(encoding="utf-8"))
    assert len(tagged["predictions"]) > 1 and tagged["predictions"][0]["label"] in load.names
