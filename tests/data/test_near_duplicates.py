"""Which texts are held out: exactly as many as asked for, half of them with their near-duplicates."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glocal_xml.data.near_duplicates import texts_to_hold_out


def variants(groups, size, words=12):
    """Texts of groups: those of a group share all words but one."""
    return [
        " ".join([*(f"group{group}word{word}" for word in range(words)), f"variant{number}"])
        for group in range(groups)
        for number in range(size)
    ]


@given(
    texts=st.lists(st.text(alphabet="ab c", max_size=12), min_size=2, max_size=40),
    share=st.floats(0, 1),
    seed=st.integers(0, 5),
)
def test_any_texts_give_as_many_as_asked_for(texts, share, seed):
    size = 1 + int(share * (len(texts) - 2))
    held_out = texts_to_hold_out(texts, size, seed)
    assert len(held_out) == size and (np.diff(held_out) > 0).all()
    assert held_out.min() >= 0 and held_out.max() < len(texts)
    assert held_out.tolist() == texts_to_hold_out(texts, size, seed).tolist()


@pytest.mark.parametrize("seed", range(5))
def test_half_of_them_leave_no_near_duplicate_behind(seed):
    groups, size = 100, 3
    held_out = texts_to_hold_out(variants(groups, size), 60, seed)
    per_group = np.bincount(held_out // size, minlength=groups)
    # The other half meets a whole group by chance at most.
    assert 30 <= size * (per_group == size).sum() <= 36


def test_groups_are_as_likely_as_texts_that_have_no_near_duplicate():
    texts = variants(100, 1) + [text.replace("group", "other") for text in variants(100, 4)]
    whole = single = 0
    for seed in range(20):
        held_out = texts_to_hold_out(texts, 100, seed)
        whole += (np.bincount(held_out[held_out >= 100] // 4) == 4).sum()
        single += (held_out < 100).sum()
    # About 10 groups and 10 single texts in the first half, and single texts of the second half.
    assert 150 < whole < 250 and 300 < single < 460


def test_a_kind_of_text_that_comes_again_and_again_is_held_out_one_by_one():
    texts = [f"weather report of day{number} and nothing else" for number in range(300)] + variants(300, 1)
    held_out = texts_to_hold_out(texts, 60, 0)
    assert 15 < (held_out < 300).sum() < 45
