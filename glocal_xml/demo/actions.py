"""What happens when something on the page is pressed, and what programs get through its API."""

import functools
import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from typing import Any

import gradio as gr

from glocal_xml.explain import Explanation

from .files import TaggedFile, tag_file, text_columns
from .rendering import PARTS, reasons
from .tagger import Tagger

UNREAD_SHOWN, MOST_SHOWN = 400, 20_000
# Of these, the likely labels are shown at once and the others on request.
LABELS_FOUND = 25


class Mistake(ValueError):
    """A mistake in a field of the page, beside which it is shown."""

    def __init__(self, field: str, message: str):
        super().__init__(message)
        self.field = field


class Actions:
    """Everything that the page does. Nothing is kept of a text: the browser sends it again with each question."""

    def __init__(self, tagger: Tagger):
        self.tagger = tagger

    def predict(
        self, text: str, top_k: int = 10, threshold: float = 0.0, candidate_labels: list[str] | None = None
    ) -> list[dict]:
        """The labels of a text, best first: `[{"label", "score", "branch_scores"}]`."""
        self.tagger.check(text, top_k if isinstance(top_k, int) else None)
        options = {"top_k": top_k, "threshold": threshold, "candidate_labels": candidate_labels}
        return self.tagger.tag([text], **options, branch_scores=True)[0]

    def explain(self, text: str, labels: list[str]) -> dict:
        """What led to given labels of a text: words with their places and numbers, and further parts."""
        return self.tagger.explain(text, labels).to_dict()

    def answer(self, text: str, top_k: int, threshold: float, names: str) -> Iterator[tuple[Any, str]]:
        """The labels of a text, then what led to the first of them."""
        if not text.strip():
            raise ValueError("There is no text; paste one first.")
        found = self.predict(text, max(top_k, LABELS_FOUND), 0.0, self._known_names(names))
        likely = sum(entry["score"] >= threshold for entry in found[:top_k])
        reason = self.tagger.why_no_reasons()
        digest = text_digest(text) if reason is None else None
        yield PARTS.label_list(found, likely, threshold, digest), "" if reason is None else PARTS.note(reason)
        if reason is None:
            yield gr.skip(), self._reasons(text, found[0]["label"])

    def choose_label(self, text: str, event: gr.EventData) -> Iterator[tuple[str]]:
        """What led to another label."""
        if text_digest(text) != event.digest:
            raise ValueError("The text was changed; press “Tag” again.")
        yield (self._reasons(text, event.label),)

    def _reasons(self, text: str, label: str) -> str:
        return reasons(readable_part(self.tagger.explain(text, [label])))

    def choose_file(self, file: str | None) -> Iterator[tuple[Any, ...]]:
        """The columns of a file to choose from, where it has any; earlier results are removed."""
        with short_names(file):
            columns = [] if file is None else text_columns(file)
        yield gr.Dropdown(columns, value=(columns or ["text"])[0], visible=bool(columns)), *no_file()

    def tag_file(
        self, file: str | None, text_column: str, top_k: int, threshold: float, names: str
    ) -> tuple[str, str]:
        """Every text of a file with its labels, as JSON lines and for spreadsheets."""
        tagged = self._tagged_file(file, text_column, top_k, threshold, names)
        return tagged.jsonl, tagged.csv

    def show_tagged_file(self, *request: Any) -> Iterator[tuple[Any, ...]]:
        """The first texts of a tagged file, and buttons that download it."""
        # Earlier results make room for the progress bar.
        yield "", *no_file()[1:]
        tagged = self._tagged_file(*request)
        buttons = (gr.DownloadButton(value=path, visible=True) for path in (tagged.csv, tagged.jsonl))
        yield PARTS.file_summary(tagged.num_texts, tagged.first), *buttons

    def _tagged_file(self, file: str | None, text_column: str, top_k: int, threshold: float, names: str) -> TaggedFile:
        if file is None:
            raise ValueError("There is no file; choose one first.")
        self.tagger.check("", top_k)
        options = {"top_k": top_k, "threshold": threshold, "candidate_labels": self._known_names(names)}
        with short_names(file):
            columns = text_columns(file)
            if columns and text_column not in columns:
                known = ", ".join(columns[:10])
                raise Mistake("column", f"There is no text in a column {text_column!r}; choose one of {known}.")
            return tag_file(self.tagger, file, text_column, **options)

    def _known_names(self, lines: str) -> list[str] | None:
        """Names of labels, one per line, each once; `None` where all labels are meant."""
        names = list(dict.fromkeys(line.strip() for line in lines.splitlines() if line.strip()))
        unknown = self.tagger.unknown(names)
        if unknown:
            more = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
            raise Mistake("names", f"The model has no labels called {', '.join(unknown[:3])}{more}.")
        return names or None


def no_file() -> tuple[Any, ...]:
    """The results of a file before there are any: a note, and no downloads."""
    hint = "Choose a file and press “Tag the file”: you can then download it with its labels."
    return PARTS.note(hint), *(gr.DownloadButton(value=None, visible=False) for _ in range(2))


def text_digest(text: str) -> str:
    """Tells one text from another."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def readable_part(explanation: Explanation) -> Explanation:
    """The start of a text that may be a book, without most of what comes after the last word that was read."""
    read = explanation.words[-1].end if explanation.words else 0
    return explanation.start(min(read + UNREAD_SHOWN, MOST_SHOWN))


@contextmanager
def short_names(path: str | None) -> Iterator[None]:
    """Errors name a file without its folder on the server, which must not be shown."""
    try:
        yield
    except Mistake:
        raise
    except (ValueError, OSError) as error:
        raise ValueError(str(error).replace(path, path.replace("\\", "/").rpartition("/")[2])) from error


@contextmanager
def messages() -> Iterator[None]:
    """Shows what is wrong, escaped, since Gradio shows it as HTML."""
    try:
        yield
    except (ValueError, OSError) as error:
        raise gr.Error(escape(str(error), quote=False), print_exception=False) from error


def beside_fields(
    action: Callable[..., Iterator[tuple[Any, ...]]], fields: dict[str, gr.HTML], results: dict[Any, Any]
) -> Callable[..., Iterator[dict]]:
    """
    An action, which yields values of all results, with errors shown beside the fields that caused them: `fields` has a
    place for each, first the one for errors that name no field; `results` what each result becomes after an error.
    """

    @functools.wraps(action)
    def answered(*args: Any) -> Iterator[dict]:
        yield {field: gr.HTML(visible=False) for field in fields.values()}
        try:
            for values in action(*args):
                yield dict(zip(results, values, strict=True))
        except (ValueError, OSError) as error:
            place = fields[getattr(error, "field", next(iter(fields)))]
            yield {**results, place: gr.HTML(PARTS.mistake(str(error)), visible=True)}

    return answered
