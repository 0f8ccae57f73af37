"""Fixtures: a Hub on this machine, and a model to publish."""

import shutil
from pathlib import Path

import pytest
import transformers.utils.hub
from hub_server import HubServer
from huggingface_hub import constants

from glocal_xml.cli.train import main

TOKENS = {"hf_writer0": ("me", True), "hf_reader0": ("me", False), "hf_other00": ("other", True)}


@pytest.fixture(scope="session")
def trained(encoder_folder, text_file, tmp_path_factory):
    """The folder of a tiny run, with all that a run leaves."""
    folder = tmp_path_factory.mktemp("outputs") / "tiny"
    main(
        [
            *("--encoder", encoder_folder, "--model_config", '{"mlp_size": 8, "top_k": 4}', "--use_cpu", "true"),
            *("--train_file", text_file("train.jsonl", 40), "--test_file", text_file("test.jsonl", 8, first=40)),
            *("--validation_size", "8", "--metrics_at", "1", "2", "--num_train_epochs", "2", "--logging_steps", "1"),
            *("--output_dir", str(folder)),
        ]
    )
    return folder


@pytest.fixture
def run_folder(trained, tmp_path):
    """A copy that a test may change."""
    return Path(shutil.copytree(trained, tmp_path / "tiny"))


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """The server, with this process pointed to it; no token is kept on this machine."""
    with pytest.MonkeyPatch.context() as patch, HubServer(TOKENS) as server:
        patch.setattr(constants, "HF_HUB_OFFLINE", False)
        patch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        patch.setattr(constants, "ENDPOINT", server.url)
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.partition("/{repo_id}")
        patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.url + "".join(template[1:]))
        patch.setattr(constants, "HF_HUB_CACHE", str(tmp_path_factory.mktemp("hub")))
        patch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path_factory.mktemp("home") / "token"))
        patch.setattr(transformers.utils.hub, "_hf_api", None)
        patch.delenv("HF_TOKEN", raising=False)
        server.home = tmp_path_factory.mktemp("cache")
        yield server
