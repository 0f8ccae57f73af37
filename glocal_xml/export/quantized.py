"""Models whose encoder computes in int8, for faster prediction on a CPU."""

import copy
import warnings
from typing import Any

from torch import nn
from torch.ao.quantization import per_channel_dynamic_qconfig, quantize_dynamic

from glocal_xml.modeling import XMTCPreTrainedModel


def quantized(model: XMTCPreTrainedModel) -> XMTCPreTrainedModel:
    """
    A copy of a model for prediction: the linear layers of its encoders have int8 weights, a scale for each row, and
    quantise what they are given on the fly. Heads, label tables and experts stay as they are.

    It is made in a second, lives in this process and is neither saved nor trained.

    Args:
        model: A trained model on the CPU; it is left as it is.
    """
    if model.device.type != "cpu":
        raise ValueError(f"int8 is for prediction on a CPU, and the model is on {model.device}: `model.to('cpu')`.")
    if model.encoder is None:
        raise ValueError("A model without an encoder has no linear layers to quantise: use the model itself.")
    encoders = [model.encoder, *(getattr(model, "level_encoders", None) or ())]
    if not any(isinstance(module, nn.Linear) for encoder in encoders for module in encoder.modules()):
        raise ValueError(f"{model.config.encoder.model_type} has no linear layers to quantise: use the model itself.")
    result = copy.deepcopy(model).eval()
    with warnings.catch_warnings():
        # torch announces its removal; what is to replace it, torchao, was 20 times slower on a CPU without AVX-512.
        warnings.simplefilter("ignore", (DeprecationWarning, UserWarning))
        for encoder in (result.encoder, *(getattr(result, "level_encoders", None) or ())):
            quantize_dynamic(encoder, {nn.Linear: per_channel_dynamic_qconfig}, inplace=True)
    # torch cannot write packed weights as safetensors, and would leave half a folder.
    result.save_pretrained = _refuse_to_save
    return result


def _refuse_to_save(*args: Any, **kwargs: Any) -> None:
    raise ValueError("A model with an int8 encoder is not saved: save the model that it was made of.")
