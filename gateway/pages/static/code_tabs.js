// The tabs with the code of the call that the form describes.
import { byId, copy, element } from "./dom.js";
import { languages } from "./snippets.js";
import { makeTabs } from "./tabs.js";

export class CodeTabs {
  /** `call` gives {base, model, version, keys, input} of the present form. */
  constructor(call, options) {
    const known = languages(options);
    // On a phone the answer is all that there is room for.
    if (byId("output")) byId("code-fold").open = !matchMedia("(max-width: 900px)").matches;
    const tablist = byId("code-tabs").querySelector("[role=tablist]");
    tablist.append(
      ...known.map(({ id, label }) =>
        element("button", { type: "button", role: "tab", id: `code-${id}`, "aria-controls": "code-panel" }, label),
      ),
    );
    this.call = call;
    makeTabs(tablist, (tab) => {
      this.language = known.find(({ id }) => tab.id === `code-${id}`);
      byId("code-panel").setAttribute("aria-labelledby", tab.id);
      this.update();
    });
    byId("copy-code").addEventListener("click", () => copy(byId("code").textContent, byId("copy-code")));
  }

  /** Write the code again. */
  update() {
    byId("code").textContent = this.language.write(this.call());
  }
}
