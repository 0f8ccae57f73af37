"""Extreme multi-label text classification as Hugging Face models; importing it registers them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

import glocal_xml.loading  # noqa: F401 (completes the models)
from glocal_xml.explain import explain
from glocal_xml.modeling import (
    AdaptiveLabelClusters,
    APLCXLNet,
    APLCXLNetConfig,
    ExtremeMultiLabelPipeline,
    GlocalXMLConfig,
    GlocalXMLForMultiLabel,
    LightAttentionConfig,
    LightAttentionForMultiLabel,
    MEXMLConfig,
    MEXMLForMultiLabel,
)
from glocal_xml.pretrained import minilm_path
from glocal_xml.version import __version__

if TYPE_CHECKING:
    from glocal_xml.data import LabelSpace, load_xmtc_dataset
    from glocal_xml.metrics import xmtc_metrics
    from glocal_xml.runs import fit

__all__ = [
    "APLCXLNet",
    "APLCXLNetConfig",
    "AdaptiveLabelClusters",
    "ExtremeMultiLabelPipeline",
    "GlocalXMLConfig",
    "GlocalXMLForMultiLabel",
    "LabelSpace",
    "LightAttentionConfig",
    "LightAttentionForMultiLabel",
    "MEXMLConfig",
    "MEXMLForMultiLabel",
    "__version__",
    "explain",
    "fit",
    "load_xmtc_dataset",
    "minilm_path",
    "xmtc_metrics",
]
# Imported when they are asked for: Trainer, datasets and scikit-learn take seconds that using a model need not.
_LATER = {"LabelSpace": "data", "fit": "runs", "load_xmtc_dataset": "data", "xmtc_metrics": "metrics"}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
