import pytest

from glocal_xml.cli.command_parser import with_flags


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("`max_length` must be at least 1, got 0.", "`--max_length` must be at least 1, got 0."),
        ("`num_train_epochs` must be above 0", "`--num_train_epochs` must be above 0"),
        ("accept such rows with allow_no_labels", "accept such rows with --allow_no_labels"),
        ("accept such rows with allow_no_labels.", "accept such rows with --allow_no_labels."),
        ("the `encoder` of this model", "the `--encoder` of this model"),
        # What is no argument, or is called by its flag already.
        ("the encoder of this model", "the encoder of this model"),
        ("pass `--label_texts_file`", "pass `--label_texts_file`"),
        ("train_file/rows.csv and max_length.json", "train_file/rows.csv and max_length.json"),
        ("there is no column 'text_column'", "there is no column 'text_column'"),
        ("fit(max_length=5)", "fit(max_length=5)"),
        ("`global_step` is unknown", "`global_step` is unknown"),
        (
            "test_file is missing; see `glocal-xml evaluate --help`",
            "test_file is missing; see `glocal-xml evaluate --help`",
        ),
    ],
)
def test_arguments_are_called_by_their_flags(message, shown):
    assert with_flags(message, ["train", "--num_train_epochs", "0"]) == shown
