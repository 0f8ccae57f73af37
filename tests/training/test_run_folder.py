import json

import pytest

from glocal_xml.training.run_folder import last_good_checkpoint, prepare_run_folder, write_predictions


def checkpoint(folder, step, state='{"global_step": 1}'):
    path = folder / f"checkpoint-{step}"
    path.mkdir(parents=True)
    if state is not None:
        (path / "trainer_state.json").write_text(state, encoding="utf-8")
    return str(path)


def test_last_good_checkpoint_passes_over_half_written_ones(tmp_path):
    assert last_good_checkpoint(tmp_path) is None
    good = checkpoint(tmp_path, 90)
    checkpoint(tmp_path, 8)
    checkpoint(tmp_path, 100, state=None)
    checkpoint(tmp_path, 110, state='{"global_st')
    (tmp_path / "checkpoint-best").mkdir()
    assert last_good_checkpoint(tmp_path) == good
    assert prepare_run_folder(str(tmp_path), resume="last", overwrite=False) == good


def test_another_run_is_refused_unless_told_otherwise(tmp_path):
    assert prepare_run_folder(str(tmp_path / "new"), resume=None, overwrite=False) is None
    (tmp_path / "notes.txt").write_text("mine")
    assert prepare_run_folder(str(tmp_path), resume=None, overwrite=False) is None
    checkpoint(tmp_path, 5)
    (tmp_path / "results.json").write_text("{}")
    with pytest.raises(ValueError, match="holds another run.*--resume_from_checkpoint last"):
        prepare_run_folder(str(tmp_path), resume=None, overwrite=False)
    prepare_run_folder(str(tmp_path), resume=None, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"], "only what belongs to a run is deleted"


def test_nothing_to_resume_from(tmp_path):
    with pytest.raises(ValueError, match="No complete checkpoint"):
        prepare_run_folder(str(tmp_path), resume="last", overwrite=False)
    with pytest.raises(ValueError, match="No complete checkpoint"):
        prepare_run_folder(str(tmp_path), resume=checkpoint(tmp_path, 3, state=None), overwrite=False)


def test_predictions_have_names_and_scores(tmp_path):
    path = write_predictions(tmp_path, ["a\u2028text"], [[1, 0]], [[0.75, 0.5]], ["x", "ÿ"], [["x"]])
    (line,) = path.read_text(encoding="utf-8").split("\n")[:-1]
    assert json.loads(line) == {
        "text": "a\u2028text",
        "predictions": [{"label": "ÿ", "score": 0.75}, {"label": "x", "score": 0.5}],
        "labels": ["x"],
    }
