"""The experts of a run: fitted on its training texts, and once more with those that were held out."""

import json
import logging
import os
import time
from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import PreTrainedTokenizerBase

from glocal_xml.data import LabelSpace
from glocal_xml.data.text_files import read_strict_lines
from glocal_xml.experts import (
    Embedded,
    ExpertTexts,
    add_to_dense,
    embed,
    fit_experts,
    learn_texts,
    name_texts,
    texts_in_memory,
)
from glocal_xml.experts.choose import choose_lexical_settings, default_lexical_settings
from glocal_xml.modeling import XMTCPreTrainedModel
from glocal_xml.modeling.experts import DENSE, LEXICAL, Blend
from glocal_xml.training.arguments import DataArguments, ModelArguments, XMTCTrainingArguments
from glocal_xml.training.frozen_encoder import train_on_embeddings

from .token_columns import whole_rows, with_whole_texts

logger = logging.getLogger(__name__)

# Of the training texts, where nothing is said: enough to fit a handful of weights, and to judge the result.
_HELD_OUT, _LEAST_HELD_OUT, _MOST_HELD_OUT = 0.1, 50, 1000
# Fitted weights are worth more than half of so few texts, which the experts learn afterwards.
_LEAST_TEXTS = 100
# Texts that are looked up to tell whether a model knows the training texts.
_LOOKED_UP = 200
# From so many minutes on there is time to choose settings of the lexical expert.
_LONG_BUDGET = 15


def held_out_texts(num_texts: int, has_blend: bool = False) -> int | None:
    """
    How many training texts a run holds out for the blend; `None` where there are too few to spare any. A model that
    is trained further keeps the blend that it has, unless a tenth of the new texts is enough for another.
    """
    if num_texts < (_LEAST_HELD_OUT / _HELD_OUT if has_blend else _LEAST_TEXTS):
        return None
    return int(min(max(num_texts * _HELD_OUT, _LEAST_HELD_OUT), _MOST_HELD_OUT))


class RunExperts:
    """
    The experts of one run, fitted on its texts. Training of the heads has no use for them: fit them after it. Those of
    `fit` can also be fitted before, as a time budget wants it; `fit_dense` needs the trained encoder.

    Args:
        model_args, data_args: Which `experts` to fit, and whether names of labels are texts too.
        args: The folder of the run, and its processes: the first fits the experts, the others read what it wrote.
        texts, label_space, tokenizer: As [`load_data`] gives them.
    """

    def __init__(
        self,
        model_args: ModelArguments,
        data_args: DataArguments,
        args: XMTCTrainingArguments,
        texts: dict[str, Any],
        label_space: LabelSpace,
        tokenizer: PreTrainedTokenizerBase,
    ):
        self.names, self.has_new_encoder = list(model_args.experts), model_args.encoder is not None
        self.args, self.texts, self.label_space, self.tokenizer = args, texts, label_space, tokenizer
        self.descriptions = read_label_texts(data_args.label_texts_file)
        self.uses_names = data_args.label_texts
        self.settings: dict[str, Any] = {}
        self.seconds, self.are_fitted = 0.0, False
        self._embedded: Embedded | None = None

    @cached_property
    def _train(self) -> ExpertTexts:
        train = with_whole_texts(self.texts["train"], self.tokenizer)
        rows, names = whole_rows(train), ([], [])
        if self.uses_names:
            names = name_texts(self.label_space.names, self.tokenizer, rows, self.descriptions)
        return ExpertTexts(rows, list(train["labels"]), *names)

    def fit(self, model: XMTCPreTrainedModel) -> None:
        """Fits the lexical expert and the memory of words on the training texts and gives them to the model."""
        self.are_fitted = bool(self.names)
        if not self._words:
            return
        started = time.time()
        if self._train.name_rows:
            logger.info("label names: %d of them are training texts of the experts", len(self._train.name_rows))
        num_labels = self.label_space.num_labels
        self.settings = default_lexical_settings(self._train, num_labels)
        # The trial takes up to a minute.
        has_time = self.args.minutes is None or self.args.minutes >= _LONG_BUDGET
        if LEXICAL in self.names and "validation" in self.texts and has_time:
            self.settings = choose_lexical_settings(self._train, self._held_out, num_labels, len(self.tokenizer))
        settled = time.time()
        self._fit(model, self._train)
        # What a second fit will take: settings are chosen once.
        self.seconds = time.time() - settled
        passed = time.time() - started
        logger.info("experts: %s fitted on %d texts in %.0f s", ", ".join(self._words), len(self._train.rows), passed)

    def train_heads(self, model: XMTCPreTrainedModel, seconds: float | None = None) -> dict[str, Any]:
        """
        Makes embeddings of the training texts and of names of labels, of a random part of the texts where there are
        not enough `seconds` for all, and trains the head of a model on them ([`train_on_embeddings`]); the dense
        memory then takes the same embeddings. Returns what `results.json` tells of the training.
        """
        started = time.monotonic()
        # Most of the time goes into embeddings.
        for_texts = None if seconds is None else 0.8 * seconds
        self._embedded = embed(model, self._train, self.tokenizer, seconds=for_texts, **self._shown)
        passed, number = time.monotonic() - started, int((self._embedded.numbers >= 0).sum())
        logger.info("embeddings: %d of %d texts in %.0f s", number, len(self._train.rows), passed)
        left = None if seconds is None else seconds - passed
        data, seed = (self._embedded.embeddings, self._embedded.labels), self.args.seed
        facts = train_on_embeddings(model, *data, num_texts=number, seed=seed, seconds=left, **self._shown)
        logger.info("head: %g epochs over embeddings in %.0f s", facts["epochs"], facts["seconds"])
        return facts

    def fit_dense(self, model: XMTCPreTrainedModel, seconds: float | None = None) -> None:
        """
        Gives the model the document embeddings of the training texts, as its trained encoder makes them now, where
        `dense` is among the experts; of a random part of them where there are not enough `seconds` for all. Those that
        a model brings from earlier training stay.
        """
        if DENSE not in self.names or model.encoder is None:
            return
        started = time.time()
        # The memory of a model that is trained further has these texts as its last.
        first = None if model.memory is None else int(model.memory.text_numbers.max()) + 1 - len(self._train.rows)
        options: dict[str, Any] = {"seconds": seconds, "embedded": self._embedded, **self._shown}
        # A memory that a model brings has the names of labels already.
        texts = self._train if model.dense is None else ExpertTexts(self._train.rows, self._train.labels)
        self._add_to_dense(model, texts, first=0 if self.are_fitted else first, **options)
        logger.info("dense memory: %d texts in %.0f s", model.config.dense["texts"], time.time() - started)

    def take_over(self, model: XMTCPreTrainedModel) -> None:
        """
        Experts of a model that is trained further learn the training texts (`learn_texts`). Where most of these are in
        the memory already, which then knows those that are held out too, and are at least half of those that it holds,
        all experts are fitted anew.
        """
        # A new encoder brings a dense memory with it.
        gets_dense = model.dense is not None or (self.has_new_encoder and DENSE in self.names)
        self.names = [*(name for name in model.text_experts() if name != DENSE), *([DENSE] if gets_dense else [])]
        if model.memory is None:
            if model.lexical is not None and "validation" in self.texts:
                logger.warning(
                    "Without a memory the model cannot tell whether its lexical expert was fitted on the held-out "
                    "texts: if it was, the blend trusts it too much. Use texts that the model has not seen."
                )
            return
        rows, labels = whole_rows(self.texts["train"]), self.texts["train"]["labels"][:]
        known = texts_in_memory(model, rows[:_LOOKED_UP]).mean()
        # Experts that are fitted on a small part of their texts would forget the others.
        if known > 0.5 and len(rows) >= 0.5 * int((model.memory.text_numbers >= 0).sum()):
            model.set_expert(DENSE, None, None)
            self.fit(model)
            return
        if "validation" in self.texts:
            new = np.flatnonzero(~texts_in_memory(model, whole_rows(self.texts["validation"])))
            part = self.texts.pop("validation").select(new)
            if len(new):
                self.texts["validation"] = part
        replaced = learn_texts(model, rows, labels)
        logger.info("memory: %d texts added, in place of %d that it held of them", len(rows), replaced)

    def refit(self, model: XMTCPreTrainedModel) -> None:
        """Fits the experts once more, on training and validation texts, unless `refit_experts` is off."""
        if "validation" not in self.texts or not self.args.refit_experts or not self.are_fitted:
            return
        self._fit(model, self._train.with_texts(self._held_out))
        if model.dense is not None:
            self._add_to_dense(model, self._held_out, first=len(self._train.rows))
        logger.info("experts: fitted again with the %d held-out texts", len(self.texts["validation"]))

    @cached_property
    def _held_out(self) -> ExpertTexts:
        part = self.texts["validation"]
        known = [[label for label in ids if label < self.label_space.num_labels] for ids in part["labels"]]
        return ExpertTexts(whole_rows(part), known)

    @property
    def _words(self) -> list[str]:
        """The experts that need no encoder."""
        return [name for name in self.names if name != DENSE]

    @property
    def _shown(self) -> dict[str, Any]:
        return {"show_progress": not self.args.disable_tqdm}

    def _fit(self, model: XMTCPreTrainedModel, texts: ExpertTexts) -> None:
        options = {**self._shown, **self.settings}
        fit = partial(fit_experts, model, texts, self.tokenizer, self._words, **options)
        self._in_first_process(model, self._words, fit)

    def _add_to_dense(self, model: XMTCPreTrainedModel, texts: ExpertTexts, **options: Any) -> None:
        self._in_first_process(model, [DENSE], partial(add_to_dense, model, texts, self.tokenizer, **options))

    def _in_first_process(self, model: XMTCPreTrainedModel, names: list[str], fit: Callable[[], None]) -> None:
        """All processes have the same experts: the first fits them, the others read what it wrote."""
        if self.args.world_size == 1:
            fit()
            return
        path = Path(self.args.output_dir, "experts.safetensors")
        with self.args.main_process_first(desc="experts"):
            if self.args.process_index == 0:
                fit()
                path.parent.mkdir(parents=True, exist_ok=True)
                _save_experts(model, names, path)
            else:
                _load_experts(model, path)
        self.args.distributed_state.wait_for_everyone()
        if self.args.process_index == 0:
            os.unlink(path)


def _save_experts(model: XMTCPreTrainedModel, names: list[str], path: Path) -> None:
    """Writes experts of a model with their sizes."""
    tensors = {f"{name}.{key}": value for name in names for key, value in getattr(model, name).state_dict().items()}
    sizes = {name: json.dumps(getattr(model.config, name)) for name in names}
    save_file({name: value.contiguous().cpu() for name, value in tensors.items()}, path, metadata=sizes)


def _load_experts(model: XMTCPreTrainedModel, path: Path) -> None:
    with safe_open(path, framework="pt") as file:
        for name, sizes in file.metadata().items():
            sizes = json.loads(sizes)
            expert = Blend.experts[name](model.config.num_labels, **sizes)
            expert.load_state_dict({key: file.get_tensor(f"{name}.{key}") for key in expert.state_dict()})
            model.set_expert(name, expert, sizes)


def read_label_texts(path: str | None) -> dict[str, list[str]] | None:
    """Names of labels in words from a table: label, name and, separated by semicolons or further columns, others."""
    if path is None:
        return None
    names: dict[str, list[str]] = {}
    for number, line in read_strict_lines(path):
        label, *cells = line.split("\t")
        if not cells:
            raise ValueError(f"{path}, line {number}: there must be a tab between a label and its name.")
        # Further columns, such as broader labels, are no names.
        names[label] = [name.strip() for cell in cells[:2] for name in cell.split(";") if name.strip()]
    return names
