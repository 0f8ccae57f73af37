"""Configuration of APLC-XLNet."""

from dataclasses import field

from huggingface_hub.dataclasses import strict
from transformers import AutoConfig
from transformers.configuration_utils import SubConfigSpec

from .adaptive_clusters import cluster_sizes, tail_widths
from .configuration_base import XMTCConfig, check_dropout, check_least


@strict
class APLCXLNetConfig(XMTCConfig):
    """
    Configuration of [`APLCXLNet`]; the defaults are those of the paper for label spaces of thousands
    ([arXiv:2007.02439](https://arxiv.org/abs/2007.02439), table 2), but for `label_bias`. Shared fields are described
    in [`XMTCConfig`]; the default encoder is XLNet.

    Args:
        cluster_proportions: Share of the labels, by falling frequency, that the head and each tail cluster hold.
        cluster_decay: Factor q by which the width of the vector of a text falls from cluster to cluster.
        tail_norm: Puts layer norm and ReLU between the layers of a tail: so in the authors' code, not in the paper.
        summary_size: Size d_h of the hidden layer between encoder and clusters; by default that of the encoder.
        summary_dropout: Dropout after that layer.
    """

    model_type = "aplc_xlnet"
    sub_configs_defaults = {"encoder": SubConfigSpec(config_class=AutoConfig, model_type="xlnet")}

    cluster_proportions: list[float | int] = field(default_factory=lambda: [0.5, 0.5])
    cluster_decay: float | int = 2
    tail_norm: bool = True
    summary_size: int | None = None
    summary_dropout: float | int = 0.1

    @property
    def cluster_input_size(self) -> int:
        return self.hidden_size if self.summary_size is None else self.summary_size

    def validate_clusters(self):
        check_least(self, 1, "summary_size")
        check_dropout(self, "summary_dropout")
        sizes = cluster_sizes(self.num_labels, self.cluster_proportions)
        tail_widths(self.cluster_input_size, self.cluster_decay, len(sizes) - 1)
