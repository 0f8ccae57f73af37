"""Models as ONNX files, for runtimes in other languages and on other devices."""

import importlib.util

import torch

from glocal_xml.modeling import XMTCPreTrainedModel

from .exported import exported

_PROBABILITIES, _BEST = ["probabilities"], ["top_k_ids", "top_k_scores"]


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
    names = _PROBABILITIES if top_k is None else _BEST
    return torch.onnx.export(exported(model, top_k), dynamo=True, output_names=names, verbose=False)
