"""The metrics of `ranking.py` as a module of the `evaluate` library.

Use the class, or load this file by its path: `evaluate.load(".../glocal_xml/metrics/xmtc.py")`.
"""

from collections.abc import Sequence
from typing import Any

import datasets
import evaluate

# evaluate copies this file and the siblings it names itself, so the one that ranking.py needs is named here too.
from .ranked_labels import pad_label_lists
from .ranking import xmtc_metrics

_DESCRIPTION = """
Metrics of extreme multi-label classification at k: precision, recall, R-precision, nDCG, coverage, their
propensity-scored forms, and macro averages, over all labels and by frequency band. A text without a true label stays
in the mean and counts 0.
"""

_KWARGS_DESCRIPTION = """
Args:
    predictions: label ids of each text, best first; the longest list says how many there are at most, shorter ones
        are misses beyond their end, and so is a negative id.
    references: ids of the true labels of each text; negative ids are padding.
    ks: ranks to cut at, (1, 3, 5) by default.
    inverse_propensities: one weight per label, from the training counts; adds psp@k and psndcg@k.
    bands: label ids by name of the band; adds macro_f1@5_few and so on.
    num_labels: size of the label space, for the macro averages; by default from the data.
Returns:
    a dictionary of fractions, such as {"precision@1": 0.5, "recall@1": 0.25, ...}
"""

_CITATION = """
@inproceedings{jain2016extreme,
  title={Extreme Multi-label Loss Functions for Recommendation, Tagging, Ranking and Other Missing Label Applications},
  author={Jain, Himanshu and Prabhu, Yashoteja and Varma, Manik},
  booktitle={Proceedings of the 22nd ACM SIGKDD International Conference on Knowledge Discovery and Data Mining},
  year={2016}
}
"""


class XMTCMetrics(evaluate.Metric):
    """All metrics of [`xmtc_metrics`], for `evaluate`."""

    def _info(self) -> evaluate.MetricInfo:
        label_ids = datasets.Sequence(datasets.Value("int32"))
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_KWARGS_DESCRIPTION,
            features=datasets.Features({"predictions": label_ids, "references": label_ids}),
        )

    def _compute(
        self, predictions: Sequence[Sequence[int]], references: Sequence[Sequence[int]], **options: Any
    ) -> dict[str, float]:
        given = {name: value for name, value in options.items() if value is not None}
        return xmtc_metrics(pad_label_lists(predictions), references, **given)
