"""Every family with experts and a blend, and the model without an encoder: the contract of all models holds."""

import json

import pytest
import torch
import warm_process
from expert_models import (
    FAMILY_CASES,
    MODELS,
    NUM_LABELS,
    SHORTLIST,
    TEXT_EXPERTS,
    TREE_CASES,
    all_scores,
    assert_same_scores,
    log_frequencies,
    make_inputs,
    make_model,
)
from huggingface_hub.errors import StrictDataclassError
from tiny_encoders import WORDS
from transformers import AutoModel, AutoModelForSequenceClassification, pipeline

from glocal_xml.data.words import train_word_tokenizer
from glocal_xml.modeling import TextExpertsConfig
from glocal_xml.modeling.configuration_base import EXPERTS


@pytest.fixture(params=MODELS)
def case(request):
    return request.param


def test_the_final_logit_is_the_weighted_sum(case):
    model, inputs = make_model(case), make_inputs()
    output = model(**inputs, candidate_ids=torch.arange(NUM_LABELS))
    weights = model.config.blend["weights"]
    expected = weights["frequency"] * torch.from_numpy(log_frequencies()) + weights["bias"]
    for name, logits in zip(model.branch_names, output.branch_logits.unbind(dim=1), strict=True):
        expected = expected + weights[name] * logits
        if name == "lexical":
            expected = expected + weights["lexical_bend"] * (logits + 2).clamp(min=0)
        if name in ("memory", "dense"):
            expected = expected + weights[f"{name}_vote"] * (logits > logits.min() + 1e-3)
    torch.testing.assert_close(output.logits, expected)
    scores = all_scores(model, inputs)
    torch.testing.assert_close(scores["final"], expected.sigmoid())
    assert list(scores) == [*model.branch_names, "final"]
    # Without an encoder there are no embeddings.
    assert model.branch_names == [*model.branch_heads(), *EXPERTS[: 2 if case == TEXT_EXPERTS else 3]]


def test_without_a_blend_the_probability_is_the_mean_of_the_branches(case):
    model = make_model(case, blend=False)
    scores = all_scores(model, make_inputs())
    expected = torch.stack([scores[name] for name in model.branch_names]).mean(dim=0)
    torch.testing.assert_close(scores["final"], expected, rtol=1e-4, atol=1e-5)


def test_saved_and_loaded(case, tmp_path):
    model, inputs = make_model(case), make_inputs()
    model.save_pretrained(tmp_path)
    for auto_class in (AutoModel, AutoModelForSequenceClassification):
        loaded = auto_class.from_pretrained(tmp_path)
        assert type(loaded) is type(model) and loaded.config.blend == model.config.blend
        state = loaded.state_dict()
        assert state.keys() == model.state_dict().keys()
        assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
        assert_same_scores(all_scores(model, inputs), all_scores(loaded, inputs))


def test_other_labels_need_other_experts(tmp_path):
    """Their tables would point beyond the labels, which crashed the interpreter."""
    make_model("glocal_xml").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="another `num_labels` is meant, `ignore_mismatched_sizes=True`"):
        AutoModel.from_pretrained(tmp_path, num_labels=7)
    with pytest.raises(ValueError, match="fitted for other labels: pass `lexical=None"):
        AutoModel.from_pretrained(tmp_path, num_labels=7, ignore_mismatched_sizes=True)
    without = dict.fromkeys([*EXPERTS, "blend"])
    other = AutoModel.from_pretrained(tmp_path, num_labels=7, ignore_mismatched_sizes=True, **without)
    assert other(**make_inputs()).logits.shape == (8, 7) and other.label_names is None


@pytest.mark.parametrize("expert", EXPERTS)
def test_one_expert_alone(case, expert, tmp_path):
    if (case, expert) == (TEXT_EXPERTS, "dense"):
        with pytest.raises(StrictDataclassError, match="without an encoder"):
            TextExpertsConfig(num_labels=3, dense={"size": 4, "texts": 0, "labels": 0, "neighbors": 1, "power": 1.0})
        return
    model, inputs = make_model(case, experts=[expert]), make_inputs()
    model.save_pretrained(tmp_path)
    loaded = AutoModel.from_pretrained(tmp_path)
    assert loaded.branch_names == model.branch_names and list(loaded.text_experts()) == [expert]
    assert_same_scores(all_scores(model, inputs), all_scores(loaded, inputs))
    best = loaded.predict_top_k(**inputs)
    assert torch.equal(best.top_k_ids, model.predict_top_k(**inputs).top_k_ids)


def test_one_text_scores_alone_as_in_a_batch_and_padding_changes_nothing(case):
    model, inputs = make_model(case), make_inputs()
    whole = all_scores(model, inputs)
    for text in range(8):
        length = int(inputs["attention_mask"][text].sum())
        alone = {name: values[text : text + 1, :length] for name, values in inputs.items()}
        assert_same_scores({name: values[text : text + 1] for name, values in whole.items()}, all_scores(model, alone))
    assert_same_scores(whole, all_scores(model, make_inputs(side="left")))


def test_text_ids_of_a_text_that_fits_change_nothing(case):
    model, inputs = make_model(case), make_inputs()
    ids = inputs["input_ids"]
    # Without special tokens, as the collator and the pipeline give them.
    text_ids = ids.masked_fill(ids < 5, -100)
    assert_same_scores(all_scores(model, inputs), all_scores(model, inputs, text_ids=text_ids))
    best, same = model.predict_top_k(**inputs), model.predict_top_k(**inputs, text_ids=text_ids)
    assert torch.equal(best.top_k_ids, same.top_k_ids)
    # And with more tokens the experts, and they alone, say something else.
    more = all_scores(model, inputs, text_ids=torch.cat([text_ids, torch.full((8, 1), 7)], dim=1))
    assert (more["lexical"] - all_scores(model, inputs)["lexical"]).abs().max() > 1e-3
    heads = {name: values for name, values in more.items() if name in model.branch_heads()}
    assert_same_scores({name: all_scores(model, inputs)[name] for name in heads}, heads)


def test_experts_do_not_count_tokens_that_came_later(case, tmp_path):
    model, inputs = make_model(case), make_inputs()
    if case == TEXT_EXPERTS:
        with pytest.raises(ValueError, match="no encoder"):
            model.resize_token_embeddings(70)
        return
    model.resize_token_embeddings(70)
    new = {**inputs, "input_ids": inputs["input_ids"].clone()}
    new["input_ids"][:, 1] = 69
    ignored = inputs["input_ids"].clone()
    ignored[:, 1] = -100
    scores = all_scores(model, new)
    for name in ("lexical", "memory"):
        torch.testing.assert_close(scores[name], all_scores(model, inputs, text_ids=ignored)[name])
    model.save_pretrained(tmp_path)
    assert_same_scores(scores, all_scores(AutoModel.from_pretrained(tmp_path), new))
    assert model.predict_top_k(**new).top_k_ids.shape == (8, 5)


@pytest.mark.parametrize("ids", [torch.ones(1, 3), torch.tensor([5, 6]), [[5]], torch.zeros(0, 3, dtype=torch.long)])
def test_bad_token_ids_are_refused_without_an_encoder_too(ids):
    with pytest.raises(ValueError, match="`input_ids` must hold token ids as integers"):
        make_model(TEXT_EXPERTS)(ids)


def test_training_does_not_see_the_experts():
    model, bare = make_model("glocal_xml"), make_model("glocal_xml", experts=(), blend=False)
    batch = {**make_inputs(), "labels": torch.tensor([[1, 2]] * 8)}
    losses = [one.train()(**batch).loss for one in (model, bare)]
    torch.testing.assert_close(*losses)
    losses[0].backward()
    assert not any(name.startswith(EXPERTS) for name, _ in model.named_parameters())


@pytest.mark.parametrize("case", [TEXT_EXPERTS, *FAMILY_CASES])
def test_best_labels_are_those_of_the_whole_ranking(case):
    model, inputs = make_model(case), make_inputs()
    logits = all_scores(model, inputs)["final"]
    best = model.predict_top_k(**inputs, top_k=7)
    expected, ids = logits.sort(dim=1, descending=True, stable=True)
    torch.testing.assert_close(best.top_k_scores, expected[:, :7], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(logits.gather(1, best.top_k_ids), expected[:, :7], rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        output = model(**inputs, output_logits=True, top_k=7)
    assert torch.equal(output.top_k_ids, best.top_k_ids)
    torch.testing.assert_close(output.logits.sigmoid(), logits, rtol=1e-4, atol=1e-5)
    assert output.branch_top_k_ids.shape == (8, len(model.branch_names), 7)


@pytest.mark.parametrize("case", [*TREE_CASES, SHORTLIST])
@pytest.mark.parametrize("k", [1, 5])
def test_the_best_label_of_any_expert_is_looked_at(case, k):
    """Heads that bring two clusters or six labels: what an expert alone finds can still win."""
    fields = {} if case == SHORTLIST else {"beam": 1}
    model, inputs = make_model(case, **fields), make_inputs()
    weights = dict.fromkeys(model.branch_names, 0.0) | {"frequency": 0.0, "bias": 0.0}
    for expert in model.text_experts():
        model.config.blend["weights"] = {**weights, expert: 1.0}
        own = all_scores(model, inputs)[expert]
        best = model.predict_top_k(**inputs, top_k=k)
        torch.testing.assert_close(best.top_k_scores, own.topk(k, dim=1).values, rtol=1e-4, atol=1e-5)
    # Nothing comes twice, and scores are those of the labels.
    model.config.blend = make_model(case).config.blend
    best, final = model.predict_top_k(**inputs, top_k=k), all_scores(model, inputs)["final"]
    assert all(len(set(row)) == k for row in best.top_k_ids.tolist())
    torch.testing.assert_close(best.top_k_scores, final.gather(1, best.top_k_ids), rtol=1e-4, atol=1e-5)
    assert best.branch_top_k_ids.shape == (8, len(model.branch_names), k)


def test_candidates(case):
    model, inputs = make_model(case), make_inputs()
    final = all_scores(model, inputs)["final"]
    best = model.predict_top_k(**inputs, candidate_ids=[11, 3, 8], top_k=2)
    assert set(best.top_k_ids.flatten().tolist()) <= {3, 8, 11}
    torch.testing.assert_close(best.top_k_scores, final[:, [3, 8, 11]].topk(2).values, rtol=1e-4, atol=1e-5)
    per_text = torch.randint(0, NUM_LABELS, (8, 4))
    scores = model.score_labels(per_text, **inputs)
    torch.testing.assert_close(scores["final"], final.gather(1, per_text), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(case, dtype, tmp_path):
    model, inputs = make_model(case), make_inputs()
    model.save_pretrained(tmp_path)
    loaded = AutoModel.from_pretrained(tmp_path, dtype=dtype)
    assert loaded.dtype == dtype and loaded.lexical.tables[0].starts.dtype == torch.long
    expected, found = all_scores(model, inputs), all_scores(loaded, inputs)
    for expert in ("lexical", "memory"):
        torch.testing.assert_close(found[expert].float(), expected[expert], rtol=0, atol=0.05)
    # Of random weights all texts are about equally similar, and half precision chooses others.
    assert case == TEXT_EXPERTS or found["dense"].isfinite().all()
    assert found["final"].isfinite().all()
    best = loaded.predict_top_k(**inputs)
    assert best.top_k_ids.shape == (8, 5)


def test_empty_texts(case):
    model = make_model(case)
    ids = torch.tensor([[2, 3], [2, 3]])
    scores = all_scores(model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    assert all(values.isfinite().all() for values in scores.values())
    torch.testing.assert_close(scores["memory"], torch.full((2, NUM_LABELS), 0.05 / 1.1))
    none = model.predict_top_k(ids, text_ids=torch.full((2, 1), -100))
    assert torch.equal(none.top_k_ids, model.predict_top_k(ids).top_k_ids)


def saved_with_tokenizer(model, folder):
    model.save_pretrained(folder)
    tokenizer = train_word_tokenizer([" ".join(WORDS)], min_texts=1)
    tokenizer.model_max_length = 8
    tokenizer.save_pretrained(folder)
    return str(folder)


def test_the_pipeline_reads_the_whole_text(case, tmp_path):
    folder = saved_with_tokenizer(make_model(case), tmp_path)
    pipe = pipeline("extreme-multi-label-classification", model=folder, top_k=5, branch_scores=True)
    text = " ".join(["apple", "moon", "fox", "queen"] * 4)
    names = [row["label"] for row in pipe(text)]
    options = {"candidate_labels": names, "top_k": 5}
    before, after = ({row["label"]: row for row in pipe(one, **options)} for one in (text, text + " paper"))
    differences = [
        abs(before[name]["branch_scores"]["lexical"] - after[name]["branch_scores"]["lexical"]) for name in names
    ]
    assert max(differences) > 1e-4
    for name in names:
        for head in pipe.model.branch_heads():
            assert before[name]["branch_scores"][head] == pytest.approx(after[name]["branch_scores"][head], abs=1e-6)
    # In a batch, with windows, and with the fitted threshold.
    texts = [text, "", "apple", text + " paper"]
    together = pipe(texts, batch_size=4)
    for one, rows in zip(texts, together, strict=True):
        alone = pipe(one)
        assert [row["score"] for row in rows] == pytest.approx([row["score"] for row in alone], abs=1e-4)
    for windows in ("max", "mean"):
        rows = pipe(text + " paper", windows=windows, candidate_labels=names, top_k=5)
        for row in rows:
            expected = after[row["label"]]["branch_scores"]
            assert row["branch_scores"]["lexical"] == pytest.approx(expected["lexical"], abs=1e-4)
            assert row["branch_scores"]["memory"] == pytest.approx(expected["memory"], abs=1e-4)
    assert all(row["score"] >= 0.4 for row in pipe(text, threshold="calibrated"))


def test_transformers_own_pipeline(case, tmp_path):
    folder = saved_with_tokenizer(make_model(case), tmp_path)
    own = pipeline("text-classification", model=folder, top_k=None)(["apple moon"])[0]
    # All labels as candidates: with a tree, others than those of the beam are scored too.
    pipe = pipeline("extreme-multi-label-classification", model=folder)
    rows = pipe("apple moon", top_k=NUM_LABELS, candidate_labels=[f"name {i}" for i in range(NUM_LABELS)])
    assert {row["label"]: pytest.approx(row["score"], abs=1e-4) for row in rows} == {
        row["label"]: row["score"] for row in own
    }


REMOTE = """
import json
import sys

# The package is not there.
sys.modules["glocal_xml"] = None

import torch
from transformers import AutoModel, pipeline

folder, inputs = json.loads(sys.stdin.read())
inputs = {name: torch.tensor(value) for name, value in inputs.items()}
model = AutoModel.from_pretrained(folder, trust_remote_code=True)
scores = {name: values.tolist() for name, values in model.score_labels(list(range(23)), **inputs).items()}
model.save_pretrained(folder + "-again")
again = AutoModel.from_pretrained(folder + "-again", trust_remote_code=True)
assert torch.equal(again.predict_top_k(**inputs).top_k_ids, model.predict_top_k(**inputs).top_k_ids)
pipe = pipeline(model=folder, trust_remote_code=True)
print(json.dumps([scores, pipe(["apple moon " * 9, "kite"], top_k=3, branch_scores=True)]))
"""


@pytest.mark.parametrize("case", [TEXT_EXPERTS, "glocal_xml", "glocal_xml-tree"])
def test_loads_as_remote_code_without_the_package(case, tmp_path):
    model, inputs = make_model(case), make_inputs()
    folder = saved_with_tokenizer(model, tmp_path / "model")
    payload = json.dumps([folder, {name: values.tolist() for name, values in inputs.items()}])
    process = warm_process.run(REMOTE, input=payload, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    scores, labels = json.loads(process.stdout.splitlines()[-1])
    assert_same_scores(all_scores(model, inputs), {name: torch.tensor(values) for name, values in scores.items()})
    expected = pipeline("extreme-multi-label-classification", model=folder)(["apple moon " * 9, "kite"], top_k=3)
    for rows, others in zip(labels, expected, strict=True):
        assert [row["label"] for row in rows] == [row["label"] for row in others]
        assert list(rows[0]["branch_scores"]) == model.branch_names
