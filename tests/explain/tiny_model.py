"""A tiny model on disk, with label names that no page nor terminal should take at their word."""

import torch

from glocal_xml import GlocalXMLForMultiLabel

LABEL_NAMES = ["x", "<script>alert(1)</script>", "$z$ & \x1b[31mred"]


def save_tiny_model(folder, encoder_folder, tokenizer, **options):
    torch.manual_seed(0)
    model = GlocalXMLForMultiLabel.from_encoder(encoder_folder, label_names=LABEL_NAMES, mlp_size=4, **options)
    with torch.no_grad():
        model.local_head.label_embeddings.weight.normal_()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)
