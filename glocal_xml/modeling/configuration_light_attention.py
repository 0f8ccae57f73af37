"""Configuration of LightAttention."""

from dataclasses import field
from typing import Literal

from huggingface_hub.dataclasses import strict
from transformers import AutoConfig
from transformers.configuration_utils import SubConfigSpec

from .configuration_base import AttentionConfig, check_least
from .configuration_word_lstm import WordLSTMConfig


@strict
class LightAttentionConfig(AttentionConfig):
    """
    Configuration of [`LightAttentionForMultiLabel`]. Shared fields are described in [`XMTCConfig`], those of
    label-word attention and of label trees in [`AttentionConfig`]; the default encoder is [`WordLSTMConfig`].

    Args:
        mlp_sizes: Widths of the fully connected layers that turn what a label read into its score, without the output
            layer. The paper has "3 or 4" of them without their widths; the default is that of AttentionXML for its
            larger data sets, `[256]` that for its small ones.
        negatives: With a label tree, what a level is trained against. `"dynamic"`: the levels share the encoder and go
            on learning, so that candidates are drawn anew from their scores of the moment (algorithm 2). `"static"`:
            every level has an encoder of its own and rests once its epochs are over, so that the candidates of the
            next level never change, as in AttentionXML; needs `level_epochs`.
        level_epochs: With a label tree, for how many epochs each level is trained before the next one joins, which
            then starts from its weights; the labels have all epochs that are left. 0 trains all levels jointly.
    """

    model_type = "light_attention"
    sub_configs_defaults = {"encoder": SubConfigSpec(config_class=AutoConfig, model_type=WordLSTMConfig.model_type)}

    mlp_sizes: list[int] = field(default_factory=lambda: [512, 256])
    negatives: Literal["dynamic", "static"] = "dynamic"
    level_epochs: int = 0

    @property
    def whole_loss_epoch(self) -> int:
        return self.level_epochs * len(self.tree_levels)

    def validate_levels(self):
        check_least(self, 0, "level_epochs")
        if (self.level_epochs or self.negatives == "static") and not self.tree_levels:
            raise ValueError("`level_epochs` and static `negatives` are for a label tree: add one, or leave them out.")
        if self.negatives == "static" and not self.level_epochs:
            raise ValueError("Static `negatives` need `level_epochs` of at least 1: give it, or take dynamic ones.")
        if not self.mlp_sizes or min(self.mlp_sizes) < 1:
            raise ValueError(f"`mlp_sizes` must hold at least one width, each at least 1, got {self.mlp_sizes}.")
