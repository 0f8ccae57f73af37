"""Rankings of one computation against the scores of another, which rounds otherwise."""

import pytest


def assert_best(found, everything, tolerance=1e-5):
    """
    Checks that predictions are the best of all labels, best first, with the scores that they have there.

    Products of other shapes, and of other processors, round otherwise: single precision keeps seven digits, of which
    a few roundings on the way leave five or six. Labels closer than that may change places, and no others.

    Args:
        found: Predictions of a text, `{"label": ..., "score": ...}` each, with `"branch_scores"` or without.
        everything: As much of all labels, in any order.
    """
    scores = {row["label"]: row["score"] for row in everything}
    best = sorted(scores.values(), reverse=True)[: len(found)]
    assert len({row["label"] for row in found}) == len(found) == len(best), "every label once"
    assert [row["score"] for row in found] == pytest.approx(best, abs=tolerance)
    assert [row["score"] for row in found] == pytest.approx([scores[row["label"]] for row in found], abs=tolerance)
    branches = {row["label"]: row.get("branch_scores") for row in everything}
    for row in found:
        if "branch_scores" in row:
            assert row["branch_scores"] == pytest.approx(branches[row["label"]], abs=tolerance)
