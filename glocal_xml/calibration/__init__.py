"""How good probabilities are, and the threshold from which on labels are given."""

from .candidates import ScoredLabels
from .figure import write_figure
from .quality import ReliabilityBins, expected_calibration_error, judge_scores, reliability_bins, report_lines
from .threshold import best_threshold, measures_at

__all__ = [
    "ReliabilityBins",
    "ScoredLabels",
    "best_threshold",
    "expected_calibration_error",
    "judge_scores",
    "measures_at",
    "reliability_bins",
    "report_lines",
    "write_figure",
]
