import functools
import inspect
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import Trainer, TrainerState, TrainingArguments
from transformers.trainer_pt_utils import LengthGroupedSampler

from glocal_xml import GlocalXMLForMultiLabel, load_xmtc_dataset
from glocal_xml.data import LabelSpace, XMTCCollator, tokenize
from glocal_xml.training import XMTCTrainer, XMTCTrainingArguments, known_labels, parameter_groups
from glocal_xml.training.batches import GroupedByLength
from glocal_xml.training.callbacks import RunReporter


class Toy(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(2, 2)
        self.local_head = nn.ModuleDict({"mlp": nn.Linear(2, 2), "key": nn.Linear(2, 2)})
        self.other = nn.Linear(2, 2)
        self.frozen = nn.Linear(2, 2).requires_grad_(False)


def groups(rates, **options):
    return parameter_groups(
        Toy(),
        **{"learning_rate": 1.0, "module_learning_rates": rates, "weight_decay": 0.1, "decayed": set(), **options},
    )


def test_each_parameter_takes_the_rate_of_the_first_pattern_that_fits():
    result = groups({"encoder": 0.1, r"local_head\.mlp": 0.2, "local_head": 0.3})
    assert {group["lr"]: len(group["params"]) for group in result} == {0.1: 2, 0.2: 2, 0.3: 2, 1.0: 2}
    assert sum(len(group["params"]) for group in result) == 8, "every trained parameter once, frozen ones never"


def test_speed_is_told_once_within_seconds(monkeypatch, caplog):
    caplog.set_level("INFO")
    clock, reporter = iter(range(0, 100, 2)), RunReporter([1], "final")
    monkeypatch.setattr("glocal_xml.training.callbacks.time.time", lambda: next(clock))
    args, state = SimpleNamespace(disable_tqdm=True), TrainerState(max_steps=64)
    reporter.on_train_begin(args, state, None)
    for state.global_step in range(1, 8):
        reporter.on_step_end(args, state, None)
    told = [record.getMessage() for record in caplog.records]
    assert told == ["step 3 of 64: 2 s a step, about 2.0 minutes left, without evaluations"]


def test_weight_decay_only_where_it_belongs():
    result = groups({}, decayed={"encoder.weight"})
    assert [(group["weight_decay"], len(group["params"])) for group in result] == [(0.1, 1), (0.0, 7)]


@pytest.mark.parametrize("rates", [{"encodr": 0.1}, {"local_head": 0.1, r"local_head\.mlp": 0.2}, {"mlp": 0.1}])
def test_a_pattern_that_decides_nothing_is_an_error(rates):
    with pytest.raises(ValueError, match="decide no parameter"):
        groups(rates)


def test_a_pattern_that_is_no_regular_expression_is_named():
    with pytest.raises(ValueError, match="no regular expression"):
        groups({"enc(": 0.1})


def test_a_pattern_for_frozen_parameters_is_none():
    assert {group["lr"] for group in groups({"frozen": 0.1})} == {1.0}


def test_unseen_labels_are_kept_from_the_model():
    labels = torch.tensor([[1, 5, -100], [4, 3, 2]])
    assert known_labels(labels, 4).tolist() == [[1, -100, -100], [-100, 3, 2]]


@pytest.mark.compatibility(
    "Training", "Transformers' own `Trainer`", "works: loss, accumulation, predictions of all labels", since="0.1"
)
def test_models_train_in_the_plain_trainer(encoder_folder, text_file, tokenizer, tmp_path):
    """What Transformers' own Trainer needs of a model: loss with accumulation, logits over the labels."""
    parts, label_space = load_xmtc_dataset({"train": text_file("train.jsonl", 32)})
    model = GlocalXMLForMultiLabel.from_encoder(encoder_folder, label_names=label_space.names, mlp_size=8)
    arguments = TrainingArguments(
        str(tmp_path),
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        num_train_epochs=2,
        learning_rate=1e-2,
        use_cpu=True,
        disable_tqdm=True,
        dataloader_pin_memory=False,
        logging_steps=1,
    )
    trainer = Trainer(
        model,
        arguments,
        train_dataset=tokenize(parts["train"], tokenizer, 16),
        data_collator=XMTCCollator(tokenizer),
        processing_class=tokenizer,
    )
    before = trainer.evaluate(trainer.train_dataset)["eval_loss"]
    trainer.train()
    logged = next(entry["loss"] for entry in trainer.state.log_history if "loss" in entry)
    assert logged == pytest.approx(before, rel=0.2), "accumulation must not multiply the loss"
    prediction = trainer.predict(trainer.train_dataset)
    assert prediction.predictions.shape == (32, label_space.num_labels)
    assert prediction.metrics["test_loss"] < before


def test_a_split_model_is_refused(encoder_folder):
    model = GlocalXMLForMultiLabel.from_encoder(encoder_folder, num_labels=3)
    # As `from_pretrained(distributed_config=...)` leaves it.
    model._is_distributed_loading_by_transformers = True
    with pytest.raises(ValueError, match="run_xmtc_no_trainer.py --label_shards"):
        XMTCTrainer(model=model, args=None, label_space=None)


@pytest.fixture
def make_trainer(encoder_folder, text_file, tokenizer, tmp_path):
    """Trainers with texts and arguments of their own."""
    parts, label_space = load_xmtc_dataset({"train": text_file("train.jsonl", 24)})
    texts = tokenize(parts["train"], tokenizer, 16)

    def new_model():
        torch.manual_seed(0)
        return GlocalXMLForMultiLabel.from_encoder(encoder_folder, label_names=label_space.names)

    def make(model=None, **options):
        fields = {"num_train_epochs": 1, "per_device_train_batch_size": 8, "learning_rate": 1e-2, "metrics_at": [1]}
        args = XMTCTrainingArguments(str(tmp_path / "out"), use_cpu=True, disable_tqdm=True, **(fields | options))
        data = {"processing_class": tokenizer, "train_dataset": texts, "eval_dataset": texts}
        model = {"model_init": new_model} if model is None else {"model": model}
        return XMTCTrainer(args=args, label_space=label_space, **model, **data)

    make.new_model = new_model
    return make


@pytest.mark.parametrize(
    ("slip", "message"),
    [
        ({"args": TrainingArguments("out", use_cpu=True)}, "must be `XMTCTrainingArguments`, got `TrainingArguments`"),
        ({"compute_metrics": len}, "leave `compute_metrics` out"),
        ({"processing_class": None}, "`processing_class`, the tokenizer, is missing"),
        ({"label_space": LabelSpace(["a", "b"], [1, 1], 2)}, r"the 2 labels \['a', 'b'\]"),
    ],
)
def test_slips_are_named(make_trainer, slip, message):
    trainer = make_trainer(make_trainer.new_model())
    own = {"model": trainer.model, "args": trainer.args, "label_space": trainer.label_space}
    with pytest.raises(ValueError, match=message):
        XMTCTrainer(**{**own, "processing_class": trainer.processing_class, "train_dataset": None, **slip})


def test_labels_of_another_order_are_refused(make_trainer):
    model = make_trainer.new_model()
    model.set_label_names(model.label_names[::-1])
    with pytest.raises(ValueError, match=r"pass `label_names=label_space.names`"):
        make_trainer(model)


def test_fewer_labels_than_ranks(make_trainer):
    trainer = make_trainer(make_trainer.new_model(), metrics_at=[1, 3, 99])
    assert trainer.args.metrics_at == [1, 3]
    assert "eval_precision@3" in trainer.evaluate()


@pytest.mark.compatibility("Training", "`model_init`", "works", since="0.1")
def test_model_init_makes_a_new_model_for_each_training(make_trainer):
    trainer = make_trainer()
    trainer.train()
    first, loss = trainer.model, trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.model is not first and trainer.collapse_watch.model is trainer.model
    assert trainer.evaluate()["eval_loss"] == pytest.approx(loss)


def test_model_init_of_a_split_model_is_refused(make_trainer):
    trainer = make_trainer()
    model = make_trainer.new_model()
    model._is_distributed_loading_by_transformers = True
    trainer.model_init = lambda: model
    with pytest.raises(ValueError, match="run_xmtc_no_trainer.py --label_shards"):
        trainer.train()


@pytest.mark.compatibility("Training", "`hyperparameter_search`", "works, by Optuna", since="0.1")
def test_hyperparameter_search(make_trainer):
    optuna = pytest.importorskip("optuna")
    rates = [1e-6, 1e-2]
    best = make_trainer(save_strategy="no").hyperparameter_search(
        hp_space=lambda trial: {"learning_rate": trial.suggest_categorical("learning_rate", rates)},
        compute_objective=lambda metrics: metrics["eval_loss"],
        n_trials=2,
        backend="optuna",
        # Each rate once: the default sampler may draw the same one every time.
        sampler=optuna.samplers.GridSampler({"learning_rate": rates}),
    )
    assert best.hyperparameters == {"learning_rate": 1e-2}


@pytest.mark.compatibility("Training", "`auto_find_batch_size`", "works", since="0.1")
def test_a_batch_that_fits_is_found(make_trainer, monkeypatch):
    model = make_trainer.new_model()
    forward = type(model).forward

    @functools.wraps(forward)
    def small_memory(self, input_ids, *args, **kwargs):
        if len(input_ids) > 4:
            raise RuntimeError("CUDA out of memory.")
        return forward(self, input_ids, *args, **kwargs)

    monkeypatch.setattr(type(model), "forward", small_memory)
    trainer = make_trainer(model, auto_find_batch_size=True, save_strategy="no")
    trainer.train()
    assert trainer.state.train_batch_size <= 4 and trainer.state.epoch == 1
    assert trainer.state.log_history[-1]["train_loss"] < 10


@pytest.mark.compatibility("Training", "`torch_compile=True` of Trainer", "works: the same losses", since="0.1")
def test_compiled_training_is_the_same(make_trainer):
    found = []
    # The default backend takes a minute to compile, and differs in the last digits.
    for options in ({}, {"torch_compile": True, "torch_compile_backend": "eager"}):
        trainer = make_trainer(make_trainer.new_model(), save_strategy="no", **options)
        loss = trainer.train().training_loss
        found.append((loss, trainer.evaluate()["eval_loss"]))
    assert found[0] == pytest.approx(found[1], rel=1e-5)


def test_the_order_of_texts_follows_from_seed_and_epoch():
    # `Trainer` is asked for its sampler by a private method, the only way there is.
    assert list(inspect.signature(Trainer._get_train_sampler).parameters) == ["self", "train_dataset"]
    lengths = [1 + i % 7 for i in range(60)]

    def orders(seed):
        sampler = GroupedByLength(LengthGroupedSampler(4, lengths=lengths), seed)
        found = []
        for epoch in (0, 1, 0):
            sampler.set_epoch(epoch)
            # Whatever was drawn before.
            torch.rand(epoch + 1)
            found.append(list(sampler))
        return found

    first, second, again = orders(3)
    assert first == again and first != second and sorted(second) == list(range(60))
    assert orders(3) == [first, second, again] and orders(4)[0] != first
