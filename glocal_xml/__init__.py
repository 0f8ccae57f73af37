"""Extreme multi-label text classification as Hugging Face models; importing it registers them."""

import glocal_xml.loading  # noqa: F401 (completes the models)
from glocal_xml.data import LabelSpace, load_xmtc_dataset
from glocal_xml.explain import explain
from glocal_xml.metrics import xmtc_metrics
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
from glocal_xml.training import fit
from glocal_xml.version import __version__

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
