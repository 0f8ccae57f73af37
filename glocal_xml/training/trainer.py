"""Trainer with per-module learning rates that ranks labels before it gathers and reports every branch."""

import logging
from collections.abc import Sized
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import HfApi
from torch import nn
from torch.utils.data import Sampler, SequentialSampler
from transformers import EarlyStoppingCallback, EvalPrediction, PrinterCallback, ProgressCallback, Trainer
from transformers.trainer import TRAINING_ARGS_NAME
from transformers.trainer_pt_utils import LengthGroupedSampler
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, rotate_checkpoints

from glocal_xml.data import LabelSpace, XMTCCollator
from glocal_xml.hub.published_files import commit_operations, memory_notice, published_files, regular_file
from glocal_xml.hub.run_files import CARD_FILE
from glocal_xml.loading.load_checks import check_finite
from glocal_xml.modeling import XMTCPreTrainedModel

from .arguments import XMTCTrainingArguments, check_processes
from .batches import WINDOW_COUNTS, GroupedByLength, WindowCollator, rank_windows
from .callbacks import EpochStarter, RunReporter, TimeBudget, TrainingFacts
from .collapse import CollapseWatch
from .optimizer import clip_gradients, create_optimizer
from .rankings import FINAL, branch_metrics, final_name, rankings, settle_ranks
from .run_facts import write_trainer_card
from .whole_checkpoints import check_loss, write_manifest

logger = logging.getLogger(__name__)


class XMTCTrainer(Trainer):
    """
    Transformers' `Trainer` for models of this package.

    Args:
        label_space (`LabelSpace`): Names, training counts and bands of the labels, for metrics and checkpoints.
        windows (`str`, *optional*): Where texts to evaluate come in windows (`tokens_of_run`): whether the `"max"`
            or the `"mean"` over them scores a text.
        time_budget (`TimeBudget`, *optional*): Ends training when a time is over.
        kwargs: As for `Trainer`; `args` must be `XMTCTrainingArguments` and `processing_class` the tokenizer.
    """

    def __init__(
        self,
        *,
        args: XMTCTrainingArguments,
        label_space: LabelSpace,
        windows: str | None = None,
        time_budget: TimeBudget | None = None,
        **kwargs: Any,
    ):
        if args is not None and not isinstance(args, XMTCTrainingArguments):
            raise ValueError(f"`args` must be `XMTCTrainingArguments`, got `{type(args).__name__}`.")
        if kwargs.pop("compute_metrics", None) is not None:
            raise ValueError(
                "`XMTCTrainer` has metrics of its own, at `args.metrics_at`, and never holds scores of all labels: "
                "leave `compute_metrics` out, or use Transformers' `Trainer` with an `XMTCCollator`."
            )
        self.label_space, self.windows, self.time_budget = label_space, windows, time_budget
        if windows is not None:
            # No argument of a model is called so, and Trainer would drop them.
            args.remove_unused_columns = False
        # With `model_init` there is none yet.
        if kwargs.get("model") is not None:
            self._take_model(kwargs["model"], args)
        settle_ranks(args, label_space)
        if kwargs.get("data_collator") is None:
            if kwargs.get("processing_class") is None:
                raise ValueError("`processing_class`, the tokenizer, is missing: pass it, or a `data_collator`.")
            collator = XMTCCollator if windows is None else WindowCollator
            kwargs["data_collator"] = collator(kwargs["processing_class"])
        super().__init__(args=args, compute_metrics=self._metrics, **kwargs)
        # These two print all metrics of all branches and bands as one dictionary.
        self.remove_callback(ProgressCallback)
        self.remove_callback(PrinterCallback)
        if time_budget is not None:
            # Before the bar, which is as long as the time.
            self.add_callback(time_budget)
        self.add_callback(RunReporter(args.metrics_at, final_name(self.model), time_budget))
        self.add_callback(EpochStarter())
        self.training_facts = TrainingFacts()
        self.add_callback(self.training_facts)
        # What a whole run knows, where this is part of one.
        self.run_results: dict[str, Any] | None = None
        # Sums of the terms of the loss, and of how many batches, since the last log.
        self._loss_terms: dict[str, torch.Tensor] = {}
        self._loss_batches = 0
        if args.early_stopping_patience is not None:
            self.add_callback(EarlyStoppingCallback(args.early_stopping_patience))

    def _take_model(self, model: XMTCPreTrainedModel, args: XMTCTrainingArguments) -> None:
        """Refuses a model that cannot be trained here, and watches over any other."""
        if getattr(model, "is_distributed_loading_by_transformers", False):
            # Accelerate refuses them on CPUs; and Trainer would evaluate every text once per process, and keep the
            # optimiser states of the first process alone.
            raise ValueError(
                "The model is split over processes, which this trainer cannot train; use "
                "`examples/run_xmtc_no_trainer.py --label_shards`, or load it without `distributed_config`."
            )
        check_processes(model.config, args.world_size)
        # Without what PEFT puts around it.
        own = model.get_base_model() if hasattr(model, "get_base_model") else model
        names, known = self.label_space.names, own.label_names
        if own.config.num_labels != len(names) or (known is not None and known != names):
            # It is saved beside the weights, whose labels would have wrong names.
            raise ValueError(
                f"`label_space` has the {len(names)} labels {names[:3]} …, the model {own.config.num_labels}"
                f"{'' if known is None else f', {known[:3]} …'}: pass `label_names=label_space.names` to "
                "`from_encoder`, or `LabelSpace.load` of the folder of the model."
            )
        self.collapse_watch = CollapseWatch(self.label_space, args, own)

    def call_model_init(self, trial: Any = None) -> nn.Module:
        """A new model of `model_init`: one for each training, and for each trial of a `hyperparameter_search`."""
        model = super().call_model_init(trial)
        self._take_model(model, self.args)
        return model

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None) -> Any:
        if self.time_budget is not None and self.lr_scheduler is None:
            self.lr_scheduler = self.time_budget.scheduler(self.optimizer if optimizer is None else optimizer)
        return super().create_scheduler(num_training_steps, optimizer)

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        if self.optimizer is None:
            model = self.model if model is None else model
            self.optimizer = create_optimizer(model, self.args, self.get_decay_parameter_names(model))
        return self.optimizer

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, torch.Tensor], return_outputs: bool = False, **kwargs: Any
    ) -> Any:
        """The loss as `Trainer` has it; in training the terms it consists of are kept for the log."""
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **kwargs)
        if model.training:
            self._loss_batches += 1
            for name, term in outputs["loss_terms"].items():
                # Several GPUs of one process bring a value each.
                self._loss_terms[name] = self._loss_terms.get(name, 0.0) + term.mean()
        return (loss, outputs) if return_outputs else loss

    def training_step(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> torch.Tensor:
        """As `Trainer` has it; a loss that is not finite ends training, since no later one would be."""
        loss = super().training_step(model, inputs, *args, **kwargs)
        check_loss(loss, self.state.global_step + 1, self.args.output_dir)
        return loss

    # These two: Trainer clips by a function that does not take sparse gradients, and nothing public replaces it.
    def _clip_grad_norm(self, model: nn.Module) -> torch.Tensor:
        return self._clip(model, self.args.max_grad_norm)

    def _get_grad_norm(self, model: nn.Module, grad_norm: torch.Tensor | None = None) -> Any:
        return super()._get_grad_norm(model, self._clip(model, float("inf")) if grad_norm is None else grad_norm)

    def _clip(self, model: nn.Module, max_norm: float) -> torch.Tensor:
        # These two wrap models so that they have to do it themselves.
        if self.is_deepspeed_enabled or self.is_fsdp_enabled:
            return self.accelerator.clip_grad_norm_(model.parameters(), max_norm)
        self.accelerator.unscale_gradients()
        return clip_gradients(model.parameters(), max_norm)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Logs, and beside the loss of the last steps the mean of each of its terms (those of this process)."""
        if "loss" in logs:
            if len(self._loss_terms) > 1:
                terms = self._loss_terms.items()
                logs = logs | {f"{name}_loss": (total / self._loss_batches).item() for name, total in terms}
            self._loss_terms, self._loss_batches = {}, 0
        super().log(logs, start_time)

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler | None:
        # There is no public way to choose the order of texts.
        sampler = super()._get_train_sampler(train_dataset)
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        return GroupedByLength(sampler, seed) if isinstance(sampler, LengthGroupedSampler) else sampler

    def _get_eval_sampler(self, eval_dataset: Any) -> Sampler | None:
        # Transformers would group evaluation texts by length too, and predictions must stay beside their texts.
        if self.args.world_size > 1 or not isinstance(eval_dataset, Sized):
            return None
        return SequentialSampler(eval_dataset)

    @torch.no_grad()
    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, torch.Tensor],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[torch.Tensor | None, dict[str, torch.Tensor] | None, torch.Tensor | None]:
        """Best labels of a batch, final and per branch, instead of scores over all labels."""
        # As in the method of `Trainer` that this replaces; nothing public brings a batch to the device.
        inputs = dict(self._prepare_inputs(inputs))
        labels = inputs.get("labels")
        if labels is not None:
            inputs["labels"] = known_labels(labels, self.label_space.num_labels)
        top_k = max(*self.args.metrics_at, self.model.config.top_k)
        with self.compute_loss_context_manager():
            if WINDOW_COUNTS in inputs:
                return None, rank_windows(self.model, inputs, self.windows, top_k), labels
            outputs = model(**inputs, top_k=top_k, output_logits=False)
        if outputs.loss is not None and self.train_dataset is not None:
            check_loss(outputs.loss, self.state.global_step, self.args.output_dir)
        if prediction_loss_only:
            return outputs.loss, None, None
        return outputs.loss, rankings(self.model, outputs), labels

    def _metrics(self, evaluation: EvalPrediction) -> dict[str, float]:
        if self.is_in_train:
            best = evaluation.predictions[FINAL]
            self.collapse_watch.look(best, evaluation.label_ids, self.state.epoch or 0.0)
        return branch_metrics(evaluation.predictions, evaluation.label_ids, self.label_space, self.args)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """As `Trainer` does it, but never to the Hub: `push_to_hub` is for that, when results are known."""
        super().save_model(output_dir, _internal_call=True)

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        check_finite(self.model)
        super()._save(output_dir, state_dict)
        output_dir = self.args.output_dir if output_dir is None else output_dir
        # A pickle of all arguments, the token for the Hub among them, which nothing reads.
        Path(output_dir, TRAINING_ARGS_NAME).unlink(missing_ok=True)
        # With its label space a checkpoint can be evaluated and trained further on its own.
        self.label_space.save(output_dir)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        # Older checkpoints are deleted when this one is known to be whole, and not before.
        limit, self.args.save_total_limit = self.args.save_total_limit, None
        try:
            super()._save_checkpoint(model, trial)
        finally:
            self.args.save_total_limit = limit
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            # Nothing public says where checkpoints of a trial are.
            folder = self._get_output_dir(trial=trial)
            write_manifest(Path(folder, f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"))
            best = self.state.best_model_checkpoint
            rotate_checkpoints(folder, save_total_limit=limit, best_model_checkpoint=best, use_mtime=True)

    def create_model_card(
        self,
        language: str | None = None,
        license: str | None = None,
        tags: str | list[str] | None = None,
        model_name: str | None = None,
        finetuned_from: str | None = None,
        dataset: str | list[str] | None = None,
    ) -> None:
        """Writes `results.json` and a card made of it, unless its place is taken by one that a person wrote."""
        if self.is_world_process_zero():
            tags, datasets = ([given] if isinstance(given, str) else given for given in (tags, dataset))
            facts = {"language": language, "license": license, "base_model": finetuned_from, "datasets": datasets}
            write_trainer_card(self, model_name, tags or [], **facts)

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """As `Trainer` does it, in one commit without predictions, pickled arguments and checkpoints."""
        token = self.args.hub_token if token is None else token
        if self.hub_model_id is None:
            self.init_hf_repo(token=token)
        self.save_model()
        if not self.is_world_process_zero():
            return None
        self.create_model_card(**kwargs)
        files = published_files(self.args.output_dir) | {CARD_FILE: regular_file(self.args.output_dir, CARD_FILE)}
        revision = self.args.hub_revision if revision is None else revision
        if (notice := memory_notice(files)) is not None:
            logger.warning(notice)
        api = HfApi(token=token)
        known = api.list_repo_files(self.hub_model_id, revision=revision)
        # One form for each value of `run_as_future`.
        return api.create_commit(  # type: ignore[call-overload]
            self.hub_model_id,
            commit_operations(files, known),
            commit_message=commit_message,
            revision=revision,
            run_as_future=not blocking,
        )


def known_labels(labels: torch.Tensor, num_labels: int) -> torch.Tensor:
    """Padded label ids without those that the model was not built for; metrics still count these as misses."""
    return labels.masked_fill(labels >= num_labels, -100)
