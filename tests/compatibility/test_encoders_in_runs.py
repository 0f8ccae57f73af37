"""Encoders of other kinds with tokenizers of their own: trained by a run, saved, loaded, and used by the pipeline."""

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from tiny_encoders import ENCODER_CONFIGS, FURTHER_ENCODER_CONFIGS, WORDS
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoModel, PreTrainedTokenizerFast, pipeline

from glocal_xml.cli.train import main

TASK = "extreme-multi-label-classification"
MARKS = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}


def make_tokenizer(kind):
    """Word pieces between [CLS] and [SEP]; for Qwen bytes, padding on the left, and nothing but an end."""
    if kind == "qwen3":
        special = ["<|endoftext|>"]
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer, tokenizer.decoder = (
            pre_tokenizers.ByteLevel(add_prefix_space=False),
            decoders.ByteLevel(),
        )
        trainer = trainers.BpeTrainer(vocab_size=60, special_tokens=special, show_progress=False)
        options = {"pad_token": special[0], "eos_token": special[0], "padding_side": "left"}
    else:
        special = list(MARKS.values())
        tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        trainer, options = trainers.WordLevelTrainer(vocab_size=60, special_tokens=special, show_progress=False), MARKS
    tokenizer.train_from_iterator(WORDS, trainer)
    ids = {token: tokenizer.token_to_id(token) for token in special}
    template = "$A <|endoftext|>" if kind == "qwen3" else "[CLS] $A [SEP]"
    tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=list(ids.items()))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=64, **options)


def make_encoder(kind, folder):
    make = {**ENCODER_CONFIGS, **FURTHER_ENCODER_CONFIGS}[kind]
    torch.manual_seed(0)
    AutoModel.from_config(make()).save_pretrained(folder)
    make_tokenizer(kind).save_pretrained(folder)
    return folder


def check_run(folder, text_file, tmp_path, pooling):
    """Trains, and checks that the saved model learned to tell labels apart and is the one that the pipeline loads."""
    flags = ["--encoder", str(folder), "--use_cpu", "true", "--experts", "none", "--blend", "false", "--seed", "1"]
    flags += ["--train_file", text_file("train.jsonl", 96), "--test_file", text_file("test.jsonl", 16, first=96)]
    flags += ["--num_train_epochs", "6", "--per_device_train_batch_size", "8", "--save_strategy", "no"]
    flags += ["--module_learning_rates", '{"encoder": 5e-3}', "--learning_rate", "2e-2", "--metrics_at", "1", "2"]
    results = main([*flags, "--output_dir", str(tmp_path / "run")])
    assert results["test"]["both"]["precision@1"] > 1.5 * results["test"]["label frequency"]["precision@1"]
    model = AutoModel.from_pretrained(tmp_path / "run")
    assert model.config.document_pooling == pooling
    pipe = pipeline(TASK, model=str(tmp_path / "run"))
    texts = ["apple dog moon", "fox", "green house kite lemon moon night"]
    alone = [pipe(text, top_k=3) for text in texts]
    for rows, expected in zip(pipe(texts, top_k=3, batch_size=3), alone, strict=True):
        assert [row["label"] for row in rows] == [row["label"] for row in expected]
        assert [row["score"] for row in rows] == pytest.approx([row["score"] for row in expected], abs=1e-5)
    assert len({rows[0]["score"] for rows in alone}) == 3, "texts differ"


@pytest.mark.compatibility(
    "Encoders",
    "DeBERTa, ModernBERT, Qwen-style embedding models",
    "train, are saved, loaded and used by the pipeline, with their own tokenizers",
    since="0.1",
)
@pytest.mark.parametrize(("kind", "pooling"), [("deberta_v2", "first"), ("modernbert", "first"), ("qwen3", "last")])
def test_encoders_of_other_kinds(kind, pooling, text_file, tmp_path):
    check_run(make_encoder(kind, tmp_path / "encoder"), text_file, tmp_path, pooling)


@pytest.mark.compatibility(
    "Encoders",
    "sentence-transformers folders",
    "are encoders like others, pooled as they say (first or last token, mean); other poolings are named in a warning",
    since="0.1",
)
@pytest.mark.parametrize(("kind", "mode", "pooling"), [("bert", "mean", "mean"), ("qwen3", "lasttoken", "last")])
def test_folders_that_sentence_transformers_wrote(kind, mode, pooling, text_file, tmp_path):
    words = Transformer(str(make_encoder(kind, tmp_path / "encoder")))
    modules = [words, Pooling(words.get_embedding_dimension(), pooling_mode=mode), Normalize()]
    SentenceTransformer(modules=modules, device="cpu").save(str(tmp_path / "sentences"))
    assert (tmp_path / "sentences" / "modules.json").is_file()
    check_run(tmp_path / "sentences", text_file, tmp_path, pooling)
