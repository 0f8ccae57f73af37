"""What the page asks of a model: the labels of texts, and what led to them."""

from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any

from glocal_xml.explain import Explanation, explain
from glocal_xml.explain.label_reading import MOST_LABELS
from glocal_xml.modeling.text_windows import readable_text
from glocal_xml.trained_model import open_pipeline

# Characters of a text that is pasted; files may have longer ones.
LONGEST_TEXT = 2_000_000
# Few texts have tokens as long as that on average.
CHARACTERS_PER_TOKEN = 32
Predictions = list[dict[str, Any]]


class Tagger:
    """A trained model, loaded once from a folder or the Hub, that many people ask at the same time."""

    def __init__(self, model: str):
        # The path on the server must not be shown.
        self.name = Path(model).resolve().name if Path(model).is_dir() else model
        self._pipe = open_pipeline(model)
        self.config = self._pipe.model.config
        self._names = frozenset(self._pipe.model.label_names or ())
        # Fast tokenizers keep padding and truncation as state, which two threads would mix up.
        self._lock = Lock()

    def why_no_reasons(self) -> str | None:
        """Why it cannot be shown what led to a label; `None` where it can."""
        model = self._pipe.model
        if model.config.blend is None and not any(hasattr(head, "key") for head in model.branch_heads().values()):
            return "This model cannot show what led to a label."
        if not self._names:
            return "The labels of this model have no names, so it cannot show what led to them."
        return None

    def unknown(self, names: list[str]) -> list[str]:
        """Those of the names that no label has."""
        return [name for name in names if name not in self._names] if self._names else []

    def check(self, text: str, number: int | None = None) -> None:
        """Refuses texts and numbers of labels that would take the memory of others."""
        if isinstance(text, str) and len(text) > LONGEST_TEXT:
            raise ValueError(f"The text has {len(text):,} characters; up to {LONGEST_TEXT:,} are read.")
        if number is not None and number > MOST_LABELS:
            raise ValueError(f"`top_k` is {number:,}; up to {MOST_LABELS:,} labels are given.")

    def tag(self, texts: list[str], batch_size: int = 1, **options: Any) -> list[Predictions]:
        """The labels of each text, by the options of the pipeline; others get their turn after each batch."""
        found = []
        for first in range(0, len(texts), batch_size):
            with self._lock:
                found += self._pipe(texts[first : first + batch_size], batch_size=batch_size, **options)
        return found

    def explain(self, text: str, labels: list[str]) -> Explanation:
        """What led to given labels of a text."""
        self.check(text)
        text, length = readable_text(text), self._pipe.max_length
        model, tokenizer = self._pipe.model, self._pipe.tokenizer
        # Looking through a whole book for words takes seconds, and a model without experts reads only its start.
        reads_start = length is not None and not model.text_experts() and tokenizer.truncation_side == "right"
        start = text[: CHARACTERS_PER_TOKEN * length] if reads_start else text
        is_cut = len(start) < len(text)
        with self._lock:
            explanation = explain(model, tokenizer, start, labels=labels, max_length=length)
        return replace(explanation, truncated=explanation.truncated or is_cut)
