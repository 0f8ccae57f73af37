"""A trained model as a repository on the Hub, in one commit, and a page for it as a Space."""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import NamedTuple

import yaml
from huggingface_hub import HfApi, ModelCard, constants, errors, get_token
from huggingface_hub.errors import HfHubHTTPError, HTTPError
from huggingface_hub.utils import validate_repo_id

from glocal_xml.version import __version__

from .model_card import card_of_run, describe_card, license_notice
from .published_files import (
    LEFT_OUT,
    Files,
    commit_operations,
    folder_to_publish,
    memory_notice,
    published_files,
    regular_file,
)
from .run_files import CARD_FILE, RESULTS_FILE, holds_card

logger = logging.getLogger(__name__)

_LOG_IN = "set HF_TOKEN or run `hf auth login`"
APP = """\
from glocal_xml.demo import build_page

page = build_page({model_id!r})

if __name__ == "__main__":
    page.launch()
"""


class Published(NamedTuple):
    """Where a model is now: the address of its repository, the commit, and the address of its Space."""

    url: str
    commit: str
    space_url: str | None


def publish(
    folder: str | os.PathLike,
    repo_id: str,
    *,
    private: bool = False,
    revision: str | None = None,
    token: str | None = None,
    commit_message: str | None = None,
    license: str | None = None,
    language: str | None = None,
    space: bool | str = False,
    leave_out_memory: bool = False,
) -> Published:
    """
    Publishes a trained model with its tokenizer, label names, code, results and card. With the experts `memory` and
    `dense` go bags of token ids and embeddings of its training texts; a warning tells of it before anything is sent.

    All of it is one commit: an upload that breaks off leaves what was there before. Files that have not changed are
    not sent again; weights, code and tokenizer files that the model no longer has are deleted.

    Args:
        folder: Folder of a run.
        repo_id: `user/name` or `organisation/name`; made where it does not exist.
        private: Whether a new repository is visible to its owner alone; one that exists must be so already.
        revision: Branch to publish to, made where it does not exist; `main` by default.
        token: Token with write access; by default the one that this machine keeps.
        commit_message: What the history says.
        license, language: Of the model and its texts, for the card, such as `apache-2.0` and `en`; by default those of
            the card that is there.
        space: Whether to make a Space that shows the model, called like it, or the id of that Space.
        leave_out_memory: Whether a copy without memories of texts is published. Its blend is then to be fitted again.
    """
    space_id = check_space(repo_id, space, revision)
    with folder_to_publish(folder, leave_out_memory) as place:
        files = model_files(place, repo_id, license=license, language=language)
        page = None if space_id is None else space_files(repo_id, space_id)
        token = token or get_token()
        if not token:
            raise ValueError(
                f"There is no token for the Hub: make one with write access at {constants.ENDPOINT}/settings/tokens, "
                f"then pass `--token`, {_LOG_IN}."
            )
        api = HfApi(token=token, library_name="glocal-xml", library_version=__version__)
        with plain_hub_errors(repo_id):
            url = _make_repo(api, repo_id, private=private)
            if revision is not None:
                api.create_branch(repo_id, branch=revision, exist_ok=True)
            known = api.list_repo_files(repo_id, revision=revision)
            if CARD_FILE in known:
                path = api.hf_hub_download(repo_id, CARD_FILE, revision=revision)
                files[CARD_FILE] = _described_as_before(files[CARD_FILE], path)
            operations = commit_operations(files, known)
            for notice in notices(files, leave_out_memory):
                logger.warning(notice)
            # Not `upload_folder`, which commits what it has after some minutes: half a model might stay.
            message = commit_message or "Publish the model"
            commit = api.create_commit(repo_id, operations, commit_message=message, revision=revision)
    if page is None:
        return Published(url, commit.oid, None)
    with plain_hub_errors(space_id):
        space_url = _make_repo(api, space_id, private=private, repo_type="space", space_sdk="gradio")
        known = api.list_repo_files(space_id, repo_type="space")
        operations = commit_operations(page, known, ["glocal_xml/*"])
        api.create_commit(space_id, operations, commit_message=f"Show {repo_id}", repo_type="space")
    return Published(url, commit.oid, space_url)


def model_files(
    folder: str | os.PathLike, repo_id: str, *, license: str | None = None, language: str | None = None
) -> Files:
    """The files of the repository of a model, its card among them."""
    check_repo_id(repo_id)
    files = published_files(folder)
    if os.path.lexists(Path(folder, CARD_FILE)) and not holds_card(folder):
        # A person's own card is better than any that is made of results.
        card = regular_file(folder, CARD_FILE).read_text(encoding="utf-8")
    elif RESULTS_FILE in files:
        _, card = card_of_run(folder, repo_id=repo_id)
    else:
        raise ValueError(
            f"{folder} has neither {RESULTS_FILE} nor {CARD_FILE}: a card needs results. Call "
            f"`XMTCTrainer.create_model_card()` after training, or write {CARD_FILE} yourself."
        )
    if license or language:
        card = describe_card(card, license=license, language=language)
    return {CARD_FILE: card.encode("utf-8"), **files}


def notices(files: Files, leave_out_memory: bool) -> list[str]:
    """What a person should know of the memory and the licence of a model before it is published."""
    told = (LEFT_OUT if leave_out_memory else memory_notice(files), license_notice(files[CARD_FILE]))
    return [notice for notice in told if notice is not None]


def check_space(repo_id: str, space: bool | str, revision: str | None) -> str | None:
    """The id of the Space that is wanted, if one is."""
    check_repo_id(repo_id)
    if not space:
        return None
    if revision not in (None, "main"):
        raise ValueError(f"A Space shows the main branch of a model: leave out revision {revision!r}, or the Space.")
    space_id = repo_id if space is True else space
    check_repo_id(space_id)
    return space_id


def check_repo_id(repo_id: str) -> None:
    """Refuses what cannot be the id of a repository; without its owner the card could not tell how to load it."""
    try:
        validate_repo_id(repo_id)
    except ValueError as error:
        raise ValueError(f"{repo_id!r} cannot be the id of a repository: {str(error).splitlines()[0]}") from None
    if repo_id.count("/") != 1:
        raise ValueError(f"{repo_id!r} has no owner: write user/name or organisation/name.")


def _described_as_before(card: bytes, old_card: str) -> bytes:
    """What was said once of licence and language holds until something else is said."""
    old, new = ModelCard.load(old_card, ignore_metadata_errors=True).data, ModelCard(card.decode("utf-8")).data
    facts = {name: old.get(name) for name in ("license", "language") if new.get(name) is None and old.get(name)}
    return describe_card(card.decode("utf-8"), **facts).encode("utf-8") if facts else card


def _make_repo(api: HfApi, repo_id: str, *, private: bool, repo_type: str = "model", **options: str) -> str:
    # Otherwise left to the organisation, whose new repositories may be private by default.
    url = api.create_repo(repo_id, private=private or None, repo_type=repo_type, exist_ok=True, **options)
    if private and not api.repo_info(repo_id, repo_type=repo_type).private:
        raise ValueError(f"{repo_id} exists and is public: make it private in its settings first, or take another id.")
    return str(url)


def space_files(model_id: str, space_id: str) -> Files:
    """
    The files of a Space that shows a model.

    The package comes along as source, since the index that a Space installs from does not have it.
    """
    package, kinds = Path(__file__).parents[1], (".py", ".jinja", ".yaml", ".css", ".js", ".typed")
    sources = sorted(path for path in package.rglob("*") if path.suffix in kinds)
    name = space_id.split("/")[1]
    try:
        gradio, needed = version("gradio"), requires("glocal-xml") or ()
    except PackageNotFoundError as error:
        raise ValueError(
            f"{error.name} is not installed, and a Space has to be told its version: `pip install glocal-xml[demo]`."
        ) from None
    # What the package needs, as its installation tells, without the extras.
    needed = [line for line in needed if "extra ==" not in line]
    metadata = {
        "title": name,
        "emoji": "🏷️",
        "colorFrom": "blue",
        "colorTo": "green",
        "sdk": "gradio",
        "sdk_version": gradio,
        # Otherwise a Space takes one that may be older than the package allows.
        "python_version": ".".join(map(str, sys.version_info[:2])),
        "app_file": "app.py",
        "models": [model_id],
        "short_description": f"Labels for a text by {name}"[:60],
    }
    header = yaml.safe_dump(metadata, sort_keys=False, allow_unicode=True)
    text = f"Paste a text and see which labels `{model_id}` gives it."
    return {
        "README.md": f"---\n{header}---\n\n# {name}\n\n{text}\n".encode(),
        "app.py": APP.format(model_id=model_id).encode(),
        "requirements.txt": "".join(f"{line}\n" for line in [*needed, f"gradio>={gradio}"]).encode(),
        **{f"glocal_xml/{path.relative_to(package).as_posix()}": path for path in sources},
    }


@contextmanager
def plain_hub_errors(repo_id: str) -> Iterator[None]:
    """Turns the errors of a request about a repository into a `ValueError` or an `OSError` of one line."""
    try:
        yield
    except (errors.OfflineModeIsEnabled, errors.LocalEntryNotFoundError) as error:
        offline = "HF_HUB_OFFLINE is set" if constants.is_offline_mode() else f"{constants.ENDPOINT} is out of reach"
        raise OSError(f"{repo_id} cannot be asked for: {offline}. Go online and try again.") from error
    except (HTTPError, RuntimeError) as error:
        # Uploads run in threads, which report what went wrong as the cause.
        cause = error if isinstance(error, HTTPError) else error.__cause__
        if isinstance(cause, HfHubHTTPError):
            raise ValueError(_refusal(cause, repo_id)) from error
        if not isinstance(cause, HTTPError):
            raise
        raise OSError(
            f"The connection to {constants.ENDPOINT} failed ({_first_line(cause)}). {repo_id} is as it was, since it "
            "changes by whole commits only: check the network and try again."
        ) from error


def _refusal(error: HfHubHTTPError, repo_id: str) -> str:
    status = error.response.status_code
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{repo_id} has no such branch, tag or commit; leave out `--revision` for its main branch."
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"There is no {repo_id} on the Hub, or it is private: {_LOG_IN} with a token that may read it."
    if status == 401:
        return f"The Hub does not accept the token: make a new one at {constants.ENDPOINT}/settings/tokens."
    if status == 403:
        owner = repo_id.split("/")[0]
        return f"The token may not write to {repo_id}: take one with write access, of {owner} or of a member of it."
    return f"The Hub refused {repo_id} ({status}): {error.server_message or _first_line(error)}"


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
