// A prediction's metrics as people read them.
import { element } from "./dom.js";

const MAIN = 3; // figures that are always shown; the others are folded
const FIGURES = [
  ["cached", "From the cache", () => "yes", "The answer to an earlier equal request, which the model did not write again"],
  ["total_time", "Total time", seconds, "Waiting included"],
  ["time_to_first_token", "First token", seconds, "From the engine's start to the first token"],
  ["tokens_per_second", "Tokens per second", number, "Output tokens over the engine's whole time"],
  ["output_token_count", "Output tokens", number, "Length of the answer"],
  ["input_token_count", "Input tokens", number, "Length of the prompt"],
  ["cached_token_count", "Cached tokens", number, "Input tokens that an earlier request had already computed"],
  ["model_passes", "Model passes", number, "How often the model ran for this answer"],
  ["draft_token_count", "Drafted tokens", number, "Proposed cheaply, then checked by the model"],
  ["accepted_token_count", "Drafts accepted", number, "Drafted tokens that the model would have written itself"],
];

/** Show the metrics that there are in two `dl`s: the first ones, and the rest. */
export function showFigures(first, rest, metrics) {
  const known = FIGURES.filter(([name]) => typeof metrics[name] === "number" || metrics[name] === true);
  const shown = known.map(([name, label, format, meaning]) =>
    element("div", { title: meaning }, element("dt", {}, label), element("dd", {}, format(metrics[name]))),
  );
  first.replaceChildren(...shown.slice(0, MAIN));
  rest.replaceChildren(...shown.slice(MAIN));
}

/** A time such as 340 ms or 1.25 s. */
export function seconds(value) {
  return value < 1 ? `${Math.round(value * 1000)} ms` : `${value.toFixed(2)} s`;
}

function number(value) {
  const digits = Number.isInteger(value) || value >= 100 ? 0 : 1;
  return value.toLocaleString("en", { maximumFractionDigits: digits });
}
