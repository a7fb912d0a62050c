// Small helpers for the document. Texts become text nodes; nothing here reads HTML.

/** A new element; children are elements or texts. */
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

/** The element with an id. */
export const byId = (id) => document.getElementById(id);

/** Show a text in an element that is hidden while it has none. */
export function showText(target, text) {
  target.textContent = text;
  target.hidden = !text;
}

/** Copy a text and say so on the button for a moment. */
export async function copy(text, button) {
  const label = (button.dataset.label ??= button.textContent);
  button.textContent = (await write(text)) ? "Copied" : "Copying failed";
  clearTimeout(button.timer);
  button.timer = setTimeout(() => (button.textContent = label), 1500);
}

async function write(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return writeFromSelection(text); // plain http on another host has no clipboard API
  }
}

function writeFromSelection(text) {
  const area = element("textarea", { class: "unseen" });
  const focused = document.activeElement;
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  focused?.focus();
  return done;
}
