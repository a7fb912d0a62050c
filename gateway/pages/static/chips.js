// A list of names as removable chips; one can be typed, many can be pasted.
import { element } from "./dom.js";
import { parseNames } from "./names.js";

export class Chips {
  /** `root` is the element of class chips; `onError` is called with a text, empty for none. */
  constructor(root, onError) {
    this.names = [];
    this.list = root.querySelector("ul");
    this.input = root.querySelector("input");
    this.onError = onError;
    this.onChange = () => {};
    root.addEventListener("click", (event) => {
      if (event.target === root || event.target === this.list) this.input.focus();
    });
    this.input.addEventListener("keydown", (event) => this.onKey(event));
    this.input.addEventListener("paste", (event) => this.onPaste(event));
    this.set(root.querySelector(".chips-value").value);
  }

  /** Show the names of a text or an array. */
  set(value) {
    this.input.value = "";
    this.names = [];
    this.add(Array.isArray(value) ? JSON.stringify(value) : value);
  }

  /** The names, and those of the text that is still being typed. Throws an Error if that cannot be read. */
  all() {
    return [...new Set([...this.names, ...parseNames(this.input.value)])];
  }

  /** Make chips of what is typed. False if it cannot be read. */
  take() {
    const text = this.input.value;
    if (!text.trim()) return true;
    if (!this.add(text)) return false;
    this.input.value = "";
    return true;
  }

  add(text) {
    try {
      this.names = [...new Set([...this.names, ...parseNames(text)])];
    } catch (error) {
      this.onError(error.message);
      return false;
    }
    this.onError("");
    this.draw();
    return true;
  }

  remove(index) {
    this.names.splice(index, 1);
    this.draw();
    const buttons = this.list.querySelectorAll("button");
    (buttons[Math.min(index, buttons.length - 1)] ?? this.input).focus();
  }

  onKey(event) {
    if (event.key === "Enter" && !event.ctrlKey && !event.metaKey) {
      event.preventDefault(); // it would send the form
      this.take();
    } else if (event.key === "," && !this.input.value.trim().startsWith("[")) {
      event.preventDefault();
      this.take();
    } else if (event.key === "Backspace" && !this.input.value && this.names.length) {
      this.names.pop();
      this.draw();
    }
  }

  onPaste(event) {
    const text = event.clipboardData.getData("text");
    if (!/[,\n;\t[]/.test(text)) return; // one name: the reader may type on
    event.preventDefault();
    if (!this.add(text)) this.input.value = text;
  }

  draw() {
    this.list.replaceChildren(
      ...this.names.map((name, index) => {
        const remove = element("button", { type: "button", "aria-label": `Remove ${name}`, title: "Remove" }, "×");
        remove.addEventListener("click", () => this.remove(index));
        return element("li", {}, element("span", {}, name), remove);
      }),
    );
    this.onChange();
  }
}
