"""What every family shares: how a model starts, is saved and loaded, and what it answers from its scores."""

import os
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import Pipeline, PreTrainedModel
from transformers import initialization as init
from transformers.dynamic_module_utils import custom_object_save

from .configuration_base import EXPERTS, LABELS_FILE, XMTCConfig, code_beside, find_label_names, write_label_names
from .encoder import EncodedTexts, attended_first, encode_texts, evaluation_mode, name_in_code, new_encoder, present
from .label_scores import MeanProbability, XMTCOutput, check_label_ids
from .linear_head import IdentityStart, Projection


class XMTCPreTrainedModel(PreTrainedModel):
    """
    Base of all families: a text encoder, heads over labels, and the names of the labels beside the weights.

    A family defines its `branch_heads`, the `layers` that they read, and a `forward` that answers from their scores:

    Args:
        input_ids: Token ids, of shape (texts, tokens).
        attention_mask: 1 for real tokens, 0 for padding on either side.
        token_type_ids: Passed on to the encoder, where given.
        labels: Ids of the positive labels, of shape (texts, most labels of a text), padded with -100.
        text_ids: Ids of all tokens of the whole text, of shape (texts, tokens), padded with -100: what the lexical and
            the memory expert count. By default `input_ids`, which may have been cut off.
        top_k: Number of labels to return in evaluation mode; the configuration's by default.
        output_logits: Whether to return the logits of all labels; by default in evaluation mode, up to
            `config.max_logits_labels` labels.
        candidate_ids: The only labels to score and rank, each once: the same for every text, (candidates,), or per
            text, (texts, candidates).
        output_scores: Whether to return the scores themselves ([`LabelScores`]) and no ranking.
        output_hidden_states, output_attentions: Whether to return those of all layers of the encoder.
        return_dict: Whether to return an [`XMTCOutput`], not a tuple; by default what the configuration says.
    """

    config_class = XMTCConfig
    base_model_prefix = "encoder"
    # Trainer would otherwise multiply the loss by the number of accumulation steps.
    accepts_loss_kwargs = False
    _supports_sdpa = _supports_flash_attn = _supports_flex_attn = _supports_attention_backend = True
    # Set by the package, or by code that came with a checkpoint: it travels only with models that use it.
    model_starter: ClassVar[Any] = None
    pipeline_class: ClassVar[type[Pipeline] | None] = None
    blend_class: ClassVar[type[MeanProbability] | None] = None
    tree_class: ClassVar[type[PreTrainedModel] | None] = None
    label_splitter: ClassVar[Any] = None
    load_checks: ClassVar[tuple[Any, Any]] = (lambda *_: None, lambda names, *_: names)

    def __new__(cls, config: XMTCConfig | None = None, *args: Any, **kwargs: Any) -> "XMTCPreTrainedModel":
        tree_class = cls.tree_class
        if not getattr(config, "tree_levels", None) or (tree_class is not None and issubclass(cls, tree_class)):
            return super().__new__(cls)
        return super().__new__(present(tree_class, "`tree_levels`"))

    def __init__(self, config: XMTCConfig, encoder: PreTrainedModel | None = None):
        super().__init__(config)
        # A model of experts alone has none.
        self.encoder = new_encoder(config.encoder) if encoder is None and config.encoder is not None else encoder
        self.supports_gradient_checkpointing = getattr(self.encoder, "supports_gradient_checkpointing", False)
        # No family reads its pooler, and a parameter without a gradient stops data-parallel training.
        if getattr(self.encoder, "pooler", None) is not None:
            self.encoder.pooler = None
        self.label_names: list[str] | None = config.given_label_names and config.name_labels(config.given_label_names)
        self.lexical = self.memory = self.dense = None
        for name in EXPERTS:
            if (sizes := getattr(config, name)) is not None:
                expert_class = present(self.blend_class, f"`{name}`").experts[name]
                setattr(self, name, expert_class(config.num_labels, **sizes))
        self.register_buffer("log_frequencies", None if config.blend is None else torch.zeros(config.num_labels))

    @torch.no_grad()
    def _init_weights(self, module: nn.Module):
        super()._init_weights(module)
        if isinstance(module, Projection):
            init.xavier_uniform_(module.weight)
        if isinstance(module, IdentityStart):
            # Random weights were behind in trials: for document experts, and for keys and values of evidence.
            init.eye_(module.weight)
        if getattr(module, "starts_unknown", False):
            # Loading starts from arbitrary memory: without this, what a checkpoint lacks would look known.
            for buffer in module.buffers(recurse=False):
                init.zeros_(buffer)

    @classmethod
    def maybe_distribute_model(cls, model: nn.Module, distributed_config: Any, mesh_manager: Any) -> nn.Module:
        if distributed_config is None or distributed_config.tp_size == 1:
            return super().maybe_distribute_model(model, distributed_config, mesh_manager)
        splitter = present(cls.label_splitter, "`tp_size`")
        splitter.prepare(model, distributed_config.tp_size)
        model = super().maybe_distribute_model(model, distributed_config, mesh_manager)
        return splitter.install(model, mesh_manager.get_mesh("tp").get_group())

    @classmethod
    def from_encoder(
        cls,
        encoder_name_or_path: str | os.PathLike | PreTrainedModel,
        *,
        num_labels: int | None = None,
        label_names: list[str] | None = None,
        encoder_options: dict[str, Any] | None = None,
        **config_fields: Any,
    ) -> "XMTCPreTrainedModel":
        """
        Starts a model from a pretrained encoder, with fresh heads.

        Args:
            encoder_name_or_path: Folder or Hub id of what `AutoModel` loads, or a model to copy; decoders of T5 and
                others are left out.
            num_labels: Size of the label space; not needed with `label_names`.
            label_names: Names of the labels, in the order of their ids; they travel with the weights.
            encoder_options: Passed on to `AutoModel.from_pretrained`, such as `revision` or `token`.
            config_fields: Fields of the configuration of this family.
        """
        start = present(cls.model_starter, "`from_encoder`")
        return start(cls, encoder_name_or_path, num_labels, label_names, encoder_options or {}, config_fields)

    def encode(self, layers: set[int], *inputs: Tensor | None, **answering: Any) -> EncodedTexts:
        """The token states of the given layers, and the checked labels, from what comes first in a `forward`."""
        options = (self.config.num_labels, self.config.document_pooling, self.config.recorded_outputs(answering))
        return encode_texts(self.encoder, layers, *inputs, *options)

    @torch.no_grad()
    def document_embeddings(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """What stands for each text in the highest layer that is read, (texts, hidden): the dense memory keeps it."""
        layer = max(self.layers)
        with evaluation_mode(self):
            return self.encode({layer}, input_ids, attention_mask, token_type_ids, None).document(layer)

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        """As everywhere in Transformers."""
        embeddings = self.encoder.resize_token_embeddings(*args, **kwargs)
        # What counts for a model that is loaded.
        self.config.vocab_size = self.vocab_size = embeddings.num_embeddings
        return embeddings

    def branch_heads(self) -> dict[str, nn.Module]:
        """The head of each branch, by the name of the branch."""
        raise NotImplementedError

    @property
    def branch_names(self) -> list[str]:
        """Names of the branches, in the order of outputs: the heads of the family, then the experts."""
        return [*self.branch_heads(), *self.text_experts()]

    def text_experts(self) -> dict[str, nn.Module]:
        """The experts beside the heads, by name."""
        return {name: expert for name in EXPERTS if (expert := getattr(self, name)) is not None}

    def set_expert(self, name: str, expert: nn.Module | None, sizes: dict[str, Any] | None) -> None:
        """Takes over one of the `EXPERTS`, and its sizes for the configuration; or takes it out."""
        setattr(self, name, None if expert is None else expert.to(self.device))
        setattr(self.config, name, sizes)

    def set_blend(self, blend: dict[str, Any] | None, log_frequencies: Tensor | None) -> None:
        """Takes over what was fitted on held-out texts: `weights` by branch, and the `threshold` for labels."""
        self.config.blend = blend
        self.log_frequencies = None if blend is None else torch.as_tensor(log_frequencies).to(self.device)

    @property
    def is_blended(self) -> bool:
        """Whether there are experts or a fitted blend."""
        return bool(self.text_experts()) or self.config.blend is not None

    def start_label_bias(self, log_odds: Tensor) -> None:
        """Starts the bias of every label at its training log-odds (`LabelSpace.log_odds`)."""
        self.config.check_label_bias()
        for head in self.branch_heads().values():
            head.label_embeddings.start_biases(torch.as_tensor(log_odds))

    def set_label_counts(self, label_counts: Sequence[int] | Tensor) -> None:
        """Tells the model how many training texts each label has; families that need it keep it with the weights."""

    def set_label_tree(self, child_starts: Sequence[Tensor], label_order: Tensor) -> None:
        """Takes over a label tree; only models that were built for one have a use for it."""
        raise ValueError("This model scores every label: build it with `tree_levels=tree.level_sizes`.")

    def start_epoch(self, epoch: int) -> None:
        """Tells the model that an epoch of training begins, the first being 0; some losses change with it."""

    @torch.compiler.disable(reason="tracing rankings would unroll their loop over labels")
    def answer(
        self,
        scores: MeanProbability,
        loss_terms: dict[str, Tensor],
        texts: EncodedTexts,
        text_ids: Tensor | None = None,
        top_k: int | None = None,
        output_logits: bool | None = None,
        candidate_ids: Tensor | None = None,
        output_scores: bool = False,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
        inputs_embeds: None = None,
    ) -> XMTCOutput | tuple:
        """What `forward` returns, from the scores of all labels and the terms of the loss, where there are any."""
        # Adapters pass it on to any model, mostly empty.
        if inputs_embeds is not None:
            raise ValueError("`inputs_embeds` is not supported, since experts count token ids: pass `input_ids`.")
        if self.is_blended:
            ids, experts = texts.token_ids if text_ids is None else text_ids, {}
            for name, expert in self.text_experts().items():
                experts[name] = expert(texts.document(max(self.layers)) if name == "dense" else ids)
            scores = present(self.blend_class, "`blend`")(scores, experts, self.config.blend, self.log_frequencies)
        output = XMTCOutput(sum(loss_terms.values()) if loss_terms else None, scores=scores if output_scores else None)
        if not (output_scores or (self.training and loss_terms and not output_logits)):
            top_k = min(self.config.top_k if top_k is None else top_k, scores.num_labels)
            if top_k < 1:
                raise ValueError(f"`top_k` must be at least 1, got {top_k}.")
            if candidate_ids is not None:
                best, branch_logits = scores.top_k_of(candidate_ids, min(top_k, candidate_ids.shape[-1]))
                output.branch_logits = branch_logits.transpose(0, 1)
                output.logits = scores.combined(list(branch_logits), candidate_ids)
            elif self.config.wants_logits(output_logits):
                best, output.logits = scores.top_k_and_all(top_k)
            else:
                self.config.tell_of_missing_logits(output_logits)
                best = scores.top_k(top_k)
            output.top_k_ids, output.branch_top_k_ids = best.ids, best.branch_ids
            output.top_k_scores = best.logits.sigmoid()
        # Behind the logits, and last what is of layers, as in tuples of Transformers.
        if loss_terms:
            output.loss_terms = {name: term.detach() for name, term in loss_terms.items()}
        for name, layers in texts.recorded.items():
            output[name] = layers
        return output if (self.config.return_dict if return_dict is None else return_dict) else output.to_tuple()

    @torch.no_grad()
    def predict_top_k(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        top_k: int | None = None,
        candidate_ids: Sequence[int] | Tensor | None = None,
        text_ids: Tensor | None = None,
    ) -> XMTCOutput:
        """The best labels of each text, of all or of candidates, in evaluation mode; without keeping all scores."""
        if candidate_ids is not None:
            candidate_ids = check_label_ids(candidate_ids, self.config.num_labels, input_ids, "candidate_ids").unique()
        with evaluation_mode(self):
            inputs = (input_ids, attention_mask, token_type_ids, None, text_ids)
            return self(*inputs, top_k=top_k, output_logits=False, candidate_ids=candidate_ids)

    @torch.no_grad()
    def score_labels(self, label_ids: Any, input_ids: Tensor, *inputs: Any, **fields: Any) -> dict[str, Tensor]:
        """
        Probabilities of chosen labels alone: one entry per branch and `"final"`, each of shape (texts, chosen).

        Labels are the same for every text, of shape (chosen,), or given per text, (texts, chosen).
        """
        label_ids = check_label_ids(label_ids, self.config.num_labels, input_ids)
        with evaluation_mode(self):
            output = self(input_ids, *inputs, candidate_ids=label_ids, **fields)
        logits = (*output.branch_logits.unbind(dim=1), output.logits)
        return {name: scores.sigmoid() for name, scores in zip((*self.branch_names, "final"), logits, strict=True)}

    def attention_branches(self) -> list[str]:
        """The names of the branches with label-word attention, of which there must be one."""
        names = [name for name, head in self.branch_heads().items() if hasattr(head, "key")]
        if not names:
            raise ValueError(f"This model has no label-word attention: its branches are {self.branch_names}.")
        return names

    def label_word_attention(self, label_ids: Any, *inputs: Any, branch: str | None = None, **fields: Any) -> Tensor:
        """
        The weights with which chosen labels read the tokens, of shape (texts, chosen, tokens); zero on padding.

        Arguments are as in [`score_labels`]; by default the first branch with label-word attention is meant.
        """
        return self._tokens("attention", branch, label_ids, *inputs, **fields)

    def word_contributions(self, label_ids: Any, *inputs: Any, branch: str | None = None, **fields: Any) -> Tensor:
        """
        What each token adds to the logit of chosen labels in a branch with `attention_scoring="evidence"`, of shape
        (texts, chosen, tokens); zero on padding. They sum to the logit of the branch without the bias of the label;
        with a label tree, to what the label has of its own.
        """
        if getattr(self.config, "attention_scoring", None) != "evidence":
            raise ValueError("Contributions need `attention_scoring='evidence'`; `label_word_attention` does not.")
        return self._tokens("contributions", branch, label_ids, *inputs, **fields)

    @torch.no_grad()
    def _tokens(self, what: str, branch: str | None, label_ids: Any, input_ids: Tensor, *inputs: Any, **fields: Any):
        names = self.attention_branches()
        branch = names[0] if branch is None else branch
        if branch not in names:
            raise ValueError(f"`branch` must be one with label-word attention, {', '.join(names)}, got {branch!r}.")
        label_ids = check_label_ids(label_ids, self.config.num_labels, input_ids).expand(len(input_ids), -1)
        with evaluation_mode(self):
            scores = self(input_ids, *inputs, **fields, output_scores=True).scores
            values = getattr(scores.branches[branch], what)(label_ids)
        # Back to where the tokens stood.
        attention_mask = inputs[0] if inputs else fields.get("attention_mask")
        order, _ = attended_first((torch.ones_like(input_ids) if attention_mask is None else attention_mask).ne(0))
        return torch.zeros_like(values).scatter(2, order.unsqueeze(1).expand_as(values), values)

    def set_label_names(self, label_names: list[str] | None) -> None:
        """Names the labels; the names are saved with the weights."""
        self.label_names = self.config.name_labels(label_names)

    def save_pretrained(self, save_directory: str | os.PathLike, is_main_process: bool = True, **kwargs: Any) -> Any:
        """Saves weights, configuration, code and label names so that `from_pretrained` finds all of them again."""
        if self.should_save_on_this_rank(is_main_process):
            os.makedirs(save_directory, exist_ok=True)
            if self._auto_class is not None:
                self._save_code(save_directory)
            self.set_label_names(self.config.given_label_names or self.label_names)
            if self.label_names is not None:
                write_label_names(save_directory, self.label_names)
        return super().save_pretrained(save_directory, is_main_process=is_main_process, **kwargs)

    def _save_code(self, folder: str | os.PathLike) -> None:
        """What Transformers does not save: the name of the other Auto class, and the code of pipeline and experts."""
        known = getattr(self.config, "auto_map", None) or {}
        self.config.auto_map = {**known, "AutoModelForSequenceClassification": name_in_code(self)}
        self.config.auto_map.pop("Blend", None)
        vars(self.config).pop("custom_pipelines", None)
        if self.pipeline_class is not None:
            self.config.custom_pipelines = self.pipeline_class.config_entry()
            custom_object_save(self.pipeline_class, folder)
        if self.is_blended:
            self.config.auto_map["Blend"] = "experts.Blend"
            custom_object_save(self.blend_class, folder)

    def _get_files_timestamps(self, working_dir: str | os.PathLike) -> dict[str, float]:
        # With `push_to_hub` everything newer than these is sent, and names and pipeline are written before they are
        # taken; there is no public way to add files to what is sent.
        times = super()._get_files_timestamps(working_dir)
        return {name: time for name, time in times.items() if name != LABELS_FILE and not name.endswith(".py")}

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | os.PathLike, *args: Any, **kwargs: Any) -> Any:
        """Loads weights and configuration as everywhere in Transformers, and the label names beside them."""
        if cls.blend_class is None:
            cls.blend_class = code_beside(pretrained_model_name_or_path, "experts.Blend", kwargs)
        cls.load_checks[0](cls, pretrained_model_name_or_path, kwargs)
        options = {"use_safetensors": True, **kwargs, "output_loading_info": True}
        model, report = super().from_pretrained(pretrained_model_name_or_path, *args, **options)
        names = model.label_names or find_label_names(pretrained_model_name_or_path, **kwargs)
        model.set_label_names(cls.load_checks[1](names, model, report, kwargs))
        return (model, report) if kwargs.get("output_loading_info") else model
