// Elements by hand. Text only ever becomes text: nothing here takes markup.

/** An element: properties by name, `class`, `on<event>` listeners, attributes with a dash or in `ATTRIBUTES`. */
const ATTRIBUTES = new Set(["role", "for", "colspan", "scope", "list", "rel"]);

export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name.includes("-") || ATTRIBUTES.has(name)) element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export const byId = (id) => document.getElementById(id);

/** Set text only where it differs: no needless layout, no needless word from a screen reader. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Put text on the clipboard, also where the page isn't served securely and the newer way is closed. */
export async function copyText(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = h("textarea", { value: text, class: "visually-hidden", readOnly: true });
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

/** A button that copies what `read` returns, and says so for a moment. */
export function copyButton(read, label = "Copy") {
  const button = h("button", { type: "button", class: "quiet", "aria-label": `${label} to the clipboard` }, label);
  button.addEventListener("click", async () => {
    const before = button.textContent;
    button.textContent = await copyText(read()).then(() => "Copied", () => "Can't copy");
    setTimeout(() => (button.textContent = before), 1500);
  });
  return button;
}
