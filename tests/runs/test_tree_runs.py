"""Whole runs with a label tree on tiny models."""

import json
import logging
import shutil

import pytest
import torch
import warm_process
from test_run import (
    EXAMPLES,
    SGD,
    assert_close_weights,
    assert_same_weights,
    flags,  # noqa: F401
    load_own_loop,
)
from transformers import AutoModel

from glocal_xml.cli.train import main
from glocal_xml.data import LabelTree

TREE = ["--label_tree", '{"cluster_size": 2}']
# Narrower than the tree, so that negatives are drawn.
NARROW = ["--model_config", '{"mlp_size": 8, "top_k": 4, "label_bias": true, "training_beam": 2, "beam": 3}']
STEPS = ["--save_strategy", "steps", "--save_steps", "7", "--save_total_limit", "20", "--num_train_epochs", "5"]
STATIC = '{"mlp_sizes": [16], "label_bias": true, "training_beam": 2, "level_epochs": 2, "negatives": "static"}'
SLOW_ENCODERS = '{"encoder": 3e-3, "level_encoders": 3e-3}'
ATTENTION = ["--model_type", "light_attention", "--model_config", STATIC, "--module_learning_rates", SLOW_ENCODERS]


def cut(folder, step):
    """As if a run had been killed while it wrote the checkpoint after this one."""
    for path in folder.glob("checkpoint-*"):
        if int(path.name.split("-")[1]) > step:
            shutil.rmtree(path)


def test_trains_with_a_tree_and_resumes_exactly(flags, tmp_path, caplog):  # noqa: F811
    with caplog.at_level(logging.INFO):
        results = main([*flags, *TREE, *NARROW, *STEPS])
    assert "label tree: levels of [4] nodes over 8 labels" in caplog.text
    assert results["test"]["both"]["precision@2"] > 0.6 > 0.3 > results["test"]["label frequency"]["precision@2"]
    assert results["settings"]["model"]["label_tree"] == {"cluster_size": 2}
    tree = LabelTree.load(tmp_path / "run" / "label_tree.npz")
    trained = AutoModel.from_pretrained(tmp_path / "run")
    assert trained.label_tree.label_order.tolist() == tree.label_order.tolist()

    # From the file of a tree the same run follows; killed and resumed too.
    again = [*flags, *NARROW, *STEPS, "--output_dir", str(tmp_path / "again")]
    main([*again, "--label_tree", str(tmp_path / "run" / "label_tree.npz")])
    assert_same_weights(tmp_path / "run", tmp_path / "again")
    cut(tmp_path / "run", 28)
    main([*flags, *TREE, *NARROW, *STEPS, "--resume_from_checkpoint", "last"])
    assert_same_weights(tmp_path / "run", tmp_path / "again")

    evaluated = main(
        [
            *("--model", str(tmp_path / "run"), "--metrics_at", "1", "2", "--use_cpu", "true"),
            *("--test_file", flags[flags.index("--test_file") + 1], "--output_dir", str(tmp_path / "other")),
        ]
    )
    for name in ("precision@2", "ndcg@2", "psp@2"):
        assert evaluated["test"]["both"][name] == results["test"]["both"][name]


@pytest.mark.parametrize("features", ["names", "text_embeddings"])
def test_trees_of_embeddings(flags, tmp_path, features):  # noqa: F811
    options = json.dumps({"cluster_size": 2, "features": features, "height": 2, "branching": 2, "seed": 3})
    main([*flags, "--label_tree", options, "--max_steps", "2"])
    assert LabelTree.load(tmp_path / "run" / "label_tree.npz").level_sizes == [2, 4]


def test_levels_one_after_the_other_and_resumed_between(flags, tmp_path, caplog):  # noqa: F811
    run = [*flags, *TREE, *ATTENTION, *STEPS, "--logging_steps", "1"]
    with caplog.at_level(logging.INFO):
        results = main(run)
    rows = results["test"]
    assert rows["attention"]["precision@2"] > 0.5 > 0.3 > rows["label frequency"]["precision@2"]
    # Twelve steps an epoch, two epochs for the clusters.
    early = AutoModel.from_pretrained(tmp_path / "run" / "checkpoint-21")
    late = AutoModel.from_pretrained(tmp_path / "run" / "checkpoint-35")
    assert early.current_level == 0 and late.current_level == 1
    # The level of the clusters rests once the labels are trained.
    last = AutoModel.from_pretrained(tmp_path / "run").state_dict()
    for name, value in late.state_dict().items():
        if name.startswith(("level_encoders", "level_classifiers")):
            assert torch.equal(value, last[name]), name
    shutil.copytree(tmp_path / "run", tmp_path / "again")
    for step in (21, 35):
        cut(tmp_path / "again", step)
        main([*run, "--output_dir", str(tmp_path / "again"), "--resume_from_checkpoint", "last"])
        assert_same_weights(tmp_path / "run", tmp_path / "again")


@pytest.mark.parametrize("script", ["run_xmtc.py", pytest.param("run_xmtc_no_trainer.py", marks=pytest.mark.slow)])
def test_two_processes_equal_one_with_sparse_tables(flags, encoder_folder, tmp_path, script):  # noqa: F811
    if script == "run_xmtc.py":
        run = [*flags, *TREE, *NARROW, *SGD]
        main(run)
    else:
        # A large epsilon, so that Adam does not make much of rounding noise.
        steady = ["--adam_epsilon", "1e-3", "--lr_scheduler_type", "constant", "--warmup_steps", "0"]
        run = [*flags, *TREE, *NARROW, *steady, "--num_train_epochs", "1"]
        load_own_loop().main(run)
    half = [*run, "--per_device_train_batch_size", "4", "--output_dir", str(tmp_path / "two")]
    half += ["--ddp_backend", "gloo"] if script == "run_xmtc.py" else []
    for process in warm_process.run_in_several(2, EXAMPLES / script, half, ACCELERATE_USE_CPU="true"):
        assert process.returncode == 0, process.stderr
    assert_close_weights(tmp_path / "run", tmp_path / "two", encoder_folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--label_tree", '{"size": 2}'], "has no options"),
        (["--label_tree", '{"features": "colours"}'], "must be one of texts, names, text_embeddings"),
        (["--label_tree", "no/tree.npz"], "no/tree.npz"),
        (["--label_tree", '{"cluster_size": 50}'], "makes a single cluster"),
        ([*TREE, "--model_config", '{"tree_levels": [4]}'], "follows from the label tree"),
        ([*TREE, "--model_type", "aplc_xlnet", "--model_config", "{}"], "`label_tree` is for glocal_xml, me_xml"),
        ([*TREE, "--optim", "sgd", "--weight_decay", "0.1"], "sgd` without weight decay"),
        ([*TREE, "--streaming", "true", "--max_steps", "3"], "a stream is read only once"),
        ([*TREE, "--optim", "adafactor"], "sparse gradients, which Adafactor does not know"),
    ],
)
def test_mistakes_end_before_training(flags, change, message):  # noqa: F811
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        main([*flags, "--module_learning_rates", "{}", *change])
