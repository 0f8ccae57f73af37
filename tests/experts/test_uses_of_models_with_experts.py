"""Export, int8, estimates, ensembles and split labels: they work with experts, or say what to do."""

import json
from types import SimpleNamespace

import pytest
import torch
from expert_models import FAMILY_CASES, NUM_LABELS, TEXT_EXPERTS, all_scores, make_inputs, make_model
from tiny_encoders import WORDS
from transformers import AutoModel

from glocal_xml.cli import main
from glocal_xml.data import LabelSpace
from glocal_xml.data.words import train_word_tokenizer
from glocal_xml.export import exported, quantized
from glocal_xml.loading import label_shards


def saved(case, folder, **fields):
    """A model with a tokenizer that cuts texts off early, as a run would leave it."""
    model = make_model(case, **fields)
    model.save_pretrained(folder)
    tokenizer = train_word_tokenizer([" ".join(WORDS)], min_texts=1)
    tokenizer.model_max_length = 6
    tokenizer.save_pretrained(folder)
    LabelSpace(model.label_names, [3] * NUM_LABELS, num_texts=40).save(folder)
    return str(folder)


def test_export_says_what_to_do(tmp_path, capsys):
    with pytest.raises(ValueError, match=r"lexical, memory, dense look up .* `--experts none`"):
        exported(make_model("glocal_xml"))
    with pytest.raises(ValueError, match="without an encoder"):
        exported(make_model(TEXT_EXPERTS))
    assert main(["export", saved("glocal_xml", tmp_path / "m"), "--output_dir", str(tmp_path / "program")]) == 2
    assert "use the pipeline" in capsys.readouterr().err


def test_a_blend_of_heads_alone_is_exported():
    model, inputs = make_model("glocal_xml", experts=()), make_inputs()
    program = exported(model).module()
    found = program(inputs["input_ids"], inputs["attention_mask"])
    torch.testing.assert_close(found, all_scores(model, inputs)["final"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", FAMILY_CASES)
def test_int8_leaves_the_experts_as_they_are(case):
    model, inputs = make_model(case), make_inputs()
    fast, expected = all_scores(quantized(model), inputs), all_scores(model, inputs)
    for expert in ("lexical", "memory"):
        torch.testing.assert_close(fast[expert], expected[expert])
    assert (fast["final"] - expected["final"]).abs().max() > 0


def test_int8_needs_an_encoder():
    with pytest.raises(ValueError, match="without an encoder"):
        quantized(make_model(TEXT_EXPERTS))


def test_labels_of_models_with_experts_are_not_split():
    for fields in ({}, {"experts": ()}):
        with pytest.raises(ValueError, match="--experts none --blend false"):
            label_shards.prepare(make_model("glocal_xml", **fields), 2)
    label_shards.prepare(make_model("glocal_xml", experts=(), blend=False), 2)


def test_estimates(tmp_path, capsys):
    own = ["--num_labels", "30", "--output_dir", str(tmp_path / "run")]
    assert main(["estimate", "--encoder", "none", *own]) == 2
    assert "nothing to estimate" in capsys.readouterr().err
    folder = saved("glocal_xml", tmp_path / "m")
    rows = [{"text": "apple moon", "labels": ["name 1"]}, {"text": "fox", "labels": ["name 2"]}]
    file = tmp_path / "train.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    flags = ["--train_file", str(file), "--output_dir", str(tmp_path / "run"), "--max_length", "6"]
    assert main(["estimate", "--model", folder, *flags]) == 0
    assert "label tables" in capsys.readouterr().out
    folder = saved(TEXT_EXPERTS, tmp_path / "none")
    assert main(["estimate", "--model", folder, *flags]) == 2
    assert "nothing to estimate" in capsys.readouterr().err


def test_an_ensemble_reads_whole_texts(tmp_path):
    members = [saved("glocal_xml", tmp_path / "a"), saved(TEXT_EXPERTS, tmp_path / "b")]
    text = " ".join(["apple", "moon", "fox", "queen"] * 4)
    results = []
    for number, words in enumerate((text, f"{text} paper")):
        file = tmp_path / f"test-{number}.jsonl"
        file.write_text(json.dumps({"text": words, "labels": ["name 1"]}) + "\n", encoding="utf-8")
        output = tmp_path / f"both-{number}"
        flags = ["--test_file", str(file), "--output_dir", str(output), "--candidates", str(NUM_LABELS)]
        assert main(["ensemble", *members, *flags, "--top_k", "5", "--metrics_at", "1", "--use_cpu", "true"]) == 0
        results.append(json.loads((output / "predictions.jsonl").read_text())["predictions"])
    # The last word is beyond what the tokenizer leaves.
    assert results[0] != results[1]
    models = [AutoModel.from_pretrained(member) for member in members]
    tokenizer = train_word_tokenizer([" ".join(WORDS)], min_texts=1)
    ids = torch.tensor([tokenizer(f"{text} paper", add_special_tokens=False)["input_ids"]])
    tokens = tokenizer(f"{text} paper", truncation=True, max_length=6, return_tensors="pt")
    inputs = SimpleNamespace(ids=tokens["input_ids"], mask=tokens["attention_mask"])
    mean = sum(
        model.score_labels(torch.arange(NUM_LABELS), inputs.ids, inputs.mask, text_ids=ids)["final"]
        for model in models
    )
    best = (mean / 2).topk(5, dim=1)
    assert [row["label"] for row in results[1]] == [f"name {i}" for i in best.indices[0].tolist()]
    assert [row["score"] for row in results[1]] == pytest.approx(best.values[0].tolist(), abs=1e-4)
