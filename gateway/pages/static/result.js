// The answer of a prediction: views of output and logs, status and figures, for the playground and for permalinks.
import { showConfidence } from "./confidence.js";
import { byId, copy } from "./dom.js";
import { showFigures } from "./figures.js";
import { indented, showAnswer, showJson } from "./json_view.js";
import { makeTabs } from "./tabs.js";
import { showTokens } from "./tokens.js";

// What stands where an answer would be.
const EMPTY_TEXTS = {
  idle: "The answer appears here.",
  starting: "The model reads the input.",
  processing: "The model reads the input.",
  succeeded: "The answer is empty.",
  failed: "There is no answer.",
  canceled: "Cancelled before anything was written.",
};
const STATUS_TEXTS = { starting: "waiting", processing: "running", canceled: "cancelled" };

export class ResultView {
  constructor() {
    this.text = byId("text").textContent;
    this.logs = byId("logs").textContent;
    this.frame = 0;
    const tablist = byId("tab-pretty").closest("[role=tablist]");
    this.select = makeTabs(tablist);
    byId("copy-output").addEventListener("click", () => copy(this.shownText(), byId("copy-output")));
    this.draw();
  }

  reset() {
    this.text = this.logs = "";
    this.setMetrics({});
    byId("prediction-json").textContent = "";
    this.draw();
  }

  /** Show a prediction as the API has it. */
  show(prediction) {
    this.setOutput(outputText(prediction.output));
    this.setLogs(prediction.logs);
    this.setMetrics(prediction.metrics);
    this.setStatus(prediction.status);
    // Tokens has the trace; here it would hide all else.
    const shown = { ...prediction, metrics: { ...prediction.metrics, token_trace: undefined } };
    showJson(byId("prediction-json"), JSON.stringify(shown));
  }

  add(text) {
    this.setOutput(this.text + text);
  }

  setOutput(text) {
    this.text = text;
    this.frame ||= requestAnimationFrame(() => this.draw()); // many pieces, one drawing
  }

  setLogs(text) {
    this.logs = text;
    this.frame ||= requestAnimationFrame(() => this.draw());
  }

  setStatus(status) {
    byId("status").dataset.status = status;
    byId("status").textContent = STATUS_TEXTS[status] ?? status;
    byId("pretty").dataset.empty = EMPTY_TEXTS[status] ?? "";
  }

  setMetrics(metrics) {
    showFigures(byId("figures"), byId("more-figures"), metrics);
    showTokens(metrics.token_trace);
    this.confidence = metrics.confidence;
    showConfidence(byId("confidence"), this.confidence);
    this.frame ||= requestAnimationFrame(() => this.draw());
    if (byId("tab-tokens").hidden && !byId("view-tokens").hidden) this.select(byId("tab-pretty"));
  }

  announce(text) {
    byId("live").textContent = text;
  }

  shownText() {
    if (!byId("view-logs").hidden) return this.logs;
    if (!byId("view-prediction").hidden) return byId("prediction-json").textContent;
    return byId("view-text").hidden ? indented(this.text) : this.text;
  }

  draw() {
    this.frame = 0;
    showAnswer(byId("pretty"), this.text, this.confidence);
    byId("text").textContent = this.text;
    byId("logs").textContent = this.logs;
  }
}

/** An output as one text: pieces are joined, other values are written as JSON. */
export function outputText(output) {
  if (Array.isArray(output) && output.every((piece) => typeof piece === "string")) return output.join("");
  if (output === null || output === undefined) return "";
  return typeof output === "string" ? output : JSON.stringify(output, null, 2);
}
