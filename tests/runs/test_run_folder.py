import json

import pytest

from glocal_xml.data import LabelSpace
from glocal_xml.modeling.configuration_base import write_label_names
from glocal_xml.runs.run_folder import (
    check_run_folder,
    check_same_labels,
    clear_run_folder,
    prediction_lines,
    write_predictions,
)
from glocal_xml.training.whole_checkpoints import last_good_checkpoint, write_manifest


def checkpoint(folder, step, state='{"global_step": 1}'):
    path = folder / f"checkpoint-{step}"
    path.mkdir(parents=True)
    if state is not None:
        (path / "trainer_state.json").write_text(state, encoding="utf-8")
        for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
            (path / name).write_text("state")
        write_manifest(path)
    return str(path)


def test_last_good_checkpoint_passes_over_half_written_ones(tmp_path):
    assert last_good_checkpoint(tmp_path) is None
    good = checkpoint(tmp_path, 90)
    checkpoint(tmp_path, 8)
    checkpoint(tmp_path, 100, state=None)
    checkpoint(tmp_path, 110)
    (tmp_path / "checkpoint-110" / "trainer_state.json").write_text('{"global_st')
    (tmp_path / "checkpoint-best").mkdir()
    assert last_good_checkpoint(tmp_path) == good
    # What Trainer takes for the last one, too.
    for resume in ("last", "true", True):
        assert check_run_folder(str(tmp_path), resume=resume, overwrite=False) == good


def test_another_run_is_refused_unless_told_otherwise(tmp_path):
    assert check_run_folder(str(tmp_path / "new"), resume=None, overwrite=False) is None
    (tmp_path / "notes.txt").write_text("mine")
    assert check_run_folder(str(tmp_path), resume=None, overwrite=False) is None
    checkpoint(tmp_path, 5)
    (tmp_path / "results.json").write_text("{}")
    with pytest.raises(ValueError, match="holds another run.*--resume_from_checkpoint last"):
        check_run_folder(str(tmp_path), resume=None, overwrite=False)
    check_run_folder(str(tmp_path), resume=None, overwrite=True)
    assert (tmp_path / "results.json").exists(), "a check deletes nothing"
    clear_run_folder(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"], "only what belongs to a run is deleted"


def test_a_folder_that_cannot_be_written_to_is_named_at_once(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    for folder, message in {"": "cannot be written", str(tmp_path / "file" / "x"): "is a file, or in one"}.items():
        with pytest.raises(ValueError, match=message):
            check_run_folder(folder, resume=None, overwrite=False)
    # Permissions do not stop root.
    monkeypatch.setattr("os.access", lambda place, mode: False)
    with pytest.raises(ValueError, match="cannot be written"):
        check_run_folder(str(tmp_path / "new" / "run"), resume=None, overwrite=False)


def test_a_run_without_a_whole_checkpoint_is_not_to_be_resumed(tmp_path):
    checkpoint(tmp_path, 5, state=None)
    with pytest.raises(ValueError, match="holds another run: delete it with `--overwrite_output true`"):
        check_run_folder(str(tmp_path), resume=None, overwrite=False)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["b", "a"], "another order"),
        (["a", "c"], r"1 new, such as \['c'\] and 1 missing, such as \['b'\]"),
        (["a", "b", "c"], r"1 new, such as \['c'\]"),
    ],
)
def test_other_labels_are_not_resumed(tmp_path, names, message):
    write_label_names(tmp_path, ["a", "b"])
    check_same_labels(str(tmp_path), ["a", "b"])
    with pytest.raises(ValueError, match=message):
        check_same_labels(str(tmp_path), names)


def test_nothing_to_resume_from(tmp_path):
    with pytest.raises(ValueError, match="No complete checkpoint"):
        check_run_folder(str(tmp_path), resume="last", overwrite=False)
    with pytest.raises(ValueError, match="No complete checkpoint"):
        check_run_folder(str(tmp_path), resume=checkpoint(tmp_path, 3, state=None), overwrite=False)


def test_predictions_have_names_and_scores(tmp_path):
    space = LabelSpace(names=["x", "ÿ"], counts=[1, 1], num_texts=2)
    lines = prediction_lines("test", ["a\u2028text", "b"], [[1, 0], [0, 1]], [[0.75, 0.5]] * 2, [[0], []], space)
    first, second, end = write_predictions(tmp_path, lines).read_text(encoding="utf-8").split("\n")
    assert json.loads(first) == {
        "part": "test",
        "text": "a\u2028text",
        "predictions": [{"label": "ÿ", "score": 0.75}, {"label": "x", "score": 0.5}],
        "labels": ["x"],
    }
    assert "labels" not in json.loads(second) and end == ""


def test_the_model_in_use_is_never_in_the_way(tmp_path):
    for model in (tmp_path, tmp_path / "inside"):
        with pytest.raises(ValueError, match="holds the model"):
            check_run_folder(str(tmp_path), resume=None, overwrite=True, model=str(model))
    assert check_run_folder(str(tmp_path / "other"), resume=None, overwrite=True, model=str(tmp_path)) is None
