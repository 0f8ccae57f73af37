"""How the page looks: fonts of the system, colours for light and dark, and room for a phone."""

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

# Names of labels may be long and without a space: they break anywhere rather than widen the page.
CSS = """
.gradio-container { --bar-0: #2563eb; --bar-1: #d97706; --bar-2: #0d9488; --bar-3: #9333ea;
  --for: #166534; --against: #b91c1c; }
.dark .gradio-container, .gradio-container.dark {
  --bar-0: #60a5fa; --bar-1: #fbbf24; --bar-2: #2dd4bf; --bar-3: #c084fc; --for: #4ade80; --against: #f87171; }
.gradio-container > .main { width: 100%; max-width: 1100px; margin: 0 auto; }
#head h1 { font-size: 1.3rem; margin: 0; overflow-wrap: anywhere; }
#head p, .note { color: var(--body-text-color-subdued); overflow-wrap: anywhere; }
#head p, .note, .summary { margin: 0; padding: 0.25rem 0; }
.summary { overflow-wrap: anywhere; }
.legend, .similar { font-size: 0.85rem; overflow-wrap: anywhere; }
.similar ul { margin: 0; padding-inline-start: 1.2rem; list-style: disc; line-height: 1.4; }
.summary .for { color: var(--for); }
.summary .against { color: var(--against); }
/* The words stay in sight while one goes through a long list of labels; what is hidden could not stick. */
.gradio-container { overflow: visible !important; }
#words { position: sticky; top: 0; z-index: 2; background: var(--body-background-fill); }
.words { max-height: 26vh; overflow-y: auto; line-height: 1.7; }
/* Room for the bar that shows how far a file is. */
#summary { min-height: 8rem; }
.labels, .preview { list-style: none; margin: 0 !important; padding: 0 !important; display: grid; gap: 0.35rem; }
.labels li, .preview li { margin: 0 !important; }
.label { display: grid; grid-template-columns: minmax(0, 1fr); width: 100%; text-align: start; font: inherit;
  color: var(--body-text-color); background: var(--background-fill-primary); padding: 0.4rem 0.7rem;
  border: 1px solid var(--border-color-primary); border-radius: var(--radius-md); scroll-margin-top: 45vh; }
button.label { cursor: pointer; }
button.label:hover { border-color: var(--color-accent); }
button.label[aria-pressed="true"] { border-color: var(--color-accent); background: var(--background-fill-secondary);
  box-shadow: inset 4px 0 0 var(--color-accent); }
.name { font-weight: 600; overflow-wrap: anywhere; }
.bar { display: grid; grid-template-columns: 4.5rem minmax(0, 1fr) 2.2rem; align-items: center; gap: 0.5rem;
  font-size: 0.85rem; }
.bar-name { color: var(--body-text-color-subdued); overflow-wrap: anywhere; }
.branches { display: grid; grid-template-columns: repeat(auto-fit, minmax(11rem, 1fr)); gap: 0 1rem; }
.track { height: 0.3rem; border-radius: 0.25rem; background: var(--border-color-primary); overflow: hidden; }
.final .track { height: 0.5rem; }
.fill { display: block; height: 100%; background: var(--body-text-color-subdued); }
.branch-0 .fill { background: var(--bar-0); }
.branch-1 .fill { background: var(--bar-1); }
.branch-2 .fill { background: var(--bar-2); }
.branch-3 .fill { background: var(--bar-3); }
.number { text-align: end; font-variant-numeric: tabular-nums; }
.preview li { border: 1px solid var(--border-color-primary); border-radius: var(--radius-md);
  padding: 0.5rem 0.7rem !important; }
.preview .text { display: block; overflow-wrap: anywhere; }
.chip { display: inline-block; margin: 0.25rem 0.35rem 0 0; padding: 0.1rem 0.5rem; border-radius: 1rem;
  font-size: 0.85rem; background: var(--background-fill-secondary); border: 1px solid var(--border-color-primary);
  overflow-wrap: anywhere; }
:is(button, a, input, textarea, [tabindex]):focus-visible { outline: 3px solid var(--color-accent) !important;
  outline-offset: 2px; }
/* What overflows them is cut off. */
:is([role="tab"], .label-wrap, .words):focus-visible { outline-offset: -3px; }
"""

# The server draws the list anew; the browser has only to say which button was pressed.
SELECT_LABEL = """
element.addEventListener('click', (event) => {
  const button = event.target.closest('button[data-row]');
  if (button) trigger('select', {index: Number(button.dataset.row)});
});
"""
