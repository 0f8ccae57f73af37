"""How a new model of a run starts: dropout of its encoder, and its branches."""

import pytest
from transformers import AutoModel, BertConfig, DistilBertConfig, GPT2Config, T5Config, XLNetConfig

from glocal_xml.training import main, model_of_run
from glocal_xml.training.model_of_run import dropout_off


@pytest.mark.parametrize(
    ("config", "fields"),
    [
        (BertConfig(), {"hidden_dropout_prob", "attention_probs_dropout_prob"}),
        (DistilBertConfig(), {"dropout", "attention_dropout"}),
        (GPT2Config(), {"attn_pdrop", "embd_pdrop", "resid_pdrop"}),
        (T5Config(), {"dropout_rate"}),
        (XLNetConfig(), {"dropout"}),
    ],
)
def test_dropout_goes_by_many_names(config, fields, tmp_path):
    config.save_pretrained(tmp_path)
    off = dropout_off(str(tmp_path), {})
    assert fields <= set(off) and set(off.values()) == {0.0}


@pytest.fixture
def flags(encoder_folder, text_file, tmp_path):
    return [
        *("--encoder", encoder_folder, "--train_file", text_file("train.jsonl", 60), "--validation_size", "0"),
        *("--metrics_at", "1", "--use_cpu", "true", "--max_steps", "1", "--output_dir", str(tmp_path / "run")),
    ]


@pytest.mark.parametrize(("flag", "kept"), [([], False), (["--encoder_dropout", "true"], True)])
def test_the_encoder_is_trained_without_its_dropout(flags, flag, kept, tmp_path, encoder_folder):
    config = BertConfig.from_pretrained(encoder_folder)
    config.hidden_dropout_prob = 0.1
    folder = tmp_path / "encoder"
    AutoModel.from_pretrained(encoder_folder, config=config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((tmp_path / encoder_folder / name).read_bytes())
    main([*flags, *flag, "--encoder", str(folder)])
    assert AutoModel.from_pretrained(tmp_path / "run").config.encoder.hidden_dropout_prob == (0.1 if kept else 0.0)


@pytest.mark.parametrize(
    ("flag", "branches"),
    [
        ([], "global"),
        (["--experts", "memory"], "both"),
        (["--model_config", '{"branches": "both"}'], "both"),
        (["--label_tree", '{"cluster_size": 2}'], "both"),
    ],
)
def test_many_labels_have_no_local_branch_unless_asked_for(flags, flag, branches, tmp_path, monkeypatch):
    monkeypatch.setattr(model_of_run, "_MOST_LOCAL", 3)
    main([*flags, *flag])
    assert AutoModel.from_pretrained(tmp_path / "run").config.branches == branches
