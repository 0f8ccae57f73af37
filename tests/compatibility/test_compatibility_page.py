"""The page of compatibility says what the tests show."""

import pytest
from compatibility_page import PAGE, PARTS, ROOT, marked_tests, page

from glocal_xml.version import __version__


def test_the_page_is_up_to_date():
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make compatibility`"


def test_every_row_is_complete():
    rows = list(marked_tests(ROOT / "tests"))
    assert {part for part, *_ in rows} == set(PARTS)
    features = [feature for _, feature, *_ in rows]
    assert len(set(features)) == len(features), "a feature is shown once"
    known = [int(number) for number in __version__.split(".")[:2]]
    for *cells, since, _ in rows:
        assert all(cell.strip() and "|" not in cell and "\n" not in cell for cell in cells), cells
        assert [int(number) for number in since.split(".")] <= known, since


def test_a_part_that_does_not_exist_is_refused(tmp_path, monkeypatch):
    (tmp_path / "tests").mkdir()
    marker = '@pytest.mark.compatibility("Odds and ends", "a", "works", since="0.1")'
    (tmp_path / "tests" / "test_one.py").write_text(f"{marker}\ndef test_one(): ...\n", encoding="utf-8")
    monkeypatch.setattr("compatibility_page.ROOT", tmp_path)
    with pytest.raises(ValueError, match="Odds and ends"):
        page()
