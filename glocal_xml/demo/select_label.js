// The list stays as it is; the browser marks the chosen label and asks the server what led to it.
element.addEventListener('click', (event) => {
  const button = event.target.closest('button[data-label]');
  if (!button) return;
  for (const other of element.querySelectorAll('button[data-label]'))
    other.setAttribute('aria-pressed', other === button);
  trigger('select', {label: button.dataset.label, digest: button.dataset.digest});
  // On a phone they are below the list.
  document.getElementById('reasons').scrollIntoView({block: 'nearest', behavior: 'smooth'});
});
