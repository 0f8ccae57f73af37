"""How the page looks: fonts of the system, colours for light and dark, and the layout on a phone."""

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
.gradio-container { --bar: #2563eb; --for: 22,163,74; --against: 239,68,68; --read: 245,158,11; --wrong: #b91c1c; }
.dark .gradio-container, .gradio-container.dark { --bar: #60a5fa; --wrong: #f87171; }
.gradio-container > .main { width: 100%; max-width: 1100px; margin: 0 auto; }
.html-container { padding: 0; overflow-wrap: anywhere; }
#head h1 { font-size: 1.3rem; margin: 0; }
#head p, .note { color: var(--body-text-color-subdued); }
#head p, .note, .mistake, .legend { margin: 0; padding: 0.2rem 0; }
.mistake { color: var(--wrong); font-weight: 600; }
.legend, .chip, .parts, .how, .similar { font-size: 0.85rem; }
/* Left the text, below it what led to a label; right the labels, which on a phone come before the reasons. */
#text-tab { display: grid; gap: 1rem 1.5rem; grid-template: "ask labels" auto "reasons labels" 1fr / 1fr 1fr; }
/* Each paragraph in the direction of its script. */
#text textarea { unicode-bidi: plaintext; }
#ask { grid-area: ask; gap: 0.6rem; min-width: 0; }
#labels { grid-area: labels; min-width: 0; }
#reasons { grid-area: reasons; min-width: 0; }
#examples { flex-wrap: nowrap; align-items: center; gap: 0.4rem; }
#examples::before { content: "Examples"; font-size: 0.85rem; color: var(--body-text-color-subdued); }
#examples button { display: block; flex: 1 1 0; min-width: 0; font-weight: 400; overflow: hidden; white-space: nowrap;
  text-overflow: ellipsis; }
/* Room for the bar that shows how far a file is, without the numbers that lie on it. */
#summary { min-height: 8rem; }
#summary .progress-text { display: none; }
.labels, .preview, .chips, .parts { list-style: none; margin: 0 !important; padding: 0 !important; }
.labels, .preview { display: grid; gap: 0.35rem; }
.labels li, .preview li, .chips li, .parts li { margin: 0 !important; }
.label { display: grid; grid-template-columns: minmax(0, 1fr) 5rem 3rem; align-items: center; gap: 0.6rem; width: 100%;
  min-height: 44px; text-align: start; font: inherit; color: var(--body-text-color); padding: 0.3rem 0.7rem;
  background: var(--background-fill-primary); border: 1px solid var(--border-color-primary);
  border-radius: var(--radius-md); }
button.label { cursor: pointer; }
button.label:hover { border-color: var(--color-accent); }
button.label[aria-pressed="true"] { border-color: var(--color-accent); background: var(--background-fill-secondary);
  box-shadow: inset 4px 0 0 var(--color-accent); }
.name { font-weight: 600; }
.track { height: 0.45rem; border-radius: 0.25rem; background: var(--border-color-primary); overflow: hidden; }
.fill { display: block; height: 100%; background: var(--bar); }
.number { white-space: nowrap; text-align: end; font-variant-numeric: tabular-nums; }
summary { cursor: pointer; min-height: 44px; display: list-item; padding: 0.6rem 0; }
#reasons h2 { font-size: 1rem; margin: 0; }
.words { max-height: 34vh; overflow-y: auto; line-height: 1.7; margin: 0.4rem 0; }
.chips { display: flex; flex-wrap: wrap; gap: 0.3rem; }
.chip { display: inline-block; padding: 0 0.5rem; border-radius: 1rem; border: 1px solid var(--border-color-primary); }
.preview .chip { margin: 0.25rem 0.35rem 0 0; background: var(--background-fill-secondary); }
.chip.for { background: rgba(var(--for), 0.25); border-color: rgba(var(--for), 0.7); }
.chip.against { background: rgba(var(--against), 0.25); border: 1px dashed rgba(var(--against), 0.7); }
.chip.read { background: rgba(var(--read), 0.4); border-color: rgba(var(--read), 0.7); }
.fill.for { background: rgb(var(--for)); }
.fill.against { background: rgb(var(--against)); }
.fill.read { background: rgb(var(--read)); }
.parts li { display: grid; grid-template-columns: 12rem minmax(0, 1fr) 3.5rem; align-items: center; gap: 0.6rem; }
.how ul, .similar ul { margin: 0; padding-inline-start: 1.2rem; list-style: disc; line-height: 1.5; }
.preview li { border: 1px solid var(--border-color-primary); border-radius: var(--radius-md);
  padding: 0.5rem 0.7rem !important; }
.preview .text { display: block; }
:is(button, a, input, textarea, summary, [tabindex]):focus-visible { outline: 3px solid var(--color-accent) !important;
  outline-offset: 2px; }
/* What overflows them is cut off. */
:is([role="tab"], .label-wrap, .words, #examples button, #reasons summary):focus-visible { outline-offset: -3px; }
@media (max-width: 700px) {
  #examples button:nth-of-type(3) { display: none; }
  .label { grid-template-columns: minmax(0, 1fr) 3rem 2.8rem; }
  #text-tab { grid-template: "ask" "labels" "reasons" / minmax(0, 1fr); gap: 0.6rem; }
  #text textarea { max-height: 7.5rem !important; }
  .parts li { grid-template-columns: 9rem minmax(0, 1fr) 3.5rem; }
}
"""

# The list stays as it is; the browser marks the chosen label and asks the server what led to it.
SELECT_LABEL = """
element.addEventListener('click', (event) => {
  const button = event.target.closest('button[data-label]');
  if (!button) return;
  for (const other of element.querySelectorAll('button[data-label]'))
    other.setAttribute('aria-pressed', other === button);
  trigger('select', {label: button.dataset.label, digest: button.dataset.digest});
  // On a phone they are below the list.
  document.getElementById('reasons').scrollIntoView({block: 'nearest', behavior: 'smooth'});
});
"""
