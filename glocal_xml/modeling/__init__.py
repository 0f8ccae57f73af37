"""The families, and their registration with the Auto classes."""

from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification
from transformers.pipelines import PIPELINE_REGISTRY

from .adaptive_clusters import AdaptiveLabelClusters
from .attention_head import AttentionHead, EvidenceHead
from .configuration_aplc_xlnet import APLCXLNetConfig
from .configuration_base import AttentionConfig, XMTCConfig
from .configuration_glocal_xml import GlocalXMLConfig
from .configuration_light_attention import LightAttentionConfig
from .configuration_me_xml import MEXMLConfig
from .configuration_text_experts import TextExpertsConfig
from .configuration_word_lstm import WordLSTMConfig
from .experts import Blend, DenseMemory, LexicalExpert, MemoryExpert
from .label_scores import LabelScores, XMTCOutput
from .linear_head import LinearHead
from .modeling_aplc_xlnet import APLCXLNet
from .modeling_base import XMTCPreTrainedModel
from .modeling_glocal_xml import GlocalXMLForMultiLabel
from .modeling_glocal_xml_tree import GlocalXMLWithLabelTree
from .modeling_light_attention import LightAttentionForMultiLabel
from .modeling_light_attention_tree import LightAttentionWithLabelTree
from .modeling_me_xml import MEXMLForMultiLabel
from .modeling_me_xml_tree import MEXMLWithLabelTree
from .modeling_text_experts import TextExpertsForMultiLabel
from .modeling_word_lstm import WordLSTMModel
from .pipeline_xmtc import TASK, ExtremeMultiLabelPipeline

# A new family is one more row.
FAMILIES: dict[type[XMTCConfig], type[XMTCPreTrainedModel]] = {
    GlocalXMLConfig: GlocalXMLForMultiLabel,
    MEXMLConfig: MEXMLForMultiLabel,
    APLCXLNetConfig: APLCXLNet,
    LightAttentionConfig: LightAttentionForMultiLabel,
}
# What checkpoints bring along only where they use it; what they never do is set by `glocal_xml.loading`.
XMTCPreTrainedModel.blend_class = Blend
XMTCPreTrainedModel.pipeline_class = ExtremeMultiLabelPipeline

for config_class, model_class in {**FAMILIES, TextExpertsConfig: TextExpertsForMultiLabel}.items():
    AutoConfig.register(config_class.model_type, config_class, exist_ok=True)
    AutoModel.register(config_class, model_class, exist_ok=True)
    AutoModelForSequenceClassification.register(config_class, model_class, exist_ok=True)
    # Saved checkpoints carry the code, so that they load with `trust_remote_code=True` where the package is absent.
    config_class.register_for_auto_class()
    model_class.register_for_auto_class("AutoModel")
PIPELINE_REGISTRY.register_pipeline(TASK, pipeline_class=ExtremeMultiLabelPipeline, pt_model=AutoModel)

__all__ = [
    "FAMILIES",
    "TASK",
    "APLCXLNet",
    "APLCXLNetConfig",
    "AdaptiveLabelClusters",
    "AttentionConfig",
    "AttentionHead",
    "DenseMemory",
    "EvidenceHead",
    "ExtremeMultiLabelPipeline",
    "GlocalXMLConfig",
    "GlocalXMLForMultiLabel",
    "GlocalXMLWithLabelTree",
    "LabelScores",
    "LexicalExpert",
    "LightAttentionConfig",
    "LightAttentionForMultiLabel",
    "LightAttentionWithLabelTree",
    "LinearHead",
    "MEXMLConfig",
    "MEXMLForMultiLabel",
    "MEXMLWithLabelTree",
    "MemoryExpert",
    "TextExpertsConfig",
    "TextExpertsForMultiLabel",
    "WordLSTMConfig",
    "WordLSTMModel",
    "XMTCConfig",
    "XMTCOutput",
    "XMTCPreTrainedModel",
]
