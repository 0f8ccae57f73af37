"""Arguments of a run that say which model to train or to use."""

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .option import option

# An object, given as JSON on the command line; checked arguments hold the object.
if TYPE_CHECKING:
    JSONObject = dict[str, Any]
else:
    JSONObject = dict | str | None
# What `--encoder` is for a model of experts alone.
NO_ENCODER = "none"


@dataclass
class ModelArguments:
    """Which model to train or to use."""

    _argument_group_name = "model"

    model_type: str = option("glocal_xml", "Family of a new model: aplc_xlnet, glocal_xml, light_attention or me_xml.")
    encoder: str | None = option(
        None,
        "Encoder a new model starts from: a folder, a Hub id, `minilm` for the one that the extra "
        "`minilm` installs, `word_lstm` for one made from the training texts and word vectors, or `none` for a "
        "model of experts alone, with the tokenizer of `minilm`.",
    )
    tokenizer: str | None = option(
        None,
        "With `--encoder none`: folder or Hub id of a tokenizer, that of the encoder that may come later; "
        "default: that of `minilm` where it is installed, else one of words made from the training texts.",
    )
    model: str | None = option(None, "Trained model (folder or Hub id) to evaluate, predict with or train further.")
    model_config: JSONObject = option(None, "Fields of the model's configuration, as JSON: '{\"local_layer\": 1}'.")

    label_tree: dict | str | None = option(
        None,
        "Score clusters of labels first, and then the labels of the best ones alone: options to build the "
        'tree with, as JSON: \'{"cluster_size": 100, "height": 1, "branching": 16, "features": "texts", '
        "\"seed\": 0}' ('{}' for these, their defaults; features may be texts, names or text_embeddings), or the "
        "label_tree.npz of another run. For tens of thousands of labels and more.",
    )
    experts: list[str] = option(
        ["lexical", "memory", "dense"],
        "Experts beside the heads of the family, fitted on the training texts in seconds to minutes: "
        "`lexical` (a linear model over tokens), `memory` (training texts with similar words), `dense` (training "
        "texts with similar document embeddings; needs an encoder), or `none`.",
    )
    encoder_dropout: bool = option(
        False,
        "Train with the dropout that the encoder was pretrained with. Off by default, which makes a step "
        "about a quarter shorter on a CPU.",
    )
    encoder_options: JSONObject = option(
        None,
        "Options with which the encoder of a new model is loaded, such as `revision`, as JSON: "
        '\'{"revision": "main"}\'. Those of word_lstm: vectors (a file), max_words, min_texts, '
        "embedding_size, lstm_size, num_hidden_layers, embedding_dropout, output_dropout.",
    )

    def __post_init__(self):
        # Here, since help texts are made of these fields, and torch takes seconds.
        from glocal_xml.modeling import FAMILIES
        from glocal_xml.modeling.configuration_base import EXPERTS

        types = sorted(config_class.model_type for config_class in FAMILIES)
        self.model_config = read_dict("model_config", self.model_config)
        self.encoder_options = read_dict("encoder_options", self.encoder_options)
        # `{}` asks for a tree with the defaults, and a file name is no JSON.
        if isinstance(self.label_tree, str) and self.label_tree.lstrip().startswith("{"):
            self.label_tree = read_dict("label_tree", self.label_tree)
        if self.model_type not in types:
            raise ValueError(f"`model_type` must be one of {', '.join(types)}, got {self.model_type!r}.")
        self.experts = [name for name in dict.fromkeys(self.experts) if name != "none"]
        if self.encoder == NO_ENCODER:
            self.experts = [name for name in self.experts if name != "dense"]
        unknown = [name for name in self.experts if name not in EXPERTS]
        if unknown:
            raise ValueError(
                f"`experts` must be among {', '.join(EXPERTS)} and none, got {', '.join(map(str, unknown))}."
            )
        if self.model is not None and self.label_tree is not None:
            raise ValueError("`label_tree` is for new models; a trained model keeps the tree it has.")


def read_dict(name: str, value: dict | str | None) -> dict[str, Any]:
    """A mapping that may have been given as JSON on the command line."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"`{name}` must be a JSON object, got {value!r} ({error}).") from None
    if value is not None and not isinstance(value, dict):
        raise ValueError(f"`{name}` must be a mapping, got {value!r}.")
    return value or {}
