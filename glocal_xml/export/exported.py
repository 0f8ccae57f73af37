"""Models as programs of `torch.export`, which run without this package and without Transformers."""

import torch
from torch import nn
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
    program = _Probabilities(model) if top_k is None else _BestLabels(model, top_k)
    with evaluation_mode(model), torch.no_grad():
        # What a model asks of its buffers once, such as the shape of a tree, it keeps; what it refuses it says here.
        program(*example)
        try:
            return torch.export.export(program, example, dynamic_shapes=(shape, shape))
        except RuntimeError as error:
            reason = str(error).strip().split("\n")[0]
            raise ValueError(f"The encoder {model.config.encoder.model_type} cannot be exported: {reason}") from error


class _Probabilities(nn.Module):
    """What is exported: one tensor from two."""

    def __init__(self, model: XMTCPreTrainedModel):
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids, attention_mask, output_scores=True).scores.all().sigmoid()  # (texts, labels)


class _BestLabels(nn.Module):
    """What is exported with `top_k`: ids and probabilities."""

    def __init__(self, model: XMTCPreTrainedModel, top_k: int):
        super().__init__()
        self.model, self.top_k = model, top_k

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
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
