"""Configuration of GlocalXML."""

from typing import Any, Literal

from huggingface_hub.dataclasses import strict

from .configuration_base import AttentionConfig, check_dropout, check_least


@strict
class GlocalXMLConfig(AttentionConfig):
    """
    Configuration of [`GlocalXMLForMultiLabel`]. Shared fields are described in [`XMTCConfig`], those of label-word
    attention and of label trees in [`AttentionConfig`]. The paper
    ([arXiv:2204.00933](https://arxiv.org/abs/2204.00933)) has `attention_scoring="mlp"` and `label_bias=False`.

    Args:
        branches: `"both"`, `"global"` (document token alone) or `"local"` (label-word attention alone).
        local_layer: Layer whose token states the local branch reads: 0 is the embedding output, 1 the first layer. By
            default the middle layer, and 1 as in the paper with `attention_scoring="mlp"`.
        temperature: Divides the label-word scores before the softmax (tau of eq. 4); below 1 sharpens the attention.
        use_pooler: Passes the document token through a linear layer before the global classifier.
        label_size: Size of the label embeddings of both branches, that of the encoder when left out; smaller ones save
            memory with very many labels. The global branch then needs the pooler, which brings documents to this size.
            For the local branch `key_size` and `value_size` come first.
        document_layers: The document tokens of this many layers, counted from the last, are concatenated for the
            global branch and the clusters of a label tree; LightXML has 5. Above 1 the global branch needs the pooler.
        document_dropout: Dropout on these document tokens; LightXML has 0.5.
        mlp_size: Width of the hidden layer of the MLP of `attention_scoring="mlp"`.
        detach_local: Stops the gradient of the local branch before the encoder.
        shortlist: Beyond the paper: prediction computes local scores only for this many labels, the best of the global
            branch, and ranks these. Much faster with many labels, and no longer exact; for `branches="both"` only.
            `predict_top_k` and the pipeline use it; training, and a call with labels or for all logits, do not.
    """

    model_type = "glocal_xml"
    fields_of_old_files = {"attention_scoring": "mlp"}

    attention_scoring: Literal["evidence", "mlp"] = "evidence"
    branches: Literal["both", "global", "local"] = "both"
    local_layer: int | None = None
    temperature: float | int = 1.0
    use_pooler: bool = False
    label_size: int | None = None
    document_layers: int = 1
    document_dropout: float | int = 0.0
    mlp_size: int = 256
    detach_local: bool = False
    shortlist: int | None = None

    def __post_init__(self, **kwargs: Any):
        super().__post_init__(**kwargs)
        if self.local_layer is None:
            self.local_layer = 1 if self.attention_scoring == "mlp" else max(1, self.num_hidden_layers // 2)

    def validate_branches(self):
        check_least(self, 1, "mlp_size", "label_size")
        if not 0 <= (self.local_layer or 0) <= self.num_hidden_layers:
            raise ValueError(
                f"`local_layer` must lie in 0 (embedding output) to {self.num_hidden_layers} (last layer of this "
                f"encoder), got {self.local_layer}."
            )
        if self.temperature <= 0:
            raise ValueError(f"`temperature` must be above 0, got {self.temperature}.")
        if not 1 <= self.document_layers <= self.num_hidden_layers:
            raise ValueError(
                f"`document_layers` must lie in 1 to the {self.num_hidden_layers} of the encoder, got "
                f"{self.document_layers}."
            )
        check_dropout(self, "document_dropout")
        narrowed = self.document_layers > 1 or self.label_size not in (None, self.hidden_size)
        if narrowed and self.branches != "local" and not self.use_pooler:
            raise ValueError(
                "Document tokens of several layers, or label embeddings of another size than the encoder's, need "
                "`use_pooler=True`: it brings a document to the size of the label embeddings."
            )
        if self.shortlist is None:
            return
        if self.tree_levels:
            raise ValueError("`shortlist` is for models without a label tree; `beam` does the same: leave it out.")
        if self.branches != "both":
            raise ValueError(f"`shortlist` needs `branches='both'`, got {self.branches!r}: leave it out.")
        if self.shortlist < min(self.top_k, self.num_labels):
            raise ValueError(f"`shortlist` must be at least `top_k`, got {self.shortlist} for {self.top_k}: raise it.")
