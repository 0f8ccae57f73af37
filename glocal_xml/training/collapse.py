"""A model that gives every text the same labels: seen in evaluations, said, and what to do about it."""

import logging

import numpy as np

from glocal_xml.data import LabelSpace
from glocal_xml.metrics import RankedLabels, ndcg_at_k
from glocal_xml.modeling import WordLSTMConfig, XMTCPreTrainedModel

from .arguments import XMTCTrainingArguments
from .optimizer import deciding_patterns

logger = logging.getLogger(__name__)

# Of the best labels of all texts, the share that the same few labels may have.
_MOST_ALIKE = 0.9
# Of the way from the best ranking that is the same for all texts to a perfect one: what a model that ranks alike must
# at least have gone, and how long it must be for there to be something to learn.
_LEAST_GAIN = _LEAST_ROOM = 0.05


class CollapseWatch:
    """
    Tells whether a model in training has collapsed to the base rate: its ranking is no better than that of the most
    frequent labels, or the same for nearly all texts and hardly better than one that is the same for all can be. Data
    of which there is nothing to learn, since all texts have the same labels, show no collapse.

    The first evaluation alone proves nothing: a warning takes two in a row, and there is one in a run. What the end of
    the run shows is said in any case.
    """

    def __init__(self, label_space: LabelSpace, args: XMTCTrainingArguments, model: XMTCPreTrainedModel):
        self.args, self.model = args, model
        self.num_labels = label_space.num_labels + len(label_space.unseen)
        self.by_frequency = np.argsort(-np.asarray(label_space.counts), kind="stable")
        self._was_collapsed = self._has_warned = False

    def look(self, top_k_ids: np.ndarray, true_labels: np.ndarray, epoch: float) -> None:
        """
        Warns, the second time in a row that an evaluation during training shows a collapse, and then no more. Looks at
        the best labels of each text, and those that it has, padded with negative numbers, both (texts, labels).
        """
        # Where levels of a label tree are trained one after the other, the labels come last.
        if epoch <= self.model.config.whole_loss_epoch:
            return
        symptom = self.symptom(top_k_ids, true_labels)
        if symptom and self._was_collapsed and not self._has_warned:
            self._warn(f"{symptom}, for the second time in a row")
            self._has_warned = True
        self._was_collapsed = symptom is not None

    def conclude(self, top_k_ids: np.ndarray, true_labels: np.ndarray) -> bool:
        """Whether the trained model has collapsed, which is said again."""
        symptom = self.symptom(top_k_ids, true_labels)
        if symptom:
            self._warn(f"{symptom}, at the end of training")
        return symptom is not None

    def symptom(self, top_k_ids: np.ndarray, true_labels: np.ndarray) -> str | None:
        """What shows a collapse, or nothing."""
        k = min(max(self.args.metrics_at), top_k_ids.shape[1])
        found = RankedLabels(top_k_ids[:, :k], true_labels, self.num_labels)
        reached = ndcg_at_k(found, k)
        # A ranking that is the same for all texts gains from each label by its rank and its texts: the best has the
        # labels in the order of what they are worth.
        discounts = 1 / np.log2(np.arange(2, k + 2))
        ideal = np.cumsum(discounts)[np.clip(found.true_counts, 1, k) - 1]  # (texts,)
        worth = np.bincount(found.true_ids, 1 / ideal[found.true_rows], self.num_labels)
        by_frequency = worth[self.by_frequency[:k]] @ discounts / found.num_texts
        constant = -np.sort(-worth)[:k] @ discounts / found.num_texts
        room = np.mean(found.true_counts > 0) - constant
        if room < _LEAST_ROOM:
            return None
        numbers = f"nDCG@{k} {100 * reached:.1f}, by label frequency alone {100 * by_frequency:.1f}"
        # Summed in another order, equal rankings may differ in the last digit.
        if reached <= by_frequency + 1e-9:
            return f"it ranks labels no better than their frequency does ({numbers})"
        alike = np.sort(np.bincount(found.ids[found.ids >= 0]))[-k:].sum() / found.ids.size
        if alike >= _MOST_ALIKE and reached - constant < _LEAST_GAIN * room:
            return f"{100 * alike:.0f} % of the best {k} labels of all texts are the same {k} labels ({numbers})"
        return None

    def _warn(self, symptom: str) -> None:
        # All processes see the same evaluation.
        if self.args.process_index == 0:
            logger.warning(
                "The model has collapsed to the base rate: %s. What may help: %s.", symptom, "; ".join(self.advice())
            )

    def advice(self) -> list[str]:
        """What to change in the settings of this run, the most likely first."""
        args, config, found = self.args, self.model.config, []
        if getattr(config, "label_bias", None) is False:
            found.append("start labels at their frequencies (`--model_config '{\"label_bias\": true}'`)")
        rates: dict[bool, list[float]] = {True: [], False: []}
        names = [name for name, parameter in self.model.named_parameters() if parameter.requires_grad]
        for name, pattern in zip(names, deciding_patterns(names, args.module_learning_rates), strict=True):
            rates[name.startswith("encoder.")].append(args.module_learning_rates.get(pattern, args.learning_rate))
        if rates[True] and max(rates[True]) > 1e-4 and config.encoder.model_type != WordLSTMConfig.model_type:
            found.append(
                f"a lower learning rate of the encoder than {max(rates[True]):g} "
                "(`--module_learning_rates '{\"encoder\": 5e-5}'`)"
            )
        if rates[False] and min(rates[False]) < 1e-3:
            found.append(
                f"a higher learning rate of the heads than {min(rates[False]):g} (`--learning_rate 2e-3`, or theirs "
                "in `--module_learning_rates`)"
            )
        if not args.warmup_steps:
            found.append("a warm-up (`--warmup_steps 0.1`)")
        if getattr(config, "tree_levels", []):
            found.append(
                "a label tree of smaller clusters (`cluster_size` in `--label_tree`) or a wider `training_beam` in "
                "`--model_config`"
            )
        length = f"{args.max_steps} steps" if args.max_steps > 0 else f"{args.num_train_epochs:g} epochs"
        return [*found, f"more training than {length}"]
