"""What happens when something on the page is pressed, and what programs get through its API."""

import functools
import hashlib
from collections.abc import Callable
from html import escape
from typing import Any, NamedTuple

import gradio as gr

from glocal_xml.explain import Explanation

from .file_tagging import TaggedFile, tag_file
from .rendering import file_summary, label_list, note, words_read
from .tagger import Predictions, Tagger

NO_TEXT = "Paste a text and press “Tag”: its labels appear here."
UNREAD_SHOWN, MOST_SHOWN = 400, 20_000
NO_LABEL = "No label reaches the lowest score; set it lower under “Options”."


class Answer(NamedTuple):
    """
    What is on the page for a text, kept for when another of its labels is chosen. The text stays in the browser: with
    all words of all labels, an answer took up to megabytes for an hour.
    """

    predictions: Predictions
    text_digest: str


class Actions:
    """
    Everything that the page does.

    Args:
        tagger: The model.
    """

    def __init__(self, tagger: Tagger):
        self.tagger = tagger

    def predict(
        self,
        text: str,
        top_k: int = 10,
        threshold: float = 0.0,
        candidate_labels: list[str] | None = None,
    ) -> list[dict]:
        """The labels of a text, best first: `[{"label", "score", "branch_scores"}]`."""
        self.tagger.check(text, top_k if isinstance(top_k, int) else None)
        (predictions,) = self.tagger.tag(
            [text],
            top_k=top_k,
            threshold=threshold,
            candidate_labels=candidate_labels,
            branch_scores=True,
        )
        return predictions

    def explain(self, text: str, labels: list[str]) -> dict:
        """What is behind given labels of a text: words with their places and numbers, and further parts."""
        return self.tagger.explain(text, labels).to_dict()

    def answer(self, text: str, top_k: int, threshold: float, names: str) -> tuple[Answer | None, str, str]:
        """The labels of a text, and the words that the first of them read."""
        if not text.strip():
            return None, note(NO_TEXT), ""
        predictions = self.predict(text, top_k, threshold, listed_names(names))
        if not predictions:
            return None, note(NO_LABEL), ""
        reason = self.tagger.why_no_words()
        if reason is not None:
            return None, label_list(predictions, None), note(reason)
        return Answer(predictions, digest(text)), *self._chosen(text, predictions, 0)

    def choose_label(self, answer: Answer | None, text: str, event: gr.EventData) -> tuple[str, str]:
        """The words that another label read."""
        if answer is None or event.index not in range(len(answer.predictions)) or digest(text) != answer.text_digest:
            raise ValueError("These labels are no longer known; press “Tag” again.")
        return self._chosen(text, answer.predictions, event.index)

    def _chosen(self, text: str, predictions: Predictions, row: int) -> tuple[str, str]:
        explanation = readable_part(self.tagger.explain(text, [predictions[row]["label"]]))
        return label_list(predictions, row), words_read(explanation, 0)

    def tag_file(
        self,
        file: str | None,
        text_column: str,
        top_k: int,
        threshold: float,
        names: str,
        progress: gr.Progress = gr.Progress(),  # noqa: B008 (Gradio knows it by this default)
    ) -> tuple[TaggedFile, str, str]:
        """Every text of a file with its labels, as JSON lines and for spreadsheets."""
        if file is None:
            raise ValueError("There is no file; choose one first.")
        self.tagger.check("", top_k)
        tagged = tag_file(
            self.tagger,
            file,
            text_column,
            progress,
            top_k,
            threshold=threshold,
            candidate_labels=listed_names(names),
        )
        return tagged, tagged.jsonl, tagged.csv

    def show_file(self, tagged: TaggedFile) -> tuple[str, Any, Any]:
        """A word about a tagged file, and buttons that can be pressed."""
        return file_summary(tagged.num_texts, tagged.first), *(gr.DownloadButton(interactive=True) for _ in range(2))


def digest(text: str) -> str:
    """Tells one text from another."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def readable_part(explanation: Explanation) -> Explanation:
    """The start of a text that may be a book, without most of what comes after the last word that was read."""
    read = explanation.words[-1].end if explanation.words else 0
    return explanation.start(min(read + UNREAD_SHOWN, MOST_SHOWN))


def listed_names(lines: str) -> list[str] | None:
    """Names of labels, one per line, each once; none where all labels are meant."""
    return list(dict.fromkeys(line.strip() for line in lines.splitlines() if line.strip())) or None


def with_messages(function: Callable) -> Callable:
    """Tells people what they did wrong, escaped, since Gradio shows it as HTML."""

    @functools.wraps(function)
    def answered(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (ValueError, OSError) as error:
            raise gr.Error(escape(str(error), quote=False), print_exception=False) from error

    return answered
