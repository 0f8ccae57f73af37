"""GlocalXML with a label tree, for tens of thousands of labels and more."""

from transformers import PreTrainedModel

from .configuration_glocal_xml import GlocalXMLConfig
from .label_tree import SparseLabelTable, TreeScores, search
from .modeling_glocal_xml import GlocalXMLForMultiLabel
from .modeling_tree import LabelTreeMixin


class GlocalXMLWithLabelTree(LabelTreeMixin, GlocalXMLForMultiLabel):
    """
    [`GlocalXMLForMultiLabel`] with a label tree (`config.tree_levels`): the document token scores clusters, and both
    branches the labels of the best ones. The global branch alone is *LightXML*
    ([arXiv:2101.03305](https://arxiv.org/abs/2101.03305)).
    """

    def __init__(self, config: GlocalXMLConfig, encoder: PreTrainedModel | None = None):
        super().__init__(config, encoder, SparseLabelTable)
        self.make_label_tree()
        self.post_init()

    def forward(self, input_ids, attention_mask=None, token_type_ids=None, labels=None, text_ids=None, **answering):
        """Arguments as in [`XMTCPreTrainedModel`]."""
        texts = self.encode(self.layers, input_ids, attention_mask, token_type_ids, labels, **answering)
        documents = self.documents(texts)
        levels = {name: head(documents) for name, head in self.level_heads().items()}
        branches, terms = self.branches(texts, documents), {}
        if labels is not None:
            terms, candidates = search(self.label_tree, levels, self.config.training_beam, texts.labels)
            is_label = candidates.are_among(texts.labels)
            for name, scores in branches.items():
                terms[name] = candidates.cross_entropy(scores.chosen(candidates.ids), is_label)
        scores = TreeScores(self.label_tree, levels, branches, self.config.beam)
        return self.answer(scores, terms, texts, text_ids, **answering)


GlocalXMLForMultiLabel.tree_class = GlocalXMLWithLabelTree
