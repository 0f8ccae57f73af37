"""The data of a table: which files a folder holds, and whether they are what the paper describes."""

import hashlib
from dataclasses import replace
from pathlib import Path

from glocal_xml.data.readers import detect_format, files_of_texts
from glocal_xml.runs.prepare import load_texts
from glocal_xml.training import DataArguments

from .table_recipe import PublishedData, TableRecipe

# Training and test texts as the public copies name them, and the names of labels that are numbers there.
_LAYOUTS = (
    ("train.jsonl", "test.jsonl", None),
    ("train.jsonl.gz", "test.jsonl.gz", None),
    ("train_raw_texts.txt", "test_raw_texts.txt", None),
    ("train_texts.txt", "test_texts.txt", None),
    ("train.csv", "dev.csv", None),
    ("train.csv", "test.csv", None),
    ("trn.json.gz", "tst.json.gz", "lbl.json.gz"),
    ("trn.json", "tst.json", "lbl.json"),
    ("X.trn.txt", "X.tst.txt", "output-items.txt"),
)


def data_files(
    recipe: TableRecipe, data_dir: str | None, train_file: str | None = None, test_file: str | None = None
) -> dict[str, str]:
    """Training and test texts: those that are given, those of the recipe, or those in a folder."""
    given = {"train_file": train_file, "test_file": test_file}
    files = {name: path or recipe.shared.get(name) for name, path in given.items()}
    if all(files.values()):
        return files
    if any(files.values()):
        raise ValueError("Pass both `--train_file` and `--test_file`, or a folder with both by `--data_dir`.")
    return find_files(data_dir or recipe.data.folder)


def find_files(folder: str) -> dict[str, str]:
    """`train_file` and `test_file` in a folder, with `label_map` where there is one."""
    for train, test, names in _LAYOUTS:
        found = {"train_file": Path(folder, train), "test_file": Path(folder, test)}
        if all(path.is_file() for path in found.values()):
            if names is not None and Path(folder, names).is_file():
                found["label_map"] = Path(folder, names)
            return {name: str(path) for name, path in found.items()}
    layouts = "; ".join(f"{train} and {test}" for train, test, _ in _LAYOUTS)
    raise ValueError(
        f"{folder} holds no data set: it must hold one of {layouts}. Pass another folder by `--data_dir`, or files by "
        "`--train_file` and `--test_file`; docs/reproduce.md says where each set can be found."
    )


def check_data(data_args: DataArguments, published: PublishedData) -> tuple[list[str], list[str]]:
    """Lines on files and sizes of a data set, read as a run does, and warnings where sizes are not as published."""
    whole = replace(data_args, validation_size=None, max_train_texts=None, max_test_texts=None, streaming=False)
    texts, label_space = load_texts(whole, None, seed=0)
    columns = {"text_column": data_args.text_column, "labels_column": data_args.labels_column}
    lines, files = [], []
    for part in ("train", "test"):
        path = getattr(data_args, f"{part}_file")
        file_format = data_args.file_format or detect_format(path, **columns)
        lines.append(f"{path}: {len(texts[part]):,} texts, read as {file_format}")
        files += files_of_texts(path, file_format)
    files += [] if data_args.label_map is None else [Path(data_args.label_map)]
    for path in files:
        with open(path, "rb") as file:
            lines.append(f"sha256 {hashlib.file_digest(file, 'sha256').hexdigest()}  {path}")
    sizes: dict[str, int | float] = {
        "train_texts": len(texts["train"]),
        "test_texts": len(texts["test"]),
        # Papers count labels that test texts alone have.
        "labels": label_space.num_labels + len(label_space.unseen),
        "labels_per_text": round(sum(label_space.counts) / label_space.num_texts, 2),
    }
    lines.append(f"{sizes['labels']:,} labels, {len(label_space.unseen):,} of them in test texts alone")
    lines.append(f"{sizes['labels_per_text']:.2f} labels for a training text")
    warnings = [
        f"{published.name}: {name.replace('_', ' ')} are {size:,} here and {getattr(published, name):,} in the paper"
        for name, size in sizes.items()
        if size != getattr(published, name)
    ]
    return lines, warnings
