"""Configuration of LightAttention."""

from dataclasses import field

from huggingface_hub.dataclasses import strict
from transformers import AutoConfig
from transformers.configuration_utils import SubConfigSpec

from .configuration_base import XMTCConfig
from .configuration_word_lstm import WordLSTMConfig


@strict
class LightAttentionConfig(XMTCConfig):
    """
    Configuration of [`LightAttentionForMultiLabel`]. Shared fields are described in [`XMTCConfig`]; the encoder, when
    left out, is [`WordLSTMConfig`] with its defaults.

    Args:
        mlp_sizes (`list[int]`, *optional*, defaults to `[512, 256]`):
            Widths of the fully connected layers that turn what a label read into its score; the output layer, one
            number per label, comes after them and is not counted. The paper has "3 or 4" of them without their
            widths; the default is that of AttentionXML for its larger data sets, `[256]` that for its small ones.
        label_bias (`bool`, *optional*, defaults to `False`):
            Adds one bias per label; see [`GlocalXMLConfig`].
    """

    model_type = "light_attention"
    sub_configs_defaults = {"encoder": SubConfigSpec(config_class=AutoConfig, model_type=WordLSTMConfig.model_type)}

    mlp_sizes: list[int] = field(default_factory=lambda: [512, 256])
    label_bias: bool = False

    def validate_mlp_sizes(self):
        """Part of the checks that `@strict` runs at construction and before saving."""
        if not self.mlp_sizes or min(self.mlp_sizes) < 1:
            raise ValueError(f"`mlp_sizes` must hold at least one width, each at least 1, got {self.mlp_sizes}.")


__all__ = ["LightAttentionConfig"]
