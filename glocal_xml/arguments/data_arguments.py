"""Arguments of a run that say where texts and labels come from."""

import math
from dataclasses import dataclass

from .option import option


@dataclass
class DataArguments:
    """Where texts and labels come from."""

    _argument_group_name = "data"

    train_file: str | None = option(None, "Training texts with labels.")
    validation_file: str | None = option(None, "Texts on which the best checkpoint is chosen; never the test set.")
    validation_size: float | None = option(
        None,
        "Without a validation file: share (below 1) or number of training texts to hold out; 0 for none. "
        "Default: 10 %%, at most 1,000, to fit the blend.",
    )
    test_file: str | None = option(None, "Texts with labels to evaluate the final model on.")
    predict_file: str | None = option(None, "Texts to predict labels for; labels optional.")
    dataset_name: str | None = option(
        None, "Instead of files: a dataset on the Hub or saved on disk with its own splits."
    )
    dataset_config: str | None = option(None, "Configuration of that dataset.")
    file_format: str | None = option(
        None, "jsonl, csv, tsv, text_pair, aplc_csv, xc_json, pecos, pecos_npz; found by content when left out."
    )
    text_column: str = option("text", "Field or column of the text.")
    labels_column: str = option("labels", "Field or column of the labels.")
    label_delimiter: str | None = option(
        None,
        "Separates labels written in one string. By default the one of `,`, `;` and `|` that gives known "
        "labels; in training files the only one that the first rows hold, or a comma where there are several, "
        "with a warning.",
    )
    label_map: str | None = option(None, "xc_json, pecos and pecos_npz: file with the names of the label indices.")
    label_names_file: str | None = option(
        None, "All labels there are, one per line: a taxonomy with more labels than the training texts."
    )
    label_texts: bool = option(
        True,
        "Use label names as additional training texts of the experts, if they are words and not codes; "
        "this helps rare labels.",
    )
    label_texts_file: str | None = option(
        None,
        "Names of labels in words, where the labels are codes: a line for each, with the label, its name "
        "and, where there are some, other names (separated by `;`), with tabs between; may be gzipped.",
    )
    allow_no_labels: bool = option(
        False, "Accept texts without labels, for which every label is wrong; by default an error."
    )
    bad_rows: str = option("error", "`error` stops at a bad row and names it, `skip` counts and reports them.")
    streaming: bool = option(False, "Read training texts while training, for sets larger than the disk cache.")
    max_length: int | None = option(
        None, "Longest text in tokens, the rest is cut off; default: the trained model's, 256 for a new one."
    )
    windows: str | None = option(
        None,
        "Read texts beyond max_length too, in windows of that length: in training each window counts as a "
        "text, in evaluation the score of a label is the `max` or the `mean` over the windows of a text.",
    )
    window_overlap: int | None = option(None, "Tokens that windows share, at most half of them; default: a quarter.")
    max_windows: int = option(8, "Most windows of a text; what follows is not read.")
    max_train_texts: int | None = option(None, "Train on a random part of this size.")
    max_test_texts: int | None = option(None, "Evaluate on a random part of this size.")

    def __post_init__(self):
        for name in ("max_length", "max_windows", "max_train_texts", "max_test_texts"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"`{name}` must be at least 1, got {value}.")
        size = self.validation_size
        if size is not None and not (0 <= size < 1 or (1 <= size < math.inf and size == int(size))):
            raise ValueError(
                f"`validation_size` must be a share below 1 or a whole number of texts, 0 for none, got {size}."
            )
