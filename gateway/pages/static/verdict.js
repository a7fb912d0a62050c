// What the reader says of an answer: a correction, a report, or that it is a good example.
import { ApiError, check, propose } from "./api.js";
import { showDifference } from "./difference.js";
import { byId, element, showText } from "./dom.js";
import { indented } from "./json_view.js";

const CHECK_MS = 300; // without a key stroke
const TITLES = { correction: "Correct this answer", report: "Report this answer", example: "Add to examples" };

export class Verdict {
  constructor() {
    this.root = byId("verdict");
    if (this.root === null) return; // the page is for somebody who may say nothing here
    for (const [id, kind] of Object.entries({ correct: "correction", report: "report", praise: "example" }))
      byId(id).addEventListener("click", () => this.open(kind));
    byId("correction-close").addEventListener("click", () => byId("correction").close());
    byId("wanted").addEventListener("input", () => this.onInput());
    byId("correction-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
  }

  /** Offer the buttons for a prediction that has ended, or hide them where there is no answer. */
  show(prediction, text) {
    if (this.root === null) return;
    this.prediction = prediction.id;
    this.given = text;
    this.root.hidden = !["succeeded", "failed"].includes(prediction.status);
    byId("praise").hidden = prediction.status !== "succeeded";
    byId("verdict-said").replaceChildren();
    if (location.hash === "#correct" && !this.root.hidden) this.open("correction"); // as the history links it
  }

  hide() {
    if (this.root !== null) this.root.hidden = true;
  }

  open(kind) {
    this.kind = kind;
    byId("correction-title").textContent = TITLES[kind];
    byId("wanted-field").hidden = kind !== "correction";
    byId("wanted").value = indented(this.given);
    byId("note").value = "";
    showText(byId("correction-error"), "");
    this.onInput();
    byId("correction").showModal();
  }

  onInput() {
    const text = byId("wanted").value;
    const isOther = showDifference(byId("wanted-difference"), this.given, text);
    byId("wanted-difference").hidden = !isOther;
    showText(byId("wanted-error"), "");
    byId("wanted").removeAttribute("aria-invalid");
    byId("correction-send").disabled = this.kind === "correction" && !isOther;
    byId("wanted-said").textContent = isOther ? "Checking…" : "Change what is wrong. The answer is checked while you type.";
    clearTimeout(this.timer);
    if (isOther && this.kind === "correction") this.timer = setTimeout(() => this.check(text), CHECK_MS);
  }

  async check(text) {
    let found;
    try {
      found = await check(this.prediction, text);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      found = { valid: null, problem: null, trouble: error.message };
    }
    if (text !== byId("wanted").value) return; // it is another one by now
    const texts = { true: "The model can write this answer.", false: "" };
    byId("wanted-said").textContent = texts[found.valid] ?? found.trouble ?? "The model's server cannot check answers.";
    showText(byId("wanted-error"), found.problem ?? "");
    byId("correction-send").disabled = found.valid === false;
    if (found.valid === false) byId("wanted").setAttribute("aria-invalid", "true");
    if (found.valid) showDifference(byId("wanted-difference"), this.given, found.wanted);
  }

  async send() {
    const isAccepted = byId("accept")?.checked ?? false;
    const body = { prediction: this.prediction, kind: this.kind, note: byId("note").value };
    if (isAccepted) body.state = "accepted";
    if (this.kind === "correction") body.wanted = byId("wanted").value;
    byId("correction-send").disabled = true;
    try {
      await propose(body);
      byId("correction").close();
      const page = this.kind === "example" ? "/examples" : "/corrections";
      const said = isAccepted ? "Kept. " : "Sent; an admin decides. ";
      byId("verdict-said").replaceChildren(said, element("a", { href: page }, "See all"));
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      showText(byId("correction-error"), error.message);
    } finally {
      byId("correction-send").disabled = false;
    }
  }
}
