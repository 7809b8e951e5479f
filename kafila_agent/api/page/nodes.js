// Elements from text alone: nothing that a model or another machine writes is ever read as HTML.

/** An element with attributes (a false or null one is left out) and children: elements or texts. */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== false && value != null) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== ""));
  return made;
}

/** A button that does something. */
export function button(label, act, attributes = {}) {
  const made = element("button", { type: "button", ...attributes }, label);
  made.addEventListener("click", () => act(made));
  return made;
}

/** Copies what `text()` gives, and says so for a moment. */
export function copyButton(text, label = "Copy") {
  return button(label, async (made) => {
    try {
      await navigator.clipboard.writeText(text());
      made.textContent = "Copied";
    } catch {
      made.textContent = "Not allowed here"; // plain HTTP from another machine
    }
    setTimeout(() => (made.textContent = label), 1500);
  }, { class: "quiet" });
}
