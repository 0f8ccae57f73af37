"""From texts to the names of their labels: `pipeline("extreme-multi-label-classification")`."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sized
from functools import cached_property
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from transformers import Pipeline
from transformers.dynamic_module_utils import custom_object_save
from transformers.pipelines.pt_utils import PipelineDataset, PipelineIterator
from transformers.utils import logging

from .encoder import evaluation_mode, position_limit
from .text_windows import (
    WINDOW_SCORES,
    TextStarts,
    all_token_ids,
    best_of_windows,
    checked_overlap,
    readable_text,
    text_start,
    text_windows,
)

logger = logging.get_logger(__name__)

TASK, CALIBRATED = "extreme-multi-label-classification", "calibrated"
# Of a text, where a threshold decides.
_MOST_LABELS = 100
_NO_TOKEN = -100
_BLANK = "is_blank"


class ExtremeMultiLabelPipeline(Pipeline):
    """
    Tags texts with the best of many labels.

    ```py
    tag = pipeline("extreme-multi-label-classification", model="outputs/demo")
    tag("a small text editor for GNOME", top_k=2)
    # [{'label': 'role::program', 'score': 0.88}, {'label': 'uitoolkit::gtk', 'score': 0.74}]
    ```

    What a call may be told (`__call__`), the pipeline may be told once and for all when it is made.
    """

    _load_processor = False
    _load_image_processor = False
    _load_video_processor = False
    _load_feature_extractor = False
    _load_tokenizer = True
    # How often labels were met in training; set by `fit`.
    label_space: Any = None

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        if not hasattr(self.model, "predict_top_k"):
            raise ValueError(
                f"A {type(self.model).__name__} gives no scores of labels: pass a model that was trained with this "
                "package (`glocal-xml train`), or one that was started with `from_encoder`."
            )
        self.model.eval()
        # The configuration may have been given names since the model was made.
        self.model.set_label_names(self.model.config.given_label_names or self.model.label_names)

    def __call__(self, inputs: str | Iterable[str], **options: Any) -> Any:
        """
        The best labels of one text, of each of a list, or, one after the other, of each of a dataset or generator.

        Args:
            inputs: A text, or several.
            top_k: Most labels of a text; `config.top_k` by default, with a threshold 100.
            threshold: Leaves out labels that score less; `"calibrated"` stands for the threshold that was fitted on
                held-out texts.
            candidate_labels: Names of the labels to choose from; all by default.
            branch_scores: Whether to give the score of each head and expert too.
            windows: How a text longer than the model reads is scored: not at all beyond that by default; by windows
                over all of it, the score of a label being the `"max"` or the `"mean"` of them. The labels of a text
                are found among the best of its windows.
            window_overlap: Most tokens that a window shares with the one before; a quarter of it by default.
            batch_size: How many texts go through the model together.

        Returns:
            For a text a list of `{"label": name, "score": probability}`, best first, with `"branch_scores"` on
            request; for several texts as many such lists.
        """
        # A table of pandas would be read as the names of its columns.
        if isinstance(inputs, Mapping) or getattr(inputs, "ndim", 1) == 2:
            keys = list(map(str, inputs))[:5]
            raise ValueError(f"Give a text or a list of texts, not a mapping or a table with the keys {keys}.")
        if isinstance(inputs, Iterator):
            # The base class knows generators alone.
            inputs = (text for text in inputs)
        elif not isinstance(inputs, str | bytes | Dataset) and isinstance(inputs, Iterable):
            # Such as a tuple or a column of a dataset.
            inputs = list(inputs)
            if not inputs:
                return []
        return super().__call__(inputs, **options)

    def save_pretrained(self, save_directory: str | os.PathLike, **kwargs: Any) -> None:
        """Saves model, tokenizer and the code of this pipeline, so that `pipeline(model=...)` finds all of them."""
        super().save_pretrained(save_directory, **kwargs)
        if self.label_space is not None:
            self.label_space.save(save_directory)
        # A model that came as code beside its weights does not know where that of its pipeline is.
        self.model.config.custom_pipelines = self.config_entry()
        self.model.config.save_pretrained(save_directory)
        custom_object_save(self, save_directory)

    @classmethod
    def config_entry(cls) -> dict[str, Any]:
        """What the configuration of a model says of its pipeline."""
        return {TASK: {"impl": f"{Path(__file__).stem}.{cls.__name__}", "pt": ["AutoModel"]}}

    @property
    def max_length(self) -> int | None:
        """Most tokens of a text that the model reads; `None` where there is no limit."""
        limit = None if self.model.encoder is None else position_limit(self.model.encoder)
        length = min(self.tokenizer.model_max_length, self.tokenizer.model_max_length if limit is None else limit)
        # What tokenizers say that were not told of any.
        return None if length > 10**9 else length

    def _sanitize_parameters(
        self,
        top_k: int | None = None,
        threshold: float | str | None = None,
        candidate_labels: list[str] | None = None,
        branch_scores: bool | None = None,
        windows: str | None = None,
        window_overlap: int | None = None,
        **unknown: Any,
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        if unknown:
            raise ValueError(
                f"Unknown options {', '.join(unknown)}: there are top_k, threshold, candidate_labels, branch_scores, "
                "windows and window_overlap. Long texts are truncated to `tokenizer.model_max_length`."
            )
        if top_k is not None:
            if isinstance(top_k, bool) or not isinstance(top_k, Integral) or top_k < 1:
                raise ValueError(f"`top_k` must be a whole number of at least 1, got {top_k!r}.")
            top_k = int(top_k)
        if windows not in (None, *WINDOW_SCORES):
            raise ValueError(f"`windows` must be one of {', '.join(WINDOW_SCORES)}, or None, got {windows!r}.")
        if threshold == CALIBRATED:
            if self.model.config.blend is None:
                raise ValueError(
                    "This model has no fitted threshold: run `glocal-xml calibrate MODEL FILE` on held-out texts, or "
                    "give a number."
                )
            threshold = self.model.config.blend["threshold"]
            # What a run notes where its weights are fixed ones.
            if self.model.config.blend.get("texts") == 0:
                logger.warning_once(
                    f"The threshold of this model, {threshold}, was not fitted, since its run had too few held-out "
                    "texts: most texts may get no labels. Run `glocal-xml calibrate MODEL FILE` on held-out texts, or "
                    "give a number."
                )
        if threshold is not None and not (isinstance(threshold, Real) and 0 <= threshold <= 1):
            raise ValueError(f"`threshold` must lie in 0 to 1, or be {CALIBRATED!r}, got {threshold!r}.")
        candidate_ids = None if candidate_labels is None else self._label_ids(candidate_labels)
        # A threshold decides how many labels a text has, not the configuration.
        choice = {"top_k": top_k, "candidate_ids": candidate_ids, "open_end": None if threshold is None else True}
        stages = (
            {"windows": windows, "window_overlap": window_overlap},
            {**choice, "branch_scores": branch_scores, "windows": windows},
            {"threshold": threshold, "branch_scores": branch_scores},
        )
        # What a call leaves out is as it was when the pipeline was made.
        return tuple({name: value for name, value in stage.items() if value is not None} for stage in stages)

    def _label_ids(self, names: list[str]) -> list[int]:
        """The ids of labels that are given by name."""
        names = names if isinstance(names, str) else list(names)
        if isinstance(names, str) or not names:
            raise ValueError(f"`candidate_labels` must be a list of label names with some in it, got {names!r}.")
        ids = self._ids_by_name()
        unknown = [name for name in names if name not in ids]
        if unknown:
            more = f" and {len(unknown) - 5} more" if len(unknown) > 5 else ""
            raise ValueError(
                f"The model has no labels {unknown[:5]}{more}; its `labels.txt` lists the {len(ids)} it has."
            )
        return [ids[name] for name in names]

    def _ids_by_name(self) -> dict[str, int]:
        names = self.model.label_names
        # Made once for as long as the model keeps its names.
        if getattr(self, "_named", None) is None or self._named[0] is not names:
            self._named = (names, {self._label_name(i): i for i in range(self.model.config.num_labels)})
        return self._named[1]

    def _label_name(self, label: int) -> str:
        names = self.model.label_names
        return f"LABEL_{label}" if names is None else names[label]

    def preprocess(
        self, text: str, windows: str | None = None, window_overlap: int | None = None
    ) -> list[dict[str, Tensor]]:
        """Tokens of the windows of a text, or of its start alone."""
        if not isinstance(text, str):
            raise ValueError(f"A text must be a string, got {type(text).__name__}: {text!r}.")
        text, max_length = readable_text(text), self.max_length
        # Experts count the whole text.
        whole = all_token_ids(self.tokenizer, [text])[0] if self.model.text_experts() else None
        if windows is not None and max_length is not None:
            tokens = text_windows(self.tokenizer, text, max_length, checked_overlap(window_overlap, max_length))
        elif whole is None:
            tokens = [text_start(self.tokenizer, text, max_length)]
        else:
            tokens = [self._text_starts(whole, max_length)]
        names = [name for name in ("input_ids", "token_type_ids") if name in tokens[0]]
        rows = [{name: torch.tensor(window[name]) for name in names} for window in tokens]
        # A text with nothing in it gets no labels.
        rows[0][_BLANK] = torch.tensor(not text.strip())
        if whole is not None and max_length is not None:
            for row in rows:
                # At least one, for texts without a token.
                row["text_ids"] = torch.tensor(whole or [_NO_TOKEN])
        return rows

    @cached_property
    def _text_starts(self) -> TextStarts:
        return TextStarts(self.tokenizer)

    def get_iterator(
        self, inputs: Any, num_workers: int, batch_size: int, *options_of_stages: dict[str, Any]
    ) -> PipelineIterator:
        preprocess, forward, postprocess = options_of_stages
        # As the base class does it, but for batches: a text may have several rows of tokens.
        dataset_class = PipelineDataset if isinstance(inputs, Sized) else PipelineIterator
        dataset = dataset_class(inputs, self.preprocess, preprocess)
        loader = DataLoader(dataset, num_workers=num_workers, batch_size=batch_size, collate_fn=list)
        outputs = PipelineIterator(loader, self.forward, forward, loader_batch_size=batch_size)
        return PipelineIterator(outputs, self.postprocess, postprocess)

    def run_single(self, inputs: str, *options_of_stages: dict[str, Any]) -> list[dict[str, Any]]:
        preprocess, forward, postprocess = options_of_stages
        return self.postprocess(self.forward([self.preprocess(inputs, **preprocess)], **forward), **postprocess)

    def get_inference_context(self) -> Any:
        # FSDP, which adds this method, counts versions of weights, which inference mode does not.
        return torch.no_grad if hasattr(self.model, "reshard") else torch.inference_mode

    def forward(self, *args: Any, **options: Any) -> Any:
        # Between two epochs a model that is trained further may be in training mode.
        with evaluation_mode(self.model):
            return super().forward(*args, **options)

    def _forward(
        self,
        texts: list[list[dict[str, Tensor]]],
        top_k: int | None = None,
        candidate_ids: list[int] | None = None,
        branch_scores: bool = False,
        windows: str | None = None,
        open_end: bool = False,
    ) -> dict[str, Tensor]:
        """Ids and scores of the best labels of each text, and those of branches, from the tokens of its windows."""
        counts, rows = [len(text) for text in texts], [window for text in texts for window in text]
        blank = torch.stack([text[0].pop(_BLANK) for text in texts])  # (texts,)
        fields = {name: _padded([row[name] for row in rows], _NO_TOKEN * (name == "text_ids")) for name in rows[0]}
        fields["attention_mask"] = _padded([torch.ones_like(row["input_ids"]) for row in rows])
        if top_k is None:
            shortlist = getattr(self.model.config, "shortlist", None) or _MOST_LABELS
            top_k = min(_MOST_LABELS, shortlist) if open_end else self.model.config.top_k
        if candidate_ids is not None:
            candidate_ids = torch.tensor(candidate_ids, device=self.model.device).unique()  # in order
        if max(counts) > 1:
            found = best_of_windows(self.model, fields, counts, windows, top_k, candidate_ids)
            return {"ids": found.ids, "scores": found.scores, "branches": found.branch_scores, _BLANK: blank}
        scores = self.model(**fields, output_logits=False, output_scores=True).scores
        best = scores.best(top_k, candidate_ids)
        outputs = {"ids": best.ids, "scores": best.logits.sigmoid(), _BLANK: blank}  # (texts, top_k)
        if branch_scores:
            logits = [branch.chosen(best.ids) for branch in scores.branches.values()]
            outputs["branches"] = torch.stack(logits, dim=-1).sigmoid()  # (texts, top_k, branches)
        return outputs

    def postprocess(
        self, outputs: dict[str, Tensor], threshold: float = 0.0, branch_scores: bool = False
    ) -> list[dict[str, Any]]:
        """Names and scores of the best labels of one text."""
        if not outputs["scores"].isfinite().all():
            raise ValueError("Scores of the model are not finite: its weights or its config.json are damaged.")
        rows = [
            {"label": self._label_name(label), "score": score}
            for label, score in zip(outputs["ids"][0].tolist(), outputs["scores"][0].tolist(), strict=True)
            if score >= threshold and not outputs[_BLANK]
        ]
        if branch_scores:
            # Those left out are the last.
            for row, values in zip(rows, outputs["branches"][0].tolist(), strict=False):
                row["branch_scores"] = dict(zip(self.model.branch_names, values, strict=True))
        return rows


def _padded(rows: list[Tensor], padding: int = 0) -> Tensor:
    """Rows of tokens as one tensor."""
    return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=padding)
