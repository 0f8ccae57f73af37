"""ME-XML with a label tree, for tens of thousands of labels and more."""

import torch
from transformers import PreTrainedModel

from .configuration_me_xml import MEXMLConfig
from .label_tree import SparseLabelTable, TreeScores, search
from .modeling_me_xml import MEXMLForMultiLabel
from .modeling_tree import LabelTreeMixin


class MEXMLWithLabelTree(LabelTreeMixin, MEXMLForMultiLabel):
    """
    [`MEXMLForMultiLabel`] with a label tree (`config.tree_levels`): the document token of the last layer scores
    clusters, and the experts the labels of the best ones.
    """

    def __init__(self, config: MEXMLConfig, encoder: PreTrainedModel | None = None):
        super().__init__(config, encoder, SparseLabelTable)
        self.last_layer, self.document_size = config.num_hidden_layers, config.hidden_size
        self.layers.add(self.last_layer)
        self.make_label_tree()
        self.post_init()

    def forward(self, input_ids, attention_mask=None, token_type_ids=None, labels=None, text_ids=None, **answering):
        """Arguments as in [`XMTCPreTrainedModel`]."""
        texts = self.encode(self.layers, input_ids, attention_mask, token_type_ids, labels, **answering)
        documents = texts.document(self.last_layer)  # (texts, hidden)
        levels = {name: head(documents) for name, head in self.level_heads().items()}
        branches, terms = self.branches(texts), {}
        if labels is not None:
            terms, candidates = search(self.label_tree, levels, self.config.training_beam, texts.labels)
            is_label = candidates.are_among(texts.labels)
            logits = [scores.chosen(candidates.ids) for scores in branches.values()]  # (texts, candidates) each
            if self.config.training_loss == "individual":
                losses = [candidates.cross_entropy(expert, is_label) for expert in logits]
                terms["individual"] = sum(losses) / len(losses)
            else:
                terms["collaborative"] = candidates.cross_entropy(torch.stack(logits).mean(dim=0), is_label)  # eq. 5
            if self.diversity_is_on():
                # All labels of a text are among its candidates; experts differ in what they make of these, given the
                # way down the tree, which they share.
                terms["diversity"] = self.diversity_term(logits, candidates.ids, is_label)
        scores = TreeScores(self.label_tree, levels, branches, self.config.beam)
        return self.answer(scores, terms, texts, text_ids, **answering)


MEXMLForMultiLabel.tree_class = MEXMLWithLabelTree
