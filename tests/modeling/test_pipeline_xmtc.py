"""The pipeline against a plain twin: every text on its own, all labels scored, sorted in Python."""

import json
import logging
import random

import numpy as np
import pandas as pd
import pytest
import torch
from close_rankings import assert_best
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_candidates import make_tree
from tiny_encoders import ENCODER_CONFIGS, WORDS
from torch.utils.data import Dataset
from transformers import AutoModel, pipeline

from glocal_xml.data.words import train_word_tokenizer
from glocal_xml.modeling import FAMILIES, APLCXLNetConfig, GlocalXMLConfig, LightAttentionConfig, MEXMLConfig
from glocal_xml.modeling.text_windows import text_start, text_windows, window_runs

TASK = "extreme-multi-label-classification"
NUM_LABELS = 23
MODELS = {
    "glocal_xml": (GlocalXMLConfig, {"mlp_size": 8}),
    "glocal_xml-tree": (GlocalXMLConfig, {"mlp_size": 8, "tree_levels": [3, 8], "beam": 8}),
    "glocal_xml-shortlist": (GlocalXMLConfig, {"mlp_size": 8, "shortlist": NUM_LABELS}),
    "me_xml": (MEXMLConfig, {"experts": ["A-1", "A-2", "D-3"], "mlp_size": 8}),
    "me_xml-tree": (MEXMLConfig, {"mlp_size": 8, "tree_levels": [7], "beam": 7}),
    "aplc_xlnet": (APLCXLNetConfig, {"summary_size": 24}),
    "light_attention": (LightAttentionConfig, {"mlp_sizes": [12]}),
    "light_attention-tree": (LightAttentionConfig, {"mlp_sizes": [12], "tree_levels": [7], "beam": 7}),
}
BLEND = {
    "weights": {"global": 0.5, "local": 0.25, "frequency": 0.5, "bias": 0.75},
    **{"threshold": 0.55, "f": "micro", "beta": 1.0, "texts": 50},
}
LOG_FREQUENCIES = torch.linspace(-1.0, -3.0, NUM_LABELS)
TEXTS = ["apple banana", "the quick brown fox", "moon night ocean paper queen house ice jungle", "lemon", "kite"]


def make_model(name, **fields):
    torch.manual_seed(0)
    config_class, defaults = MODELS[name]
    encoder = ENCODER_CONFIGS["word_lstm" if config_class is LightAttentionConfig else "bert"]()
    model = FAMILIES[config_class](
        config_class(encoder=encoder, **{"num_labels": NUM_LABELS, "top_k": 4, **defaults, **fields})
    )
    model.set_label_counts(torch.arange(NUM_LABELS, 0, -1))
    if getattr(model, "label_tree", None):
        model.set_label_tree(*make_tree(NUM_LABELS, model.config.tree_levels))
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if not parameter_name.startswith("encoder."):
                parameter.normal_(std=0.5)
    model.set_label_names([f"label {i}" for i in range(NUM_LABELS)])
    return model


@pytest.fixture(scope="module")
def word_tokenizer():
    tokenizer = train_word_tokenizer([" ".join(WORDS)], min_texts=1)
    tokenizer.model_max_length = 64
    return tokenizer


@pytest.fixture(params=sorted(MODELS))
def pipe(request, tokenizer, word_tokenizer):
    model = make_model(request.param)
    words = model.config.encoder.model_type == "word_lstm"
    return pipeline(TASK, model=model, tokenizer=word_tokenizer if words else tokenizer)


@pytest.fixture
def glocal(tokenizer):
    return pipeline(TASK, model=make_model("glocal_xml"), tokenizer=tokenizer)


def plain_scores(pipe, text):
    """Final and branch probabilities of all labels of one text, (labels,) and (labels, branches)."""
    inputs = pipe.tokenizer(text, truncation=True, return_tensors="pt")
    with torch.no_grad():
        scores = pipe.model(**inputs, output_scores=True).scores
    branches = torch.stack([branch.all()[0].sigmoid() for branch in scores.branches.values()], dim=-1)
    return branches.mean(dim=-1), branches


def plain_rows(pipe, final, branches):
    """All labels, best first."""
    best = sorted(range(NUM_LABELS), key=lambda i: (-final[i].item(), i))
    names = pipe.model.branch_names
    return [
        {
            "label": f"label {i}",
            "score": final[i].item(),
            "branch_scores": dict(zip(names, branches[i].tolist(), strict=True)),
        }
        for i in best
    ]


def assert_same(rows, expected, top_k):
    assert len(rows) == top_k and all("branch_scores" in row for row in rows)
    assert_best(rows, expected)


def test_equals_plain_scoring_of_one_text_after_the_other(pipe):
    expected = [plain_rows(pipe, *plain_scores(pipe, text)) for text in TEXTS]
    for rows, other in zip([pipe(text, branch_scores=True) for text in TEXTS], expected, strict=True):
        assert_same(rows, other, top_k=4)
    for batch_size in (1, 2, 8):
        for rows, other in zip(pipe(TEXTS, branch_scores=True, batch_size=batch_size), expected, strict=True):
            assert_same(rows, other, top_k=4)
    (best,) = pipe(TEXTS[0], top_k=1)
    assert best.keys() == {"label", "score"}
    assert_best([best], expected[0])


def test_chosen_labels(pipe):
    final, branches = plain_scores(pipe, TEXTS[1])
    chosen = [3, 19, 7, 11]
    others = [i for i in range(NUM_LABELS) if i not in chosen]
    expected = plain_rows(pipe, final.index_fill(0, torch.tensor(others), -1.0), branches)
    names = [f"label {i}" for i in chosen]
    assert_same(pipe(TEXTS[1], candidate_labels=names, top_k=3, branch_scores=True), expected, top_k=3)


@pytest.mark.parametrize("score", ["max", "mean"])
def test_windows_equal_plain_scoring_of_each(pipe, score):
    pipe.tokenizer.model_max_length = 10
    try:
        generator = random.Random(1)
        texts = [" ".join(generator.choices(WORDS, k=length)) for length in (40, 3, 17)]
        results = pipe(texts, windows=score, window_overlap=2, top_k=3, branch_scores=True, batch_size=2)
        for text, rows in zip(texts, results, strict=True):
            size = 10 - pipe.tokenizer.num_special_tokens_to_add()
            words = text.split()
            starts = range(0, max(len(words) - 2, 1), size - 2)
            windows = [plain_scores(pipe, " ".join(words[start : start + size])) for start in starts]
            assert len(windows) == (1 if len(words) == 3 else len(starts))
            final = torch.stack([window[0] for window in windows])  # (windows, labels)
            branches = torch.stack([window[1] for window in windows])  # (windows, labels, branches)
            wanted = {i for row in final for i in row.topk(3).indices.tolist()}
            left_out = torch.tensor([i not in wanted for i in range(NUM_LABELS)])
            if score == "mean":
                final, branches = final.mean(dim=0), branches.mean(dim=0)
            else:
                final, best = final.max(dim=0)
                branches = branches[best, torch.arange(NUM_LABELS)]
            expected = plain_rows(pipe, final.masked_fill(left_out, -1), branches)
            assert_same(rows, expected, top_k=3)
        # A single window is the text itself, by the same operations.
        assert pipe(texts[1]) == pipe(texts[1], windows=score)
    finally:
        pipe.tokenizer.model_max_length = 64


def test_many_windows_go_through_the_encoder_in_parts(glocal, monkeypatch):
    text = " ".join(random.Random(2).choices(WORDS, k=400))
    whole = glocal(text, windows="mean", top_k=NUM_LABELS)
    monkeypatch.setattr("glocal_xml.modeling.text_windows._WINDOWS_AT_ONCE", 3)
    sizes, encoder = [], glocal.model.encoder.forward

    def forward(input_ids, **kwargs):
        sizes.append(len(input_ids))
        return encoder(input_ids=input_ids, **kwargs)

    monkeypatch.setattr(glocal.model.encoder, "forward", forward)
    parts = glocal(text, windows="mean", top_k=NUM_LABELS)
    assert len(sizes) > 1 and max(sizes) == 3 and len(parts) == NUM_LABELS
    assert_best(parts, whole)


@given(words=st.lists(st.integers(1, 7), min_size=1, max_size=40), size=st.integers(1, 12), overlap=st.integers(0, 6))
@settings(deadline=None)
def test_every_word_is_whole_in_a_window(words, size, overlap):
    tokens = [word for word, length in enumerate(words) for _ in range(length)]
    runs = window_runs(tokens, size, min(overlap, size // 2))
    assert runs[0][0] == 0 and runs[-1][1] == len(tokens)
    assert all(0 < stop - first <= size for first, stop in runs)
    for (first, stop), (next_first, next_stop) in zip(runs, runs[1:], strict=False):
        assert first < next_first <= stop < next_stop and stop - next_first <= overlap
    ends = torch.tensor(words).cumsum(0).tolist()
    for length, end in zip(words, ends, strict=True):
        if length <= size:
            assert any(first <= end - length and end <= stop for first, stop in runs)


def test_windows_of_pieces_of_words_keep_their_tokens(tokenizer):
    text = "apple, abcdefg! " * 5 + "banana"
    whole = tokenizer(text, add_special_tokens=False)["input_ids"]
    windows = text_windows(tokenizer, text, 9, overlap=0)
    assert sum([window["input_ids"][1:-1] for window in windows], []) == whole
    assert all(len(window["input_ids"]) <= 9 for window in windows) and len(windows) > 2


@pytest.mark.parametrize(
    "text", ["apple banana kite " * 3000, " " * 5000 + "moon", "a" * 5000 + " moon" * 90, "漢字" * 3000, "moon"]
)
def test_start_of_a_long_text_has_the_tokens_of_the_whole(tokenizer, text):
    expected = tokenizer(text, truncation=True, max_length=16)
    assert text_start(tokenizer, text, 16) == dict(expected)


def test_no_more_of_a_text_is_tokenised_than_is_needed(glocal, monkeypatch):
    lengths, tokenize = [], type(glocal.tokenizer).__call__

    def counting(self, text, **kwargs):
        lengths.append(len(text))
        return tokenize(self, text, **kwargs)

    monkeypatch.setattr(type(glocal.tokenizer), "__call__", counting)
    glocal("apple banana " * 80_000)
    assert sum(lengths) < 5000


ODD_TEXTS = ["", "  \n\t", "😀" * 30, "\x00\x01\x1b\u200f", "שלום עולם", "\ud800 x \udfff", "zzz " * 99, "x" * 10_000]


def test_odd_texts(pipe):
    for windows in (None, "max"):
        for text, rows in zip(ODD_TEXTS, pipe(ODD_TEXTS, batch_size=3, windows=windows), strict=True):
            # A text with nothing in it gets no labels.
            assert len(rows) == (4 if text.strip() else 0) and all(0 <= row["score"] <= 1 for row in rows)
    assert pipe("") == []
    # Two halves that stand for one character are that character.
    assert pipe("\ud83d\ude00 apple") == pipe("😀 apple")


def test_inputs_of_other_kinds(glocal):
    class Texts(Dataset):
        def __len__(self):
            return len(TEXTS)

        def __getitem__(self, row):
            return TEXTS[row]

    # Text by text, by the same operations.
    assert glocal(tuple(TEXTS)) == glocal(TEXTS)
    expected = glocal(TEXTS, top_k=NUM_LABELS)
    for inputs in (Texts(), (text for text in TEXTS)):
        results = glocal(inputs, batch_size=2)
        assert not isinstance(results, list)
        for rows, other in zip(results, expected, strict=True):
            assert len(rows) == 4
            assert_best(rows, other)
    assert len(glocal(Texts())) == len(TEXTS)
    assert glocal([]) == []
    with pytest.raises(ValueError, match="must be a string, got int"):
        glocal([3])
    names = np.array(["label 1", "label 2"])
    as_numpy = glocal(np.array(TEXTS), top_k=np.int64(1), threshold=np.float32(0.1), candidate_labels=names)
    assert as_numpy == glocal(TEXTS, top_k=1, threshold=0.1, candidate_labels=list(names))


def test_a_model_in_training_mode_predicts_as_in_evaluation(tokenizer):
    model = make_model("glocal_xml", document_dropout=0.5)
    pipe = pipeline(TASK, model=model, tokenizer=tokenizer)
    expected = pipe(TEXTS[0])
    model.train()
    assert pipe(TEXTS[0]) == expected and model.training


def blended_model():
    model = make_model("glocal_xml")
    model.set_blend(BLEND, LOG_FREQUENCIES)
    return model


def test_threshold_and_blend(tokenizer):
    pipe = pipeline(TASK, model=make_model("glocal_xml"), tokenizer=tokenizer, top_k=NUM_LABELS, branch_scores=True)
    plain = {row["label"]: row["branch_scores"] for row in pipe(TEXTS[0])}
    assert len(plain) == NUM_LABELS
    threshold = pipe(TEXTS[0])[5]["score"]
    assert pipe(TEXTS[0], threshold=threshold) == pipe(TEXTS[0])[:6]
    pipe = pipeline(TASK, model=blended_model(), tokenizer=tokenizer, top_k=NUM_LABELS)
    found = pipe(TEXTS[0])
    for row in found:
        branches = torch.tensor([plain[row["label"]][name] for name in ("global", "local")]).logit()
        frequency = LOG_FREQUENCIES[int(row["label"].removeprefix("label "))]
        logit = branches @ torch.tensor([0.5, 0.25]) + 0.5 * frequency + 0.75
        assert row["score"] == pytest.approx(float(logit.sigmoid()), abs=1e-4)
    assert [row["score"] for row in found] == sorted((row["score"] for row in found), reverse=True)
    kept = [row for row in found if row["score"] >= 0.55]
    assert 0 < len(kept) < NUM_LABELS
    assert pipe(TEXTS[0], threshold="calibrated") == kept
    # Told once, when the pipeline is made; a call may say otherwise.
    fixed = pipeline(
        TASK, model=blended_model(), tokenizer=tokenizer, top_k=3, threshold="calibrated", branch_scores=True
    )
    few = fixed(TEXTS[0])
    assert len(few) == min(3, len(kept)) and all(row.keys() == {"label", "score", "branch_scores"} for row in few)
    assert_best([{name: row[name] for name in ("label", "score")} for row in few], found)
    assert len(fixed(TEXTS[0], top_k=5, threshold=0.0)) == 5


def test_who_asks_for_a_threshold_that_was_never_fitted_is_told(tokenizer, caplog):
    logging.Logger.warning_once.cache_clear()
    model = blended_model()
    tag = pipeline(TASK, model=model, tokenizer=tokenizer)
    fitted = model.config.blend
    tag(TEXTS[0], threshold="calibrated")
    assert "was not fitted" not in caplog.text
    model.set_blend({**fitted, "texts": 0}, model.log_frequencies)
    found = tag(TEXTS[0], threshold="calibrated")
    assert "was not fitted" in caplog.text and "glocal-xml calibrate" in caplog.text
    assert found == tag(TEXTS[0], threshold=fitted["threshold"])


MISTAKES = {
    "top_k of nothing": ({"top_k": 0}, "`top_k`"),
    "threshold above one": ({"threshold": 1.5}, "`threshold`"),
    "threshold by another name": ({"threshold": "best"}, "'calibrated'"),
    "no fitted threshold": ({"threshold": "calibrated"}, "glocal-xml calibrate"),
    "unknown labels": ({"candidate_labels": ["label 1", "lable 2"]}, r"\['lable 2'\]"),
    "labels as one string": ({"candidate_labels": "label 1"}, "list of label names"),
    "no labels": ({"candidate_labels": []}, "list of label names"),
    "unknown windows": ({"windows": "sum"}, "max, mean"),
    "overlap of a window": ({"windows": "max", "window_overlap": 33}, "0 to 32"),
    "overlap as a share": ({"windows": "max", "window_overlap": 0.25}, "whole, 0 to 32"),
    "top_k that is true": ({"top_k": True}, "`top_k`"),
    "unknown option": ({"max_length": 8}, "Unknown options max_length: there are top_k"),
}


@pytest.mark.parametrize("mistake", sorted(MISTAKES))
def test_mistakes_are_named(glocal, mistake):
    options, message = MISTAKES[mistake]
    with pytest.raises(ValueError, match=message):
        glocal(TEXTS[0], **options)


@pytest.mark.parametrize(
    "blend",
    [{}, {**BLEND, "weights": {"global": "1"}}, {**BLEND, "threshold": 2}, {**BLEND, "f": "best"}],
)
def test_a_bad_blend_is_refused(blend):
    with pytest.raises(Exception, match="`blend` must hold `weights`"):
        GlocalXMLConfig(num_labels=3, blend=blend)


def test_names_may_be_missing_or_change(glocal):
    best = int(glocal(TEXTS[0])[0]["label"].removeprefix("label "))
    glocal.model.set_label_names(None)
    assert glocal(TEXTS[0])[0]["label"] == f"LABEL_{best}"
    assert glocal(TEXTS[0], candidate_labels=["LABEL_3"])[0]["label"] == "LABEL_3"
    glocal.model.set_label_names([f"new {i}" for i in range(NUM_LABELS)])
    assert glocal(TEXTS[0], candidate_labels=["new 3"])[0]["label"] == "new 3"


@pytest.fixture(scope="module")
def saved(tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    blended_model().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_saved_and_loaded(saved):
    # With the package no code beside the weights need be trusted.
    pipe = pipeline(TASK, model=str(saved))
    assert type(pipe).__module__ == "glocal_xml.modeling.pipeline_xmtc"
    assert pipe(TEXTS[0], threshold="calibrated")
    assert "pipeline_xmtc.py" in {path.name for path in saved.iterdir()}


@pytest.mark.compatibility(
    "Prediction", '`pipeline("text-classification")`', "works: names, probabilities, `top_k`", since="0.1"
)
def test_pipeline_of_transformers_has_names_and_sigmoids(saved, tmp_path, caplog, monkeypatch):
    config = json.loads((saved / "config.json").read_text())
    assert not {"id2label", "label2id"} & config.keys()
    own = pipeline(TASK, model=str(saved))
    # Loggers of Transformers keep what they say from those above them.
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    standard = pipeline("text-classification", model=str(saved), top_k=5)
    (rows,) = standard([TEXTS[0]])
    assert "not supported" not in caplog.text
    assert len(rows) == 5
    assert_best(rows, own(TEXTS[0], top_k=NUM_LABELS))
    # What was saved before there was a problem type.
    del config["problem_type"]
    standard.model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text()).keys() - {"problem_type"} == config.keys()
    (tmp_path / "config.json").write_text(json.dumps(config))
    old = AutoModel.from_pretrained(tmp_path)
    assert old.config.label2id["label 7"] == 7
    (again,) = pipeline("text-classification", model=old, tokenizer=standard.tokenizer, top_k=5)([TEXTS[0]])
    assert len(again) == 5
    assert_best(again, own(TEXTS[0], top_k=NUM_LABELS))


@pytest.mark.parametrize("name", ["glocal_xml-shortlist", "glocal_xml-tree", "aplc_xlnet"])
def test_pipeline_of_transformers_takes_batches(name, tokenizer):
    model = make_model(name)
    own = pipeline(TASK, model=model, tokenizer=tokenizer)(TEXTS, top_k=NUM_LABELS)
    standard = pipeline("text-classification", model=model, tokenizer=tokenizer, top_k=3)
    for rows, expected in zip(standard(TEXTS, batch_size=2), own, strict=True):
        assert len(rows) == 3
        assert_best(rows, expected)


@pytest.mark.compatibility(
    "Prediction",
    '`pipeline("text-classification")` above `max_logits_labels`',
    "fails, after a warning that names the pipeline to use",
    since="0.1",
)
def test_too_many_labels_for_the_pipeline_of_transformers(tokenizer, caplog, monkeypatch):
    """It reads the logits of all labels; a warning before says what to do, and so does the model itself."""
    monkeypatch.setattr(logging.getLogger("glocal_xml"), "propagate", True)
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    # Another test may have had the one warning there is.
    logging.Logger.warning_once.cache_clear()
    model = make_model("glocal_xml", max_logits_labels=NUM_LABELS - 1)
    standard = pipeline("text-classification", model=model, tokenizer=tokenizer, top_k=5)
    with pytest.raises(KeyError, match="logits"):
        standard(TEXTS[0])
    assert f'No logits of so many labels: use `pipeline("{TASK}")`' in caplog.text
    caplog.clear()
    # Who says what is wanted is told nothing.
    pipeline(TASK, model=model, tokenizer=tokenizer)(TEXTS[0])
    model.predict_top_k(**tokenizer(TEXTS[0], return_tensors="pt"))
    assert "No logits" not in caplog.text
    with pytest.raises(ValueError, match=TASK):
        model(**tokenizer(TEXTS[0], return_tensors="pt"))["logits"]


def test_iterators_are_texts_and_mappings_are_not(glocal):
    assert list(glocal(map(str, ["apple", "dog"]))) == glocal(["apple", "dog"])
    for table in ({"text": "apple"}, pd.DataFrame({"text": ["apple"]})):
        with pytest.raises(ValueError, match=r"not a mapping or a table with the keys \['text'\]"):
            glocal(table)


def test_windows_without_room_are_refused(glocal, monkeypatch):
    monkeypatch.setattr(glocal.tokenizer, "model_max_length", 2)
    with pytest.raises(ValueError, match="have no room beside special ones; give 3"):
        glocal("apple dog", windows="max")


def test_models_without_labels_are_refused(tokenizer, tmp_path):
    encoder = AutoModel.from_config(ENCODER_CONFIGS["bert"]())
    encoder.save_pretrained(tmp_path)
    for model in (encoder, str(tmp_path)):
        with pytest.raises(ValueError, match="BertModel gives no scores of labels"):
            pipeline(TASK, model=model, tokenizer=tokenizer)
