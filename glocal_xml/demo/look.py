"""How the page looks: fonts of the system, colours for light and dark, and the layout on a phone."""

from pathlib import Path

import gradio as gr

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
