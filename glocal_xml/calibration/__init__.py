"""Usable scores: a temperature and a threshold, fitted on texts that were not trained on."""

from .candidates import ScoredLabels
from .figure import write_figure
from .fit import fit_calibration, judge_calibration, report_lines
from .keep import keep_calibration
from .quality import ReliabilityBins, expected_calibration_error, reliability_bins
from .temperature import calibrated_scores, fit_temperature
from .threshold import best_threshold, measures_at

__all__ = [
    "ReliabilityBins",
    "ScoredLabels",
    "best_threshold",
    "calibrated_scores",
    "expected_calibration_error",
    "fit_calibration",
    "fit_temperature",
    "judge_calibration",
    "keep_calibration",
    "measures_at",
    "reliability_bins",
    "report_lines",
    "write_figure",
]
