import logging
from dataclasses import fields

import pytest

from glocal_xml.arguments import DataArguments, ModelArguments, TrainingOptions
from glocal_xml.cli.command_parser import add_fields, command_parser, given
from glocal_xml.modeling import FAMILIES
from glocal_xml.modeling.configuration_base import EXPERTS, F_KINDS
from glocal_xml.training import XMTCTrainingArguments, parse_arguments

RECIPE = """
encoder: some/encoder
model_config: {local_layer: 1, temperature: 5e-1}
train_file: train.jsonl
module_learning_rates: {encoder: 1e-4, local_head: 2e-3}
num_train_epochs: 3
metrics_at: 2
dataset_config: "2020"
text_column: "1e5"
seed: "7"
"""


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE, encoding="utf-8")
    return str(path)


def test_recipe_with_flags_on_top(recipe, tmp_path):
    model, data, training = parse_arguments([recipe, "--num_train_epochs", "1", "--output_dir", str(tmp_path)])
    assert model.encoder == "some/encoder"
    # YAML takes 5e-1 and 1e-4 for strings; they are numbers all the same.
    assert model.model_config == {"local_layer": 1, "temperature": 0.5}
    assert training.module_learning_rates == {"encoder": 1e-4, "local_head": 2e-3}
    assert data.train_file == "train.jsonl" and data.dataset_config == "2020"
    assert data.text_column == "1e5", "what is quoted is a text"
    assert training.metrics_at == [2] and training.seed == 7
    assert training.num_train_epochs == 1 and training.output_dir == str(tmp_path)


def test_flags_alone():
    model, _, training = parse_arguments(
        ["--model_config", '{"branches": "global"}', "--module_learning_rates", '{"encoder": 0.1}', "--seed", "7"]
    )
    assert model.model_config == {"branches": "global"}
    assert training.module_learning_rates == {"encoder": 0.1}
    assert training.seed == 7
    # The slanted triangular schedule is the default.
    assert training.lr_scheduler_type == "linear" and training.warmup_steps == 0.1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--model_config", "[1]"], "model_config"),
        (["--model_config", "{"], "JSON"),
        (["--module_learning_rates", '"fast"'], "module_learning_rates"),
        (["--model_type", "glocal"], "one of aplc_xlnet, glocal_xml"),
        (["--metrics_at", "0"], "metrics_at"),
        (["--save_strategy", "best"], "save_strategy"),
        (["--no_such_option", "1"], "no_such_option"),
        (["no_such_recipe.yaml"], "no recipe"),
        (["--num_train_epochs", "0"], "`num_train_epochs` must be above 0, got 0"),
        (["--num_train_epochs", "-1"], "`num_train_epochs` must be above 0, got -1"),
        (["--max_length", "0"], "`max_length` must be at least 1, got 0"),
        (["--max_train_texts", "-5"], "`max_train_texts` must be at least 1, got -5"),
        (["--validation_size", "1.5"], "`validation_size` must be a share below 1 or a whole number.*got 1.5"),
        (["--validation_size", "-0.1"], "`validation_size` must be"),
    ],
)
def test_mistakes_are_named(flags, message):
    with pytest.raises(ValueError, match=message):
        parse_arguments(flags)


@pytest.mark.parametrize(
    ("content", "message"), [("a: b: c", "valid YAML"), ("- a", "mapping"), ("encodr: x", "encodr")]
)
def test_broken_recipes_are_named(tmp_path, content, message):
    path = tmp_path / "broken.yaml"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        parse_arguments([str(path)])


def test_half_precision_only_where_the_device_has_it(caplog):
    with caplog.at_level(logging.WARNING):
        _, _, training = parse_arguments(["--bf16", "true", "--use_cpu", "true"])
    assert not training.bf16
    assert "single precision" in caplog.text


def test_checkpoints_are_not_pushed(tmp_path):
    """They hold pickled arguments, and these the token."""
    with pytest.raises(ValueError, match="`hub_strategy` must be end, got 'every_save'"):
        parse_arguments(["--output_dir", str(tmp_path), "--hub_strategy", "every_save"])


def test_help_names_what_there_is():
    """The plain dataclasses cannot ask the models, which take seconds to import."""
    told = {field.name: field.metadata["help"] for kind in (ModelArguments, TrainingOptions) for field in fields(kind)}
    assert all(family.model_type in told["model_type"] for family in FAMILIES)
    assert all(f"`{name}`" in told["experts"] for name in EXPERTS) and ModelArguments().experts == list(EXPERTS)
    assert all(kind in told["threshold_f"] for kind in F_KINDS)


def test_flags_of_commands_are_read_as_those_of_a_run(tmp_path):
    """Commands that build dataclasses from flags of their own, and `train`, which leaves it to Transformers."""
    flags = [
        *("--metrics_at", "5", "1", "--use_cpu", "--blend", "false", "--propensity_a", "0.6", "--max_length", "7"),
        *("--module_learning_rates", '{"encoder": 0.1}', "--label_delimiter", ";", "--output_dir", str(tmp_path)),
    ]
    parser = command_parser("evaluate", "")
    for kind in (DataArguments, TrainingOptions):
        add_fields(parser, kind)
    args = parser.parse_args(flags)
    _, data_args, run_args = parse_arguments(flags)
    assert given(DataArguments, args) == data_args
    own = given(XMTCTrainingArguments, args)
    assert {field.name: getattr(own, field.name) for field in fields(TrainingOptions)} == {
        field.name: getattr(run_args, field.name) for field in fields(TrainingOptions)
    }
    with pytest.raises(ValueError, match="must be true or false, got 'perhaps'"):
        parser.parse_args(["--blend", "perhaps"])


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("learning_rate", ["nan", "inf", "-1"]),
        ("weight_decay", ["nan", "inf", "-1"]),
        ("max_grad_norm", ["nan", "inf", "-1"]),
        ("warmup_steps", ["nan", "inf", "-1"]),
        ("adam_epsilon", ["nan", "inf", "1e999"]),
        ("gradient_accumulation_steps", ["0", "-1", "9" * 25]),
        ("per_device_train_batch_size", ["0", "-1", "9" * 25]),
        ("logging_steps", ["nan", "inf", "-1", "0"]),
        ("save_steps", ["nan", "inf", "-1"]),
        ("save_total_limit", ["0", "-1"]),
        ("minutes", ["nan", "inf", "-1", "0"]),
        ("num_train_epochs", ["nan", "inf", "-1", "0"]),
        ("validation_size", ["nan", "inf", "-1", "1.5"]),
        ("module_learning_rates", ['{"encoder": NaN}', '{"encoder": -1}', '{"encoder": Infinity}']),
    ],
)
def test_numbers_that_make_no_sense_are_refused(name, values):
    for value in values:
        with pytest.raises(ValueError, match=name):
            parse_arguments(["--encoder", "x", "--train_file", "x", "--use_cpu", "true", f"--{name}={value}"])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("train_file: [a, b]", "`train_file` takes one value"),
        ("learning_rate: {a: 1}", "`learning_rate` takes one value"),
        ("model: 3", "`model` must be a text, got 3"),
        ("experts: {lexical: 1}", "`experts` takes one value"),
        ("experts: 0", "`experts` must be among lexical, memory, dense and none, got 0"),
    ],
)
def test_recipes_with_values_of_another_kind_are_refused(tmp_path, line, message):
    path = tmp_path / "recipe.yaml"
    path.write_text(f"{line}\n")
    with pytest.raises(ValueError, match=message):
        parse_arguments([str(path)])


def test_one_value_in_a_recipe_is_a_list_of_one(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text("experts: lexical\nuse_cpu: true\n")
    assert parse_arguments([str(path)])[0].experts == ["lexical"]
