"""A tiny trained model on disk, for the commands that use one."""

import pytest
import torch

from glocal_xml.data import LabelSpace
from glocal_xml.modeling import GlocalXMLForMultiLabel

LABELS = [f"is {word}" for word in ("apple", "banana", "cherry", "dog", "elephant", "fox", "green", "house")]


@pytest.fixture(scope="session")
def model_folder(encoder_folder, tokenizer, tmp_path_factory):
    """A random model that tells labels and texts apart, as a run would leave it."""
    torch.manual_seed(0)
    model = GlocalXMLForMultiLabel.from_encoder(encoder_folder, label_names=LABELS, mlp_size=8)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
        model.encoder.get_input_embeddings().weight.normal_(std=3.0)
    folder = tmp_path_factory.mktemp("models") / "tiny"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    LabelSpace(LABELS, [3] * len(LABELS), num_texts=12).save(folder)
    return str(folder)
