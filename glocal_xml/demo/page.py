"""What is on the page, and how it looks: fonts of the system, colours for light and dark."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gradio as gr

from .actions import Actions, beside_fields, messages, no_file
from .rendering import PARTS, shortened
from .tagger import Tagger

# Darker than those of Gradio, whose contrast is too low to read them well.
THEME = gr.themes.Base(
    primary_hue="blue",
    neutral_hue="slate",
    font=["system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif"],
    font_mono=["ui-monospace", "Menlo", "Consolas", "monospace"],
).set(
    body_text_color_subdued="*neutral_500",
    body_text_color_subdued_dark="*neutral_400",
    button_primary_background_fill="*primary_600",
    button_primary_background_fill_hover="*primary_700",
    input_placeholder_color="*neutral_500",
    input_placeholder_color_dark="*neutral_400",
)
CSS, SELECT_LABEL = (Path(__file__).with_name(name).read_text("utf-8") for name in ("look.css", "select_label.js"))
MOST_LABELS = 50
NO_TEXT = PARTS.note("The labels of the text appear here.")
FILE_TYPES = [".jsonl", ".csv", ".tsv", ".txt", ".gz"]


class TaggingPage(gr.Blocks):
    """
    The page of one model. Texts and labels are not kept; files are on the disk of the server for an hour, or until it
    stops.
    """

    def __init__(self, model: str, examples: Sequence[str] = ()):
        tagger = Tagger(model)
        # Every ten minutes files older than an hour are deleted.
        super().__init__(title=f"{tagger.name} · glocal_xml", analytics_enabled=False, delete_cache=(600, 3600))
        actions = Actions(tagger)
        with self:
            gr.HTML(PARTS.header(tagger.name, tagger.config.num_labels), elem_id="head")
            with gr.Tab("One text"):
                text_tab(actions, examples)
            with gr.Tab("A file"):
                file_tab(actions)
            gr.api(messages()(actions.predict), api_name="predict")
            gr.api(messages()(actions.explain), api_name="explain")

    def launch(self, **options: Any) -> Any:
        """Serves the page; takes what `gradio.Blocks.launch` takes."""
        look = {"theme": THEME, "css": CSS, "footer_links": ["api"]}
        # Without a history, browsers keep no texts.
        ways = {"run_history": False, "ssr_mode": False, "max_file_size": "200mb", "state_session_capacity": 1000}
        return super().launch(**look | ways | options)


def text_tab(actions: Actions, examples: Sequence[str]) -> None:
    """A text, its labels, and what led to one of them."""
    with gr.Row(elem_id="text-tab"):
        with gr.Column(elem_id="ask"):
            hint = "Paste a text here."
            text = gr.Textbox("", label="Text", placeholder=hint, lines=5, max_lines=14, elem_id="text")
            fields = {"text": error_place()}
            tag = gr.Button("Tag", variant="primary", elem_id="tag")
            with gr.Row(elem_id="examples", visible=bool(examples)):
                buttons = [gr.Button(shortened(example, 40), size="sm") for example in examples]
            options = label_options(actions.tagger)
            fields["names"] = error_place()
        labels = gr.HTML(NO_TEXT, js_on_load=SELECT_LABEL, elem_id="labels")
        reasons = gr.HTML(elem_id="reasons")
    answer = {
        "fn": beside_fields(actions.answer, fields, {labels: NO_TEXT, reasons: ""}),
        "inputs": [text, *options],
        "outputs": [labels, reasons, *fields.values()],
        "api_visibility": "private",
        "show_progress_on": labels,
    }
    gr.on([tag.click, text.submit], **answer, trigger_mode="always_last")
    for button, example in zip(buttons, examples, strict=True):
        button.click(lambda example=example: example, None, text, api_visibility="private").then(**answer)
    labels.select(
        beside_fields(actions.choose_label, fields, {reasons: ""}),
        text,
        [reasons, *fields.values()],
        api_visibility="private",
        show_progress="hidden",
    )


def file_tab(actions: Actions) -> None:
    """A file of texts, and the same with labels to be downloaded."""
    with gr.Row():
        with gr.Column(min_width=300):
            kinds = "CSV, TSV, JSON lines, or lines of text"
            file = gr.File(label=kinds, file_types=FILE_TYPES, height=140, elem_id="file")
            fields = {"file": error_place()}
            # Programs name a column without having seen the choices.
            anything = {"allow_custom_value": True, "visible": False}
            column = gr.Dropdown(["text"], value="text", label="Column of the text", **anything, elem_id="column")
            fields["column"] = error_place()
            tag = gr.Button("Tag the file", variant="primary", elem_id="tag_file")
            options = label_options(actions.tagger)
            fields["names"] = error_place()
        with gr.Column(min_width=300):
            with gr.Row():
                csv = gr.DownloadButton("Download CSV", visible=False, variant="primary", elem_id="csv")
                jsonl = gr.DownloadButton("Download JSON lines", visible=False, elem_id="jsonl")
            summary = gr.HTML(no_file()[0], elem_id="summary")
    inputs, results = [file, column, *options], dict(zip((summary, csv, jsonl), no_file(), strict=True))
    gr.on(
        [file.upload, file.clear],
        beside_fields(actions.choose_file, fields, {column: gr.Dropdown(visible=False), **results}),
        file,
        [column, *results, *fields.values()],
        api_visibility="private",
        show_progress="hidden",
    )
    tag.click(
        beside_fields(actions.show_tagged_file, fields, results),
        inputs,
        [*results, *fields.values()],
        api_visibility="private",
        show_progress_on=summary,
    )
    # For programs, to which errors are raised.
    gr.on([], messages()(actions.tag_file), inputs, [jsonl, csv], api_name="tag_file")


def label_options(tagger: Tagger) -> list[gr.components.Component]:
    """Which labels are wanted."""
    blend, most = tagger.config.blend, min(MOST_LABELS, tagger.config.num_labels)
    # Only a blend has a threshold, and scores that are probabilities.
    number, lowest = (5, 0.0) if blend is None else (10, math.floor(100 * blend["threshold"]) / 100)
    meaning = None if blend is None else "Of labels with a score of 0.8 (80%), about four in five are right."
    with gr.Accordion("Options", open=False):
        return [
            gr.Slider(1, most, value=min(number, most), step=1, label="Most labels per text"),
            gr.Slider(0, 1, value=lowest, step=0.01, label="Lowest score", info=meaning),
            gr.Textbox("", label="Only these labels", placeholder="One name per line; all labels if empty", lines=2),
        ]


def error_place() -> gr.HTML:
    """Where it is said what is wrong with the field above."""
    return gr.HTML(visible=False, elem_classes="error-place")
