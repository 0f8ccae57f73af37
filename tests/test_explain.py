import pytest
import torch

from glocal_xml import GlocalXMLForMultiLabel, MEXMLForMultiLabel, explain
from glocal_xml.explain import most_read


@pytest.fixture
def model(encoder_folder):
    torch.manual_seed(0)
    model = GlocalXMLForMultiLabel.from_encoder(encoder_folder, label_names=["x", "y", "z"], mlp_size=4)
    with torch.no_grad():
        model.local_head.label_embeddings.weight.normal_()
    return model.eval()


def test_words_and_scores(model, tokenizer):
    text = "apple banana, apple MOON"
    best, *_ = explain(model, tokenizer, text, top_k=2)
    inputs = tokenizer(text, return_tensors="pt")
    output = model.predict_top_k(**inputs, top_k=2)
    assert best.label == model.label_names[output.top_k_ids[0, 0]]
    assert best.score == pytest.approx(output.top_k_scores[0, 0].item())
    assert best.score == pytest.approx(sum(best.branch_scores.values()) / 2)
    weights = model.label_word_attention(output.top_k_ids, **inputs)[0, 0].tolist()
    # [CLS] apple banana , apple moon [SEP]: repeated words add up, special tokens are left out.
    assert dict(best.words)["apple"] == pytest.approx(weights[1] + weights[4])
    assert set(dict(best.words)) == {"apple", "banana", ",", "MOON"}
    assert [weight for _, weight in best.words] == sorted(dict(best.words).values(), reverse=True)


def test_chosen_labels_and_mistakes(model, tokenizer):
    assert [item.label for item in explain(model, tokenizer, "fox", labels=["z", "x"])] == ["z", "x"]
    with pytest.raises(ValueError, match="no labels"):
        explain(model, tokenizer, "fox", labels=["unknown"])
    model.label_names = None
    with pytest.raises(ValueError, match="label names"):
        explain(model, tokenizer, "fox")


def test_empty_text(model, tokenizer):
    assert explain(model, tokenizer, "", top_k=1)[0].words == []


def test_most_read():
    assert most_read(["a", None, "b", "a"], [0.1, 0.5, 0.15, 0.1]) == [("a", 0.2), ("b", 0.15)]


def test_words_of_a_chosen_expert(encoder_folder, tokenizer):
    torch.manual_seed(0)
    model = MEXMLForMultiLabel.from_encoder(encoder_folder, label_names=["x", "y"], experts=["A-1", "A-3", "D-3"])
    shown = {branch: explain(model, tokenizer, "fox moon", branch=branch)[0] for branch in (None, "A-1", "A-3")}
    assert shown[None].words == shown["A-1"].words != shown["A-3"].words
    assert set(shown["A-3"].branch_scores) == {"A-1", "A-3", "D-3"}
    with pytest.raises(ValueError, match="A-1, A-3"):
        explain(model, tokenizer, "fox", branch="D-3")
