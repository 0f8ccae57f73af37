from datasets import Dataset

from glocal_xml.runs.run_data import warn_of_repeated_texts


def part(*texts, labels=None):
    return Dataset.from_dict({"text": list(texts), "labels": labels or [[0]] * len(texts)})


def test_repeated_texts_are_named(caplog):
    warn_of_repeated_texts({"train": part("a", "b", "a"), "test": part("b", "c"), "validation": part("d")})
    first, second = [record.getMessage() for record in caplog.records]
    assert first.startswith("1 of 3 training texts are repeated")
    assert second.startswith("1 of 2 test texts are training texts too")


def test_a_row_for_each_label_of_a_text_is_named(caplog):
    warn_of_repeated_texts({"train": part("a", "a", "a", "b", "b", labels=[[0], [1], [1, 2], [0], [0]])})
    assert "3 of 5 training texts are repeated: they count several times; 2 of them with other labels" in caplog.text
    caplog.clear()
    warn_of_repeated_texts({"train": part("a", "a")})
    assert "other labels" not in caplog.text


def test_nothing_to_say(caplog):
    warn_of_repeated_texts({"train": part("a", "b"), "test": part("c", "c")})
    warn_of_repeated_texts({"test": part("c")})
    assert not caplog.records
