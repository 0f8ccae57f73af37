"""What the Hub and the network answer, as one line that says what to do."""

from collections.abc import Iterator
from contextlib import contextmanager

from huggingface_hub import constants, errors, get_token
from huggingface_hub.errors import HfHubHTTPError, HTTPError

_LOG_IN = "set HF_TOKEN or run `hf auth login`"


def find_token(token: str | None) -> str:
    """The token that was given, or the one that this machine keeps."""
    token = token or get_token()
    if not token:
        raise ValueError(
            f"There is no token for the Hub: make one with write access at {constants.ENDPOINT}/settings/tokens, then "
            f"pass `--token`, {_LOG_IN}."
        )
    return token


@contextmanager
def plain_hub_errors(repo_id: str) -> Iterator[None]:
    """Turns the errors of a request about a repository into a `ValueError` or an `OSError` of one line."""
    try:
        yield
    except HfHubHTTPError as error:
        raise ValueError(_refusal(error, repo_id)) from error
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
