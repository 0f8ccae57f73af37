"""A tiny model on disk with names that attack, and its page on a port of its own."""

import socket

import pytest
import torch
from hostile_names import EXAMPLE, LABELS

from glocal_xml import GlocalXMLForMultiLabel
from glocal_xml.demo import build_page


@pytest.fixture(scope="session")
def page_model(encoder_folder, tokenizer, tmp_path_factory):
    torch.manual_seed(0)
    model = GlocalXMLForMultiLabel.from_encoder(encoder_folder, label_names=LABELS, mlp_size=4)
    with torch.no_grad():
        for head in model.branch_heads().values():
            head.label_embeddings.weight.normal_()
    folder = tmp_path_factory.mktemp("models") / "tiny"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def page_url(page_model):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    page = build_page(page_model, [EXAMPLE])
    _, url, _ = page.launch(server_name="127.0.0.1", server_port=port, prevent_thread_lock=True, quiet=True)
    yield url
    page.close(verbose=False)
