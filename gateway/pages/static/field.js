// One input of the form: its value, its default and its error.
import { Chips } from "./chips.js";
import { showText } from "./dom.js";

export class Field {
  constructor(root, onChange) {
    ({ name: this.name, kind: this.kind, widget: this.widget, default: this.default } = root.dataset);
    this.required = "required" in root.dataset;
    this.root = root;
    this.error = root.querySelector(".error");
    this.control = root.querySelector("input, select, textarea");
    if (this.widget === "names") {
      this.chips = new Chips(root.querySelector(".chips"), (text) => this.showError(text));
      this.chips.onChange = onChange;
    }
    this.control.addEventListener("input", () => this.showError(""));
  }

  /** {value} or {error}; the value is undefined if it is the default. */
  read() {
    if (this.chips) return this.readNames();
    if (this.widget === "boolean") {
      const value = this.control.checked;
      return { value: this.required || String(value) !== this.default ? value : undefined };
    }
    const text = this.control.value;
    if (this.control.validity.badInput) return { error: "is not a number" };
    if (!text.trim() && this.required) return { error: "is required" };
    if (text === "" || (text === this.default && !this.required)) return { value: undefined };
    return this.parse(text);
  }

  parse(text) {
    if (this.kind === "integer" || this.kind === "number") return this.parseNumber(text);
    if (this.kind === "any" && !/^\s*[{[]/.test(text)) return { value: text };
    if (["json", "array", "any"].includes(this.kind)) return this.parseJson(text);
    return { value: text };
  }

  parseNumber(text) {
    const value = Number(text);
    const { min, max } = this.control;
    if (this.kind === "integer" && !Number.isInteger(value)) return { error: "must be a whole number" };
    if (min !== "" && value < Number(min)) return { error: `${text} is too small; the least is ${min}` };
    if (max !== "" && value > Number(max)) return { error: `${text} is too large; the most is ${max}` };
    return { value: this.default !== "" && value === Number(this.default) && !this.required ? undefined : value };
  }

  parseJson(text) {
    let value;
    try {
      value = JSON.parse(text);
    } catch (error) {
      return { error: `is not JSON: ${error.message}` };
    }
    if (this.kind === "array" && !Array.isArray(value)) return { error: "must be a list: [ … ]" };
    if (this.kind === "json" && (Array.isArray(value) || typeof value !== "object" || value === null))
      return { error: "must be an object: { … }" };
    return { value };
  }

  readNames() {
    let names;
    try {
      names = this.chips.all();
    } catch (error) {
      return { error: error.message };
    }
    if (!names.length) return this.required ? { error: "needs at least one name" } : { value: undefined };
    return { value: this.kind === "string" ? `[${names.map((name) => JSON.stringify(name)).join(", ")}]` : names };
  }

  /** Make what is typed part of the value: names become chips. */
  commit() {
    this.chips?.take();
  }

  /** Show a value, also where it is folded away; undefined shows the default. */
  fill(value) {
    this.set(value);
    if (value !== undefined) this.root.closest("details")?.setAttribute("open", "");
  }

  set(value) {
    if (this.chips) this.chips.set(value ?? "");
    else if (this.widget === "boolean") this.control.checked = value ?? this.default === "true";
    else if (value === undefined || value === null) this.control.value = this.default;
    else this.control.value = typeof value === "string" ? value : JSON.stringify(value, null, 2);
  }

  /** Show what is wrong; a message such as "is blank" is said of this input by its name. */
  showError(message) {
    const text = /^(is|are|has|must|needs)\b/.test(message) ? `${this.name} ${message}` : message;
    showText(this.error, text);
    if (text) this.control.setAttribute("aria-invalid", "true");
    else this.control.removeAttribute("aria-invalid");
    if (text) this.root.closest("details")?.setAttribute("open", "");
  }

  focus() {
    this.control.focus();
  }
}
