"""What is on the page."""

import math
from typing import Any

import gradio as gr

from .actions import NO_TEXT, Actions, with_messages
from .look import CSS, SELECT_LABEL, THEME
from .rendering import header, note
from .tagger import Tagger

MOST_LABELS = 50
EXAMPLE = "Paste a text here, such as:\n\nnotepad: a small text editor for GNOME\nEdits text and highlights code."
NO_FILE = "Choose a file and press “Tag the file”: its rows can then be downloaded with their labels."
Options = list[gr.components.Component]


class TaggingPage(gr.Blocks):
    """
    The page of one model. Labels of texts are in the memory of the server for an hour, of the last 1,000 people; files
    are on its disk as long, or until it stops.

    Args:
        model: Folder or Hub id of the model, which is loaded once.
    """

    def __init__(self, model: str):
        tagger = Tagger(model)
        # Every ten minutes files older than an hour are deleted.
        super().__init__(title=f"{tagger.name} · glocal_xml", analytics_enabled=False, delete_cache=(600, 3600))
        actions = Actions(tagger)
        with self:
            gr.HTML(header(tagger.name, tagger.facts()), elem_id="head")
            options = label_options(tagger)
            with gr.Tab("One text"):
                text_tab(actions, options)
            with gr.Tab("A file"):
                file_tab(actions, options)
            gr.api(with_messages(actions.predict), api_name="predict")
            gr.api(with_messages(actions.explain), api_name="explain")

    def launch(self, **options: Any) -> Any:
        """Serves the page; takes what `gradio.Blocks.launch` takes."""
        look = {"theme": THEME, "css": CSS, "footer_links": ["api"]}
        # Without a history, browsers keep no texts.
        ways = {"run_history": False, "ssr_mode": False, "max_file_size": "200mb", "state_session_capacity": 1000}
        return super().launch(**look | ways | options)


def label_options(tagger: Tagger) -> Options:
    """Which labels are wanted."""
    blend = tagger.config.blend
    most = min(MOST_LABELS, tagger.config.num_labels)
    with gr.Accordion("Options", open=False), gr.Row():
        top_k = gr.Slider(1, most, value=min(10, most), step=1, label="Number of labels")
        lowest = 0.0 if blend is None else math.floor(100 * blend["threshold"]) / 100
        # Only of a blend is it true.
        meaning = None if blend is None else "Of labels with a score of 0.8, about four in five are right."
        threshold = gr.Slider(0, 1, value=lowest, step=0.01, label="Lowest score", info=meaning)
        names = gr.Textbox(
            "", label="Only these labels", placeholder="Names, one per line; all labels if empty", lines=2
        )
    return [top_k, threshold, names]


def text_tab(actions: Actions, options: Options) -> None:
    """A text, its labels, and the words that one of them read."""
    answer = gr.State(time_to_live=3600)
    with gr.Row():
        with gr.Column(min_width=300):
            text = gr.Textbox("", label="Text", placeholder=EXAMPLE, lines=9, max_lines=18, elem_id="text")
            tag = gr.Button("Tag", variant="primary", elem_id="tag")
        with gr.Column(min_width=300):
            words = gr.HTML(elem_id="words")
            labels = gr.HTML(note(NO_TEXT), js_on_load=SELECT_LABEL, elem_id="labels")
    *simple_options, names = options
    # Not while a name is being typed, half of which is no label.
    changes = [names.blur, names.submit, *(option.change for option in simple_options)]
    gr.on(
        [tag.click, text.submit, *changes],
        with_messages(actions.answer),
        [text, *options],
        [answer, labels, words],
        api_visibility="private",
        trigger_mode="always_last",
    )
    labels.select(
        with_messages(actions.choose_label),
        [answer, text],
        [labels, words],
        api_visibility="private",
        show_progress="hidden",
    )


def file_tab(actions: Actions, options: Options) -> None:
    """A file of texts, and the same with labels to be downloaded."""
    with gr.Row():
        with gr.Column(min_width=300):
            kinds = [".jsonl", ".csv", ".tsv", ".txt", ".gz"]
            file = gr.File(label="JSONL, CSV, TSV, or TXT with one text per line", file_types=kinds, elem_id="file")
            column = gr.Textbox("text", label="Column of the text")
            tag = gr.Button("Tag the file", variant="primary", elem_id="tag_file")
        with gr.Column(min_width=300):
            with gr.Row():
                jsonl = gr.DownloadButton("Download JSONL", interactive=False, min_width=120, elem_id="jsonl")
                csv = gr.DownloadButton("Download CSV", interactive=False, min_width=120, elem_id="csv")
            summary = gr.HTML(note(NO_FILE), elem_id="summary")
    tagged = gr.State(time_to_live=3600)
    tag.click(
        with_messages(actions.tag_file),
        [file, column, *options],
        [tagged, jsonl, csv],
        api_name="tag_file",
        show_progress_on=summary,
    ).success(actions.show_file, tagged, [summary, jsonl, csv], api_visibility="private")
