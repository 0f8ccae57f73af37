"""What every family shares: heads over labels on chosen layers of the encoder, loss and prediction in label chunks."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import initialization as init

from .chosen_labels import rank_candidates
from .encoded_texts import EncodedTexts, encode_texts
from .input_checks import check_all_logits, check_label_ids, check_labels
from .label_attention import LabelAttention
from .label_ranking import RunningTopK
from .label_scorer import label_chunks
from .label_shards import LabelShard, can_be_split, check_shards
from .losses import binary_cross_entropy_sum
from .modeling_encoder import EncoderWithLabelNames
from .modeling_output import XMTCOutput
from .probabilities import at_least_float, mean_probability_logits

# What the head of each branch reads of a batch of texts.
Features = dict[str, tuple[torch.Tensor, ...]]


class XMTCPreTrainedModel(EncoderWithLabelNames):
    """
    Base of all families. A family defines its heads (`branch_heads`), the layers they read (`wanted_layers`) and what
    they read of them (`head_features`); loss and prediction in label chunks come from here.
    """

    def post_init(self) -> None:
        super().post_init()
        # Label tables are split over processes where tensor parallelism is asked for; all else is whole everywhere.
        heads = set(self.branch_heads().values())
        self._tp_plan = {
            f"{name}.label_embeddings": "colwise"
            for name, module in self.named_modules()
            if module in heads and can_be_split(module)
        }

    @classmethod
    def maybe_distribute_model(cls, model: nn.Module, distributed_config: Any, mesh_manager: Any) -> nn.Module:
        if distributed_config is not None and distributed_config.tp_size > 1:
            check_shards(model, distributed_config.tp_size)
        return super().maybe_distribute_model(model, distributed_config, mesh_manager)

    def _initialize_weights(self, module: nn.Module, is_custom_code: bool = False):
        # Of code that is not its own, Transformers passes over modules without parameters of their own, such as heads
        # that start the layers below them; it need not, since all starts here spare what was loaded.
        super()._initialize_weights(module)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module):
        super()._init_weights(module)
        if isinstance(module, LabelAttention):
            # With 0.02 throughout, keys and values are so small that the attention stays flat for an epoch.
            for linear in (module.key, module.value, module.mlp_hidden, *module.mlp_further, module.mlp_output):
                if isinstance(linear, nn.Linear):
                    init.xavier_uniform_(linear.weight)

    def start_label_bias(self, log_odds: torch.Tensor) -> None:
        """Starts the bias of every label at its training log-odds (`LabelSpace.log_odds`)."""
        heads = [head for head in self.branch_heads().values() if head.label_bias is not None]
        if not heads:
            raise ValueError("This model has no label bias: build it with `label_bias=True`.")
        for head in heads:
            head.start_label_bias(torch.as_tensor(log_odds))

    def set_label_counts(self, label_counts: Sequence[int] | torch.Tensor) -> None:
        """Tells the model how many training texts each label has; families that need it keep it with the weights."""

    def start_epoch(self, epoch: int) -> None:
        """Tells the model that an epoch of training begins, the first being 0; some losses change with it."""

    def wanted_layers(self) -> set[int]:
        """The layers that the heads read: 0 is the embedding output, `config.num_hidden_layers` the last one."""
        raise NotImplementedError

    def head_features(self, encoded: EncodedTexts) -> Features:
        """What the head of each branch reads of the encoded texts."""
        raise NotImplementedError

    def encode(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
    ) -> EncodedTexts:
        """Runs the encoder and keeps the layers that the heads read."""
        return encode_texts(self.encoder, input_ids, attention_mask, token_type_ids, self.wanted_layers())

    def text_features(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
    ) -> Features:
        """What the head of each branch reads of a batch of texts."""
        return self.head_features(self.encode(input_ids, attention_mask, token_type_ids))

    def branch_heads(self) -> dict[str, nn.Module]:
        """The head of each branch, by the name of the branch."""
        raise NotImplementedError

    def branch_logits(self, features: Features, label_ids: slice | torch.Tensor) -> dict[str, torch.Tensor]:
        """Logits of each branch for a run of labels or for chosen ones; in single precision at least."""
        return {
            name: at_least_float(head.logits(features[name], label_ids)) for name, head in self.branch_heads().items()
        }

    @property
    def label_shard(self) -> LabelShard:
        """The labels whose rows this process holds; the same for all heads."""
        return next(iter(self.branch_heads().values())).shard

    def own_branch_logits(self, features: Features, label_ids: slice) -> dict[str, torch.Tensor]:
        """[`branch_logits`] of a run of the labels of this process, counted from the first of them."""
        heads = self.branch_heads().items()
        return {name: at_least_float(head.own_logits(features[name], label_ids)) for name, head in heads}

    def label_loss_terms(self, features: Features, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """The terms of the loss that go over all labels, each the mean over texts and labels."""
        return {name: head.loss(features[name], labels) for name, head in self.branch_heads().items()}

    def run_loss_terms(
        self, logits: dict[str, torch.Tensor], labels: torch.Tensor, first_label: int
    ) -> dict[str, torch.Tensor]:
        """What a run of labels adds to the terms of `label_loss_terms`, summed over texts and labels, from logits."""
        return {name: binary_cross_entropy_sum(scores, labels, first_label) for name, scores in logits.items()}

    def further_loss_terms(self, features: Features, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Terms of the loss that do not go over all labels."""
        return {}

    def loss_terms(self, features: Features, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """All terms of the training loss."""
        return self.label_loss_terms(features, labels) | self.further_loss_terms(features, labels)

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        top_k: int | None = None,
        output_logits: bool | None = None,
        use_cache: bool | None = None,
    ) -> XMTCOutput:
        """
        Args:
            input_ids: Token ids, of shape (texts, tokens).
            attention_mask: 1 for real tokens, 0 for padding on either side.
            token_type_ids: Passed on to encoders that have them.
            labels: Ids of the positive labels, of shape (texts, most labels of a text), padded with -100.
            top_k: Number of labels to return in evaluation mode; the configuration's by default.
            output_logits: Whether to return the logits of all labels; by default in evaluation mode, up to
                `config.max_logits_labels` labels.
            use_cache: Set by Transformers' own classification pipelines, which read all logits and nothing else.
        """
        if use_cache is not None:
            check_all_logits(self.config)
        features = self.text_features(input_ids, attention_mask, token_type_ids)
        if use_cache is not None:
            return XMTCOutput(logits=self.scan_labels(features, output_logits=True).logits)
        if labels is not None:
            labels = check_labels(labels, self.config.num_labels, len(input_ids))
        if self.training and labels is not None and not output_logits:
            return with_loss(XMTCOutput(), self.loss_terms(features, labels))
        return self.scan_labels(features, labels, top_k, output_logits)

    def scan_labels(
        self,
        features: Features,
        labels: torch.Tensor | None = None,
        top_k: int | None = None,
        output_logits: bool | None = None,
    ) -> XMTCOutput:
        """One pass over the labels, chunk by chunk: loss, best labels and, where wanted, all logits."""
        num_labels, output_logits = self.config.num_labels, self._wants_logits(output_logits)
        top_k = self._check_top_k(top_k)
        heads, shard = self.branch_heads(), self.label_shard
        own_features = {name: shard.shared(values) for name, values in features.items()}
        ranking, kept, terms = RunningTopK(top_k), [], {}
        size = min(head.chunk_size(features[name]) for name, head in heads.items())
        for chunk in label_chunks(shard.size, size):
            logits, first_label = self.own_branch_logits(own_features, chunk), shard.first + chunk.start
            final = mean_probability_logits(list(logits.values()))  # (texts, labels of the chunk)
            # Rankings of branches are further rows of one: it costs by the number of its steps, not of its rows.
            rows = [final, *logits.values()] if len(heads) > 1 else [final]
            ranking.update(torch.cat(rows), first_label)
            if labels is not None:
                for name, part in self.run_loss_terms(logits, labels, first_label).items():
                    terms[name] = terms.get(name, 0.0) + part / (len(labels) * num_labels)
            if output_logits:
                kept.append(final)
        shard.merge(ranking)
        top_k_ids, *branch_ids = ranking.ids.split(len(final))
        if labels is not None:
            terms = {name: shard.sum(term) for name, term in terms.items()}
            terms |= self.further_loss_terms(features, labels)
        output = XMTCOutput(
            logits=shard.collect(lambda own: torch.cat(kept, dim=1), slice(num_labels)) if output_logits else None,
            top_k_ids=top_k_ids,
            top_k_scores=ranking.scores[: len(final)].sigmoid(),
            branch_top_k_ids=dict(zip(heads, branch_ids, strict=True)) if len(heads) > 1 else None,
        )
        return with_loss(output, terms)

    @torch.no_grad()
    def predict_top_k(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        top_k: int | None = None,
        candidate_ids: Sequence[int] | torch.Tensor | None = None,
    ) -> XMTCOutput:
        """
        The best labels of each text, in evaluation mode and without keeping all scores.

        Args:
            top_k: Number of labels to return; the configuration's by default, and no more than there are.
            candidate_ids: The labels to choose from, the same for every text; each of them is scored, also where a
                label tree or a shortlist would pass it over. All labels by default.
        """
        with evaluation_mode(self):
            features = self.text_features(input_ids, attention_mask, token_type_ids)
            if candidate_ids is not None:
                return rank_candidates(self, features, candidate_ids, self._check_top_k(top_k))
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

    def attention_heads(self) -> dict[str, LabelAttention]:
        """The heads of the branches with label-word attention, of which there must be one."""
        heads = {name: head for name, head in self.branch_heads().items() if isinstance(head, LabelAttention)}
        if not heads:
            raise ValueError(
                f"This model has no label-word attention: its branches are {', '.join(self.branch_heads())}."
            )
        return heads

    @torch.no_grad()
    def label_word_attention(
        self,
        label_ids: torch.Tensor,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        branch: str | None = None,
    ) -> torch.Tensor:
        """
        The weights with which chosen labels read the tokens, of shape (texts, chosen, tokens); zero on padding.

        Args:
            label_ids: The same labels for every text, of shape (chosen,), or labels per text, (texts, chosen).
            branch: Which branch with label-word attention is meant; by default the first.
        """
        heads = self.attention_heads()
        branch = next(iter(heads)) if branch is None else branch
        if branch not in heads:
            raise ValueError(f"`branch` must be one with label-word attention, {', '.join(heads)}, got {branch!r}.")
        label_ids = check_label_ids(label_ids, self.config.num_labels, input_ids)
        with evaluation_mode(self):
            encoded = self.encode(input_ids, attention_mask, token_type_ids)
            return encoded.in_input_order(heads[branch].attention(self.head_features(encoded)[branch], label_ids))

    def _wants_logits(self, output_logits: bool | None) -> bool:
        return self.config.num_labels <= self.config.max_logits_labels if output_logits is None else output_logits

    def _check_top_k(self, top_k: int | None) -> int:
        top_k = self.config.top_k if top_k is None else top_k
        if top_k < 1:
            raise ValueError(f"`top_k` must be at least 1, got {top_k}.")
        return min(top_k, self.config.num_labels)


def with_loss(output: XMTCOutput, terms: dict[str, torch.Tensor]) -> XMTCOutput:
    """Adds a loss and the terms that it is the sum of, where there are any."""
    if terms:
        output.loss = sum(terms.values())
        output.loss_terms = {name: term.detach() for name, term in terms.items()}
    return output


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Switches dropout off for a while."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


__all__ = ["XMTCPreTrainedModel"]
