"""
Trained models for use elsewhere: with an int8 encoder, as a program of `torch.export`, which needs neither this
package nor Transformers, or as ONNX.
"""

import copy
import importlib.util
import warnings
from typing import Any

import torch
from torch import nn
from torch.ao.quantization import per_channel_dynamic_qconfig, quantize_dynamic
from torch.export import Dim, ExportedProgram

from glocal_xml.modeling import XMTCPreTrainedModel
from glocal_xml.modeling.encoder import evaluation_mode, position_limit

# Encoders that decide by the lengths of texts what they compute.
_REFUSED_ENCODERS = ("word_lstm", "xlnet")


def exported(model: XMTCPreTrainedModel, top_k: int | None = None) -> ExportedProgram:
    """
    The program that gives the probabilities of all labels, of shape (texts, labels), from `input_ids` and
    `attention_mask`, for any number of texts and of tokens from two on. It checks nothing that it is given.

    ```py
    torch.export.save(exported(model), "model.pt2")
    program = torch.export.load("model.pt2").module()  # needs torch alone
    probabilities = program(tokens["input_ids"], tokens["attention_mask"])
    ```

    Args:
        model: A trained model without experts; these choose by the text what they compute, and cannot be exported.
        top_k: Where given, the program gives ids and probabilities of so many best labels instead, each (texts,
            top_k), as `predict_top_k` finds them; of equal scores any may come first.
    """
    _check(model)
    most = position_limit(model.encoder)
    shape = {0: Dim("texts", min=1), 1: Dim("tokens", min=2, max=most)}
    tokens = torch.full((2, 8 if most is None else min(8, most)), 1, device=model.device)
    example = (tokens, torch.ones_like(tokens))
    program = _Program(model, top_k)
    with evaluation_mode(model), torch.no_grad():
        # What a model asks of its buffers once, such as the shape of a tree, it keeps; what it refuses it says here.
        program(*example)
        try:
            return torch.export.export(program, example, dynamic_shapes=(shape, shape))
        except RuntimeError as error:
            reason = str(error).strip().split("\n")[0]
            raise ValueError(f"The encoder {model.config.encoder.model_type} cannot be exported: {reason}") from error


def onnx_program(model: XMTCPreTrainedModel, top_k: int | None = None) -> torch.onnx.ONNXProgram:
    """
    What [`exported`] gives, as ONNX (extra `onnx`). Inputs are `input_ids` and `attention_mask`, outputs
    `probabilities`, or `top_k_ids` and `top_k_scores`.

    ```py
    onnx_program(model).save("model.onnx")
    session = onnxruntime.InferenceSession("model.onnx")
    probabilities = session.run(None, {"input_ids": ids, "attention_mask": mask})[0]
    ```

    Args:
        model, top_k: As for [`exported`].
    """
    missing = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    if missing:
        raise ValueError(f"ONNX needs {' and '.join(missing)}: `pip install glocal-xml[onnx]`.")
    names = ["probabilities"] if top_k is None else ["top_k_ids", "top_k_scores"]
    return torch.onnx.export(exported(model, top_k), dynamo=True, output_names=names, verbose=False)


class _Program(nn.Module):
    """What is exported: probabilities of all labels, or ids and probabilities of the best, from two tensors."""

    def __init__(self, model: XMTCPreTrainedModel, top_k: int | None):
        super().__init__()
        self.model, self.top_k = model, top_k

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
        if self.top_k is None:
            return self.model(input_ids, attention_mask, output_scores=True).scores.all().sigmoid()  # (texts, labels)
        best = self.model(input_ids, attention_mask, top_k=self.top_k, output_logits=False)
        return best.top_k_ids, best.top_k_scores  # (texts, top_k) each


def _check(model: XMTCPreTrainedModel) -> None:
    if model.encoder is None:
        raise ValueError("A model without an encoder counts tokens, and cannot be exported: use the pipeline.")
    if model.text_experts():
        raise ValueError(
            f"The experts {', '.join(model.text_experts())} look up whole texts, and cannot be exported: train "
            "with `--experts none`, or use the pipeline."
        )
    encoder = model.config.encoder.model_type
    if encoder in _REFUSED_ENCODERS:
        raise ValueError(f"The encoder {encoder} decides by the lengths of texts what it computes: no export of it.")
    if any(hasattr(parameter, "to_local") for parameter in model.parameters()):
        raise ValueError("The labels of this model are split over processes: load it whole to export it.")


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
