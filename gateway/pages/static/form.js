// Reads and fills the form of a model's inputs, and shows errors beside the inputs that they name.
import { byId, showText } from "./dom.js";
import { Field } from "./field.js";

// Cog puts these words before the text of an exception.
const COG_WORDS = /^(Prediction failed: )?(Generator iteration error: )?([A-Za-z]+Error: )?/;

export class InputForm {
  /** `onChange` is called whenever the inputs may have changed. */
  constructor(form, onChange) {
    this.fields = new Map();
    for (const root of form.querySelectorAll(".field")) {
      const field = new Field(root, onChange);
      this.fields.set(field.name, field);
    }
    form.addEventListener("input", onChange);
    form.addEventListener("change", onChange);
  }

  /** {input, errors}: the inputs that differ from their defaults, and {name, message} of what is wrong. */
  read() {
    const input = {};
    const errors = [];
    for (const field of this.fields.values()) {
      const { value, error } = field.read();
      if (error) errors.push({ name: field.name, message: error });
      else if (value !== undefined) input[field.name] = value;
    }
    return { input, errors };
  }

  /** Show these inputs; all others get their defaults. */
  fill(input) {
    this.clearErrors();
    for (const field of this.fields.values()) field.fill(input[field.name]);
  }

  /** Give one input a value and leave open or folded what is so. */
  set(name, value) {
    this.fields.get(name)?.set(value);
  }

  /** Make what is still being typed part of the inputs. */
  commit() {
    for (const field of this.fields.values()) field.commit();
  }

  clearErrors() {
    for (const field of this.fields.values()) field.showError("");
    showText(byId("form-error"), "");
  }

  /** Show errors beside their inputs and go to the first. What names no input is shown above the answer. */
  showErrors(errors) {
    this.clearErrors();
    const shown = errors.filter(({ name }) => this.fields.has(name));
    for (const { name, message } of shown) this.fields.get(name).showError(message);
    const others = errors.filter(({ name }) => !this.fields.has(name)).map(({ message }) => message);
    showText(byId("form-error"), others.join("\n"));
    if (shown.length) this.fields.get(shown[0].name).focus();
  }

  /** The errors in a text such as "cols: the list is empty; give …" or "prompt or messages: …". */
  errorsIn(error) {
    const text = error.replace(COG_WORDS, "");
    const match = /^([\w, ]{1,200}?): ([^]*)$/.exec(text);
    const names = match ? match[1].split(/,| or | and /).map((name) => name.trim()) : [];
    const known = names.filter((name) => this.fields.has(name));
    if (!known.length) return [{ name: null, message: text }];
    // An error of several inputs is shown beside the first, and names them all.
    return [{ name: known[0], message: names.length > 1 ? text : match[2] }];
  }
}
