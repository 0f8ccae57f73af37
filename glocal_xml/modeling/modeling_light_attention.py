"""LightAttention: words through a bidirectional LSTM, which labels, or nodes of a label tree, read by attention."""

import copy
from functools import partial

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers import initialization as init

from .configuration_light_attention import LightAttentionConfig
from .encoded_texts import EncodedTexts, encode_texts
from .label_attention import LabelAttention
from .label_scorer import LabelScorer
from .modeling_base import Features, evaluation_mode
from .modeling_clustered import ClusteredXMTCModel

BRANCH = "attention"
_HANDED_DOWN = ("mlp_hidden", "mlp_further", "mlp_output")


class LightAttentionForMultiLabel(ClusteredXMTCModel):
    """
    LightAttention, after *Multi-Label text classification (MTC)* (Zhu, Teng, Huang), which builds on AttentionXML
    ([You et al. 2019](https://arxiv.org/abs/1811.01727)).

    Every label reads the token states of the last layer by an attention of its own (eq. 2), and fully connected
    layers shared by all labels turn what it read into its score (III-D). With a label tree the nodes of each level are
    scored in the same way, and labels where the way down leads (algorithm 2).

    Levels are trained jointly, or one after the other (`config.level_epochs`), each starting from the weights of the
    one above; `start_epoch` has to be told of epochs then (the trainers of this package do). With static negatives
    every level of the tree has an encoder of its own, and `encoder` is that of the labels.
    """

    config_class = LightAttentionConfig

    def __init__(self, config: LightAttentionConfig, encoder: PreTrainedModel | None = None):
        super().__init__(config, encoder)
        first, *further = config.mlp_sizes
        make_head = partial(
            LabelAttention, config.hidden_size, mlp_size=first, projections=False, further_sizes=further
        )
        self.head = make_head(
            num_labels=config.num_labels,
            chunk_bytes=config.label_chunk_bytes,
            bias=config.label_bias,
            sparse=bool(config.tree_levels),
        )
        self.make_label_tree(make_head)
        self.level_encoders = None
        if config.negatives == "static":
            self.level_encoders = nn.ModuleList(copy.deepcopy(self.encoder) for _ in config.tree_levels)
        if self.label_tree is not None:
            # The level that trains now: kept with the weights, so that a resumed run knows.
            self.register_buffer("current_level", torch.tensor(0 if config.level_epochs else self.label_level))
        self.post_init()
        if encoder is not None:
            for level_encoder in self.level_encoders or ():
                level_encoder.load_state_dict(encoder.state_dict())

    @torch.no_grad()
    def _init_weights(self, module: nn.Module):
        super()._init_weights(module)
        if module is self and self.label_tree is not None:
            # Loading starts from arbitrary memory, where a checkpoint lacks it.
            init.constant_(self.current_level, 0 if self.config.level_epochs else self.label_level)

    def branch_heads(self) -> dict[str, LabelScorer]:
        return {BRANCH: self.head}

    def trained_levels(self) -> range:
        current = int(self.current_level)
        return range(current if self.config.negatives == "static" else 0, current + 1)

    @torch.no_grad()
    def start_epoch(self, epoch: int) -> None:
        """Goes on to the next level where it is time; it starts from the weights of the one above."""
        if self.label_tree is None or not self.config.level_epochs:
            return
        wanted = min(epoch // self.config.level_epochs, self.label_level)
        heads = [*self.level_classifiers, self.head]
        for level in range(int(self.current_level) + 1, wanted + 1):
            for name in _HANDED_DOWN:
                getattr(heads[level], name).load_state_dict(getattr(heads[level - 1], name).state_dict())
            if self.level_encoders is not None:
                encoders = [*self.level_encoders, self.encoder]
                encoders[level].load_state_dict(encoders[level - 1].state_dict())
        self.current_level.fill_(max(wanted, int(self.current_level)))

    def wanted_layers(self) -> set[int]:
        return {self.config.num_hidden_layers}

    def head_features(self, encoded: EncodedTexts) -> Features:
        heads = self.branch_heads() | (self.level_heads() if self.level_encoders is None else {})
        hidden_states = encoded.hidden_states[self.config.num_hidden_layers]  # (texts, tokens, hidden)
        return {name: head.features(hidden_states, encoded.attention_mask) for name, head in heads.items()}

    def text_features(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
    ) -> Features:
        inputs = (input_ids, attention_mask, token_type_ids)
        self.check_label_tree()
        if self.level_encoders is None:
            return super().text_features(*inputs)
        trained = self.trained_levels() if self.training else range(self.label_level, self.label_level + 1)
        features = super().text_features(*inputs) if self.label_level in trained else {}
        last = self.config.num_hidden_layers
        levels = zip(self.level_heads().items(), self.level_encoders, strict=True)
        for level, ((name, head), encoder) in enumerate(levels):
            if level in trained:
                encoded = encode_texts(encoder, *inputs, {last})
                features[name] = head.features(encoded.hidden_states[last], encoded.attention_mask)
            elif level < trained.stop:
                # A level that rests always gives the same scores.
                with torch.no_grad(), evaluation_mode(encoder):
                    encoded = encode_texts(encoder, *inputs, {last})
                    features[name] = head.features(encoded.hidden_states[last], encoded.attention_mask)
        return features


__all__ = ["LightAttentionForMultiLabel"]
