"""
How a model comes into memory: started around an encoder, checked when it is loaded, its labels split over processes.

None of this travels with checkpoints. Models have a place for each, which is filled here.
"""

from glocal_xml.modeling import XMTCPreTrainedModel

from . import label_shards
from .load_checks import check_loaded_model, check_sizes
from .start_model import make_config, start_model

XMTCPreTrainedModel.model_starter = staticmethod(start_model)
XMTCPreTrainedModel.load_checks = (check_sizes, check_loaded_model)
XMTCPreTrainedModel.label_splitter = label_shards

__all__ = ["label_shards", "make_config", "start_model"]
