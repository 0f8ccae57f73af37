"""LightAttention with a label tree: nodes are scored as labels are, and labels where the search leads."""

import copy
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init

from .configuration_light_attention import LightAttentionConfig
from .encoder import EncodedTexts, encode_texts, evaluation_mode
from .label_tree import SparseLabelTable, TreeScores, search
from .modeling_light_attention import BRANCH, LightAttentionForMultiLabel
from .modeling_tree import LabelTreeMixin

# Evidence heads have keys and values alone.
_HANDED_DOWN = ("mlp_hidden", "mlp_further", "mlp_output", "key", "value")


class LightAttentionWithLabelTree(LabelTreeMixin, LightAttentionForMultiLabel):
    """
    [`LightAttentionForMultiLabel`] with a label tree (`config.tree_levels`), algorithm 2 of the paper.

    Levels are trained jointly, or one after the other (`config.level_epochs`), each starting from the weights of the
    one above; `start_epoch` has to be told of epochs then (the trainers of this package do). With static negatives
    every level of the tree has an encoder of its own, and `encoder` is that of the labels.
    """

    def __init__(self, config: LightAttentionConfig, encoder: PreTrainedModel | None = None):
        super().__init__(config, encoder, SparseLabelTable)
        self.make_label_tree()
        self.label_level = len(config.tree_levels)
        self.level_encoders = None
        if config.negatives == "static":
            self.level_encoders = nn.ModuleList(copy.deepcopy(self.encoder) for _ in config.tree_levels)
        # The level that trains now: kept with the weights, so that a resumed run knows.
        self.register_buffer("current_level", torch.tensor(0 if config.level_epochs else self.label_level))
        # What the buffer says, once it was asked: asking a device takes time.
        self._level: int | None = None
        self.register_load_state_dict_post_hook(_ask_again)
        self.post_init()
        if encoder is not None:
            for level_encoder in self.level_encoders or ():
                level_encoder.load_state_dict(encoder.state_dict())

    make_level = LightAttentionForMultiLabel.make_head

    @torch.no_grad()
    def _init_weights(self, module: nn.Module):
        super()._init_weights(module)
        if module is self and hasattr(self, "current_level"):
            # Loading starts from arbitrary memory, where a checkpoint lacks it.
            init.constant_(self.current_level, 0 if self.config.level_epochs else self.label_level)

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        for encoder in self.level_encoders or ():
            encoder.resize_token_embeddings(*args, **kwargs)
        return super().resize_token_embeddings(*args, **kwargs)

    def trained_levels(self) -> range:
        """The levels that have a loss now; those above these are searched as they are."""
        self._level = current = int(self.current_level) if self._level is None else self._level
        return range(current if self.config.negatives == "static" else 0, current + 1)

    @torch.no_grad()
    def start_epoch(self, epoch: int) -> None:
        """Trains the next level where it is time; it starts from the weights of the one above."""
        if not self.config.level_epochs:
            return
        wanted = min(epoch // self.config.level_epochs, self.label_level)
        heads = [*self.level_classifiers, self.head]
        for level in range(int(self.current_level) + 1, wanted + 1):
            for name in _HANDED_DOWN:
                if hasattr(self.head, name):
                    getattr(heads[level], name).load_state_dict(getattr(heads[level - 1], name).state_dict())
            if self.level_encoders is not None:
                encoders = [*self.level_encoders, self.encoder]
                encoders[level].load_state_dict(encoders[level - 1].state_dict())
        self._level = max(wanted, int(self.current_level))
        self.current_level.fill_(self._level)

    def forward(self, input_ids, attention_mask=None, token_type_ids=None, labels=None, text_ids=None, **answering):
        """Arguments as in [`XMTCPreTrainedModel`]."""
        trained = self.trained_levels() if self.training else range(self.label_level, self.label_level + 1)
        texts = self._encode_levels(trained, input_ids, attention_mask, token_type_ids, labels, **answering)
        read = [(encoded.hidden_states[self.last_layer], encoded.mask) for encoded in texts]
        heads = zip(self.level_heads().items(), read, strict=False)
        levels = {name: head(*states) for (name, head), states in heads}
        # The labels are not yet trained where levels are one after the other.
        branches = {BRANCH: self.head(*read[-1])} if len(read) > self.label_level else {}
        terms = {}
        if labels is not None:
            # In evaluation every level has a loss.
            with_loss, checked = self.trained_levels(), texts[0].labels
            terms, candidates = search(self.label_tree, levels, self.config.training_beam, checked, with_loss)
            if self.label_level in with_loss:
                logits = branches[BRANCH].chosen(candidates.ids)
                terms[BRANCH] = candidates.cross_entropy(logits, candidates.are_among(checked))
        scores = TreeScores(self.label_tree, levels, branches, self.config.beam) if branches else None
        return self.answer(scores, terms, texts[-1], text_ids, **answering)

    def _encode_levels(self, trained: range, *inputs: Tensor | None, **answering: Any) -> list[EncodedTexts]:
        """The texts as each level and last the labels read them, without levels that are not needed yet."""
        if self.level_encoders is None:
            return [self.encode(self.layers, *inputs, **answering)] * (self.label_level + 1)
        texts, options = [], (self.config.num_labels, self.config.document_pooling)
        for level, encoder in enumerate([*self.level_encoders, self.encoder][: trained.stop]):
            # A level that rests always gives the same scores.
            learns, rest = level in trained, nullcontext if level in trained else evaluation_mode
            with torch.set_grad_enabled(torch.is_grad_enabled() and learns), rest(encoder):
                texts.append(encode_texts(encoder, self.layers, *inputs, *options))
        return texts


def _ask_again(model: nn.Module, _: Any) -> None:
    """Not a lambda, which cannot be pickled."""
    model._level = None


LightAttentionForMultiLabel.tree_class = LightAttentionWithLabelTree
