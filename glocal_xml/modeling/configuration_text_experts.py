"""Configuration of a model without an encoder."""

from huggingface_hub.dataclasses import strict

from .configuration_base import XMTCConfig


@strict
class TextExpertsConfig(XMTCConfig):
    """Configuration of [`TextExpertsForMultiLabel`], which has no encoder. Fields are described in [`XMTCConfig`]."""

    model_type = "text_experts"
    sub_configs_defaults = {}
