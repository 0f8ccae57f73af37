"""What every family shares: the encoder with chosen layers, prediction over label chunks, and label names on disk."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import AutoModel, PreTrainedModel
from transformers import initialization as init
from transformers.utils import ModelOutput

from .configuration_base import XMTCConfig, make_config
from .input_checks import check_inputs, check_label_ids, position_limit
from .label_attention import LabelAttention
from .label_names import check_label_names, find_label_names, write_label_names
from .label_ranking import RunningTopK
from .label_scorer import label_chunks
from .losses import binary_cross_entropy_sum


@dataclass
class XMTCOutput(ModelOutput):
    """
    What a model for extreme multi-label text classification returns.

    Args:
        loss (`torch.Tensor`, *optional*): Training loss, when labels are given.
        logits (`torch.Tensor` of shape `(texts, labels)`, *optional*): Their sigmoid is the final probability.
        top_k_ids (`torch.Tensor` of shape `(texts, top_k)`, *optional*): Best labels, best first, lower id on a tie.
        top_k_scores (`torch.Tensor` of shape `(texts, top_k)`, *optional*): Final probabilities of these labels.
        branch_top_k_ids (`dict[str, torch.Tensor]`, *optional*): Best labels of each branch on its own.
    """

    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    top_k_ids: torch.Tensor | None = None
    top_k_scores: torch.Tensor | None = None
    branch_top_k_ids: dict[str, torch.Tensor] | None = None


class EncodedTexts(NamedTuple):
    """Token states of a batch with the attended tokens of every text moved to the front."""

    last_hidden_state: torch.Tensor  # (texts, tokens, hidden)
    layer_hidden_state: torch.Tensor | None  # (texts, tokens, hidden)
    attention_mask: torch.Tensor  # (texts, tokens)
    order: torch.Tensor  # (texts, tokens), where each token stood in the input


class XMTCPreTrainedModel(PreTrainedModel):
    """
    Base of all families. A family defines `text_features` (tokens to what its heads read), `branch_logits` (features
    to one logit per label and branch) and `forward`; prediction in label chunks and label names come from here.
    """

    config_class = XMTCConfig
    base_model_prefix = "encoder"
    main_input_name = "input_ids"
    # Trainer would otherwise multiply the loss by the number of accumulation steps.
    accepts_loss_kwargs = False
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True

    def __init__(self, config: XMTCConfig, encoder: PreTrainedModel | None = None):
        super().__init__(config)
        self.encoder = AutoModel.from_config(config.encoder) if encoder is None else encoder
        # No family reads it, and a parameter without a gradient stops data-parallel training.
        if getattr(self.encoder, "pooler", None) is not None:
            self.encoder.pooler = None
        self.label_names: list[str] | None = None

    @classmethod
    def from_encoder(
        cls,
        encoder_name_or_path: str | os.PathLike,
        *,
        num_labels: int | None = None,
        label_names: list[str] | None = None,
        encoder_options: dict[str, Any] | None = None,
        **config_fields: Any,
    ) -> "XMTCPreTrainedModel":
        """
        Starts a model from a pretrained encoder, with fresh heads.

        Args:
            encoder_name_or_path: Folder or Hub id of any encoder that `AutoModel` loads.
            num_labels: Size of the label space; may be left out when `label_names` is given.
            label_names: Names of the labels, in the order of their ids; they travel with the weights.
            encoder_options: Passed on to `AutoModel.from_pretrained`, such as `revision` or `token`.
            config_fields: Fields of the configuration of this family.
        """
        if num_labels is None and label_names is None:
            raise ValueError("`num_labels` is missing: pass it, or pass `label_names`.")
        # Checkpoints in half precision would otherwise be trained in it.
        options = {"dtype": torch.float32, **(encoder_options or {})}
        try:
            encoder = AutoModel.from_pretrained(encoder_name_or_path, **options)
        except TypeError as error:
            raise ValueError(f"The encoder does not take the options {encoder_options}: {error}.") from error
        config = make_config(
            cls.config_class,
            config_fields,
            # A copy: the composite would reset the attention implementation of the live object.
            encoder=encoder.config.to_dict(),
            attn_implementation=encoder.config._attn_implementation,
            num_labels=len(label_names) if num_labels is None else num_labels,
            # Trainer compares them with the tokenizer's.
            **{name: getattr(encoder.config, name, None) for name in ("pad_token_id", "bos_token_id", "eos_token_id")},
        )
        model = cls(config, encoder=encoder)
        model.encoder.config = config.encoder
        model.set_label_names(label_names)
        return model

    @torch.no_grad()
    def _init_weights(self, module: nn.Module):
        super()._init_weights(module)
        if isinstance(module, LabelAttention):
            # With 0.02 throughout, keys and values are so small that the attention stays flat for an epoch.
            for linear in (module.key, module.value, module.mlp_hidden, module.mlp_output):
                init.xavier_uniform_(linear.weight)
            if module.label_bias is not None:
                init.zeros_(module.label_bias)

    def set_label_names(self, label_names: list[str] | None) -> None:
        """Names the labels; the names are saved with the weights."""
        if label_names is not None:
            if len(label_names) != self.config.num_labels:
                raise ValueError(f"{len(label_names)} label names for a model of {self.config.num_labels} labels.")
            check_label_names(label_names)
        self.label_names = None if label_names is None else list(label_names)

    @torch.no_grad()
    def start_label_bias(self, log_odds: torch.Tensor) -> None:
        """Starts the bias of every label at its training log-odds (`LabelSpace.log_odds`)."""
        heads = [module for module in self.modules() if getattr(module, "label_bias", None) is not None]
        if not heads:
            raise ValueError("This model has no label bias: build it with `label_bias=True`.")
        for head in heads:
            head.label_bias.copy_(torch.as_tensor(log_odds))

    def encode(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        layer: int | None = None,
    ) -> EncodedTexts:
        """Runs the encoder and keeps the last layer and, where asked for, one other (0 is the embedding output)."""
        attention_mask = check_inputs(input_ids, attention_mask, position_limit(self.encoder))
        # Many encoders count positions from the first column, padding or not: attended tokens go to the front.
        order = attention_mask.ne(0).int().argsort(dim=1, descending=True, stable=True)
        inputs = {"input_ids": input_ids.gather(1, order), "attention_mask": attention_mask.gather(1, order)}
        if token_type_ids is not None:
            inputs["token_type_ids"] = token_type_ids.gather(1, order)
        if self.config.encoder.model_type == "xlnet":
            inputs["use_mems"] = False
        if layer is None or layer == self.config.num_hidden_layers:
            last = self.encoder(**inputs).last_hidden_state
            return EncodedTexts(last, last, inputs["attention_mask"], order)
        # Encoders that record outputs can keep one layer (counted without the embeddings); others keep all of them.
        records = "hidden_states" in (getattr(type(self.encoder), "_can_record_outputs", None) or {})
        one_layer = records and layer > 0
        outputs = self.encoder(**inputs, output_hidden_states=[layer - 1] if one_layer else True)
        chosen = outputs.hidden_states[layer - 1 if one_layer else layer]
        return EncodedTexts(outputs.last_hidden_state, chosen, inputs["attention_mask"], order)

    def document_token(self, encoded: EncodedTexts) -> torch.Tensor:
        """State of the token that stands for the text: the first attended one, for XLNet the last."""
        if self.config.encoder.model_type != "xlnet":
            return encoded.last_hidden_state[:, 0]  # (texts, hidden)
        last = encoded.attention_mask.ne(0).sum(dim=1) - 1  # (texts,)
        return encoded.last_hidden_state[torch.arange(len(last), device=last.device), last]  # (texts, hidden)

    def text_features(self, *inputs: torch.Tensor | None) -> dict[str, tuple[torch.Tensor, ...]]:
        """What the head of each branch reads of a batch of texts."""
        raise NotImplementedError

    def branch_heads(self) -> dict[str, nn.Module]:
        """The head of each branch, by the name of the branch."""
        raise NotImplementedError

    def branch_logits(
        self, features: dict[str, tuple[torch.Tensor, ...]], label_ids: slice | torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Logits of each branch for a run of labels or for chosen ones; in single precision at least."""
        return {
            name: at_least_float(head.logits(features[name], label_ids)) for name, head in self.branch_heads().items()
        }

    def branch_loss(self, features: dict[str, tuple[torch.Tensor, ...]], labels: torch.Tensor) -> torch.Tensor:
        """Sum of the losses of the branches, each the mean over texts and labels."""
        return sum(head.loss(features[name], labels) for name, head in self.branch_heads().items())

    def scan_labels(
        self,
        features: dict[str, tuple[torch.Tensor, ...]],
        labels: torch.Tensor | None = None,
        top_k: int | None = None,
        output_logits: bool | None = None,
    ) -> XMTCOutput:
        """One pass over the labels, chunk by chunk: loss, best labels and, where wanted, all logits."""
        num_labels = self.config.num_labels
        if output_logits is None:
            output_logits = num_labels <= self.config.max_logits_labels
        top_k = self._check_top_k(top_k)
        heads = self.branch_heads()
        best, branch_best, kept, loss = RunningTopK(top_k), {name: RunningTopK(top_k) for name in heads}, [], None
        size = min(head.chunk_size(features[name]) for name, head in heads.items())
        for chunk in label_chunks(num_labels, size):
            logits = self.branch_logits(features, chunk)
            final = mean_probability_logits(list(logits.values()))  # (texts, labels of the chunk)
            best.update(final, chunk.start)
            for name, ranking in branch_best.items():
                ranking.update(logits[name], chunk.start)
            if labels is not None:
                part = sum(binary_cross_entropy_sum(scores, labels, chunk.start) for scores in logits.values())
                loss = part if loss is None else loss + part
            if output_logits:
                kept.append(final)
        return XMTCOutput(
            loss=None if loss is None else loss / (labels.shape[0] * num_labels),
            logits=torch.cat(kept, dim=1) if output_logits else None,
            top_k_ids=best.ids,
            top_k_scores=best.scores.sigmoid(),
            branch_top_k_ids={name: ranking.ids for name, ranking in branch_best.items()} if len(heads) > 1 else None,
        )

    @torch.no_grad()
    def predict_top_k(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        top_k: int | None = None,
    ) -> XMTCOutput:
        """The best labels of each text, in evaluation mode and without keeping all scores."""
        with evaluation_mode(self):
            features = self.text_features(input_ids, attention_mask, token_type_ids)
            return self.scan_labels(features, top_k=top_k, output_logits=False)

    @torch.no_grad()
    def score_labels(
        self,
        label_ids: torch.Tensor,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
    ) -> dict[str, torch.Tensor]:
        """
        Probabilities of chosen labels alone: `"final"` and one entry per branch, each of shape (texts, chosen).

        Args:
            label_ids: The same labels for every text, of shape (chosen,), or labels per text, (texts, chosen).
        """
        label_ids = check_label_ids(label_ids, self.config.num_labels, input_ids)
        with evaluation_mode(self):
            logits = self.branch_logits(self.text_features(input_ids, attention_mask, token_type_ids), label_ids)
        logits["final"] = mean_probability_logits(list(logits.values()))
        return {name: scores.sigmoid() for name, scores in logits.items()}

    def _check_top_k(self, top_k: int | None) -> int:
        top_k = self.config.top_k if top_k is None else top_k
        if top_k < 1:
            raise ValueError(f"`top_k` must be at least 1, got {top_k}.")
        return min(top_k, self.config.num_labels)

    def save_pretrained(self, save_directory: str | os.PathLike, is_main_process: bool = True, **kwargs: Any) -> Any:
        """Saves weights, configuration, code and label names so that `from_pretrained` finds all of them again."""
        if kwargs.get("push_to_hub"):
            # It uploads only what it wrote itself, which the label names are not.
            raise ValueError(
                "`save_pretrained(push_to_hub=True)` would leave out label names; use `push_to_hub(repo)`."
            )
        if is_main_process:
            # The code is saved under one Auto class; people also ask for the other.
            if self._auto_class is not None:
                code = f"{type(self).__module__.rsplit('.', 1)[-1]}.{type(self).__name__}"
                known = getattr(self.config, "auto_map", None) or {}
                self.config.auto_map = {**known, "AutoModelForSequenceClassification": code}
            if self.label_names is not None:
                write_label_names(save_directory, self.label_names)
        return super().save_pretrained(save_directory, is_main_process=is_main_process, **kwargs)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | os.PathLike, *args: Any, **kwargs: Any) -> Any:
        """Loads weights and configuration as everywhere in Transformers, and the label names beside them."""
        loaded = super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)
        model = loaded[0] if isinstance(loaded, tuple) else loaded
        names = find_label_names(pretrained_model_name_or_path, **kwargs)
        # A checkpoint loaded into another label space has no use for the old names.
        if names is not None and len(names) == model.config.num_labels:
            model.set_label_names(names)
        return loaded


def mean_probability_logits(logits: list[torch.Tensor]) -> torch.Tensor:
    """The logits whose sigmoid is the mean of the sigmoids of several; in log space, so that it never saturates."""
    if len(logits) == 1:
        return logits[0]
    stacked = torch.stack(logits)  # (branches, texts, labels)
    log_sigmoid = nn.functional.logsigmoid
    return log_sigmoid(stacked).logsumexp(dim=0) - log_sigmoid(-stacked).logsumexp(dim=0)


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Switches dropout off for a while."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def at_least_float(logits: torch.Tensor) -> torch.Tensor:
    """Half precision would make ties of close scores."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


__all__ = ["XMTCOutput", "XMTCPreTrainedModel"]
