// The form's inputs as JSON, beside the form: what is typed there is in the form as soon as it is right.
import { byId, showText } from "./dom.js";
import { makeTabs } from "./tabs.js";

export class JsonInput {
  /** `form` is an InputForm; `onChange` is called when the form has other inputs. */
  constructor(form, onChange) {
    this.form = form;
    this.area = byId("input-json");
    this.select = makeTabs(byId("input-tabs"), (tab) => tab.id === "tab-json" && this.write());
    this.area.addEventListener("input", (event) => {
      event.stopPropagation(); // the form has not changed yet
      if (this.read()) onChange();
    });
  }

  /** Whether the form has what is shown as JSON. */
  get isRight() {
    return byId("view-json").hidden || byId("input-json-error").hidden;
  }

  /** Show the form's inputs, unless the text has a mistake that its writer may want to mend. */
  write() {
    if (byId("input-json-error").hidden) this.area.value = JSON.stringify(this.form.read().input, null, 2);
  }

  /** Fill the form from the text; false if that cannot be read. */
  read() {
    let input;
    let problem = "";
    try {
      input = JSON.parse(this.area.value);
      if (typeof input !== "object" || input === null || Array.isArray(input)) problem = "must be an object: { … }";
      else {
        const unknown = Object.keys(input).filter((name) => !this.form.fields.has(name));
        if (unknown.length) problem = `${unknown.join(", ")}: the model has no such input`;
      }
    } catch (error) {
      problem = `is not JSON: ${error.message}`;
    }
    showText(byId("input-json-error"), problem);
    this.area.removeAttribute("aria-invalid");
    if (problem) this.area.setAttribute("aria-invalid", "true");
    else this.form.fill(input);
    return !problem;
  }

  /** Show other inputs, which the form already has. */
  reset() {
    showText(byId("input-json-error"), "");
    this.area.removeAttribute("aria-invalid");
    this.write();
  }
}
