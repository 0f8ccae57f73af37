"""LoRA on the encoder with heads trained whole: train, save, load, merge, explain."""

import pytest
import torch
from test_families import NUM_LABELS, make_batch
from test_other_libraries import inputs_of, make_model
from transformers import AutoModel, pipeline

from glocal_xml import GlocalXMLForMultiLabel, load_xmtc_dataset
from glocal_xml.data import tokenize
from glocal_xml.explain import explain
from glocal_xml.training import XMTCTrainer, XMTCTrainingArguments

peft = pytest.importorskip("peft")

HEADS = {
    "glocal_xml": ["global_head", "local_head"],
    "me_xml-three-experts": ["experts.A-0", "experts.A-2", "experts.D-3+1"],
    "aplc_xlnet-tails": ["summary", "head"],
    "light_attention": ["head"],
    "glocal_xml-tree": ["pooler", "global_head", "local_head", "level_classifiers.0", "level_classifiers.1"],
}


def lora(heads, task=None):
    targets = r"encoder\..*\.(query|value)"
    return peft.LoraConfig(task_type=task, target_modules=targets, modules_to_save=heads, r=4)


def scores_of(model, inputs):
    return model.score_labels(torch.arange(NUM_LABELS), **inputs)["final"]


@pytest.mark.compatibility(
    "Other libraries",
    "PEFT: LoRA on the encoder, heads in `modules_to_save`",
    "works: train, save, load, merge, with any task type",
    since="0.1",
)
@pytest.mark.parametrize("task", [None, "SEQ_CLS", "FEATURE_EXTRACTION"])
@pytest.mark.parametrize("case", HEADS)
def test_train_save_load_and_merge(case, task, tmp_path):
    plain = make_model(case)
    batch, inputs = make_batch(plain), inputs_of(plain)
    before = scores_of(plain, inputs)
    model = peft.get_peft_model(make_model(case), lora(HEADS[case], task)).eval()
    torch.testing.assert_close(scores_of(model, inputs), before)
    optimizer = torch.optim.SGD([value for value in model.parameters() if value.requires_grad], lr=0.5)
    model.train()
    for _ in range(3):
        optimizer.zero_grad()
        model(**batch).loss.backward()
        optimizer.step()
    trained = scores_of(model.eval(), inputs)
    assert (trained - before).abs().max() > 1e-2
    torch.testing.assert_close(model(**inputs).logits.sigmoid(), trained)
    model.save_pretrained(tmp_path / "adapter")
    loaded = peft.PeftModel.from_pretrained(make_model(case), tmp_path / "adapter").eval()
    torch.testing.assert_close(scores_of(loaded, inputs), trained)
    merged = loaded.merge_and_unload()
    merged.save_pretrained(tmp_path / "merged")
    torch.testing.assert_close(scores_of(AutoModel.from_pretrained(tmp_path / "merged"), inputs), trained)
    if case != "aplc_xlnet-tails":
        attention = merged.label_word_attention([1, 2], **inputs)
        torch.testing.assert_close(model.label_word_attention([1, 2], **inputs), attention)


def test_what_a_model_does_not_take_is_named():
    model = make_model("glocal_xml")
    inputs = inputs_of(model)
    with pytest.raises(TypeError, match="unexpected keyword argument 'topk'"):
        model(**inputs, topk=3)
    with pytest.raises(ValueError, match="`inputs_embeds` is not supported"):
        model(**inputs, inputs_embeds=torch.zeros(2, 3, 16))
    with pytest.raises(ValueError, match="must hold token ids.*got None"):
        model(None, inputs_embeds=torch.zeros(2, 3, 16))


@pytest.mark.compatibility(
    "Other libraries", "PEFT: LoRA on label tables (`all-linear`)", "refused; name layers of the encoder", since="0.1"
)
def test_a_label_table_under_an_adapter_is_refused():
    model = peft.get_peft_model(make_model("glocal_xml"), peft.LoraConfig(target_modules="all-linear"))
    with pytest.raises(ValueError, match="leave them out of adapters"):
        model(**inputs_of(model))


@pytest.mark.compatibility(
    "Other libraries",
    "PEFT in `XMTCTrainer`, pipeline and `explain`",
    "works; rates per module go by the names of the model",
    since="0.1",
)
def test_trainer_pipeline_and_explanation(encoder_folder, text_file, tokenizer, tmp_path):
    parts, label_space = load_xmtc_dataset({"train": text_file("train.jsonl", 24)})
    base = GlocalXMLForMultiLabel.from_encoder(encoder_folder, label_names=label_space.names)
    model = peft.get_peft_model(base, lora(HEADS["glocal_xml"], "SEQ_CLS"))
    texts = tokenize(parts["train"], tokenizer, 16)
    args = XMTCTrainingArguments(
        output_dir=str(tmp_path / "out"),
        use_cpu=True,
        disable_tqdm=True,
        num_train_epochs=1,
        per_device_train_batch_size=8,
        metrics_at=[1],
        learning_rate=1e-3,
        # Names are those of the model, whatever is around it.
        module_learning_rates={"encoder": 5e-3, "local_head": 2e-3},
        weight_decay=0.01,
    )
    trainer = XMTCTrainer(
        args=args, label_space=label_space, model=model, processing_class=tokenizer, train_dataset=texts
    )
    trainer.train()
    rates = {group["initial_lr"]: group["params"] for group in trainer.optimizer.param_groups if group["weight_decay"]}
    # Two matrices of low rank for each of two projections in three layers.
    assert {rate: len(group) for rate, group in rates.items()} == {5e-3: 12, 2e-3: 4, 1e-3: 1}
    assert trainer.evaluate(texts)["eval_precision@1"] >= 0
    assert trainer.collapse_watch.model is base
    explanation = explain(model, tokenizer, "apple moon", top_k=1)
    (best,) = pipeline("extreme-multi-label-classification", model=model, tokenizer=tokenizer, top_k=1)("apple moon")
    assert explanation.labels[0].label == best["label"] and explanation.labels[0].words
    trainer.save_model(str(tmp_path / "saved"))
    again = GlocalXMLForMultiLabel.from_encoder(encoder_folder, label_names=label_space.names)
    again = peft.PeftModel.from_pretrained(again, tmp_path / "saved")
    inputs = tokenizer("apple moon", return_tensors="pt")
    found, expected = (one.predict_top_k(**inputs).top_k_scores for one in (again, model))
    torch.testing.assert_close(found, expected)
