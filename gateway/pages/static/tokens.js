// Shows each token of an answer by where it came from, pass by pass.
import { byId, element } from "./dom.js";

const KINDS = {
  chosen: ["chosen", "chosen by the model itself"],
  forced: ["forced", "forced by the grammar"],
  model: ["draft", "accepted from the draft model"],
  table: ["table", "accepted from the table of usual answers"],
  context: ["context", "accepted copies of the prompt or of this answer"],
  context_without_space: ["context", "accepted copies of the prompt or of this answer"],
  recent: ["recent", "accepted copies of earlier answers"],
};
const DRAFT = ["draft", "accepted drafts"];

/** Show a trace, a list of [milliseconds, [[text, source], …]], or hide the tab if there is none. */
export function showTokens(trace) {
  const passes = Array.isArray(trace) ? trace : [];
  byId("tab-tokens").hidden = !passes.length;
  byId("tokens").replaceChildren(
    ...passes.map(([at, tokens], index) => passItem(at - (passes[index - 1]?.[0] ?? 0), tokens)),
  );
  const counts = new Map();
  for (const [, tokens] of passes) for (const [, source] of tokens) count(counts, kindOf(source));
  byId("token-kinds").replaceChildren(
    ...[...counts].map(([label, { kind, number }]) =>
      element("li", {}, element("span", { class: `token token-${kind}` }, String(number)), ` ${label}`),
    ),
  );
}

const kindOf = (source) => KINDS[source] ?? DRAFT;

function count(counts, [kind, label]) {
  counts.set(label, { kind, number: (counts.get(label)?.number ?? 0) + 1 });
}

function passItem(milliseconds, tokens) {
  const texts = tokens.map(([text, source]) => {
    const [kind, label] = kindOf(source);
    return element("span", { class: `token token-${kind}`, title: label }, text);
  });
  const time = `${milliseconds.toFixed(milliseconds < 10 ? 1 : 0)} ms`;
  return element("li", {}, element("span", { class: "pass-time" }, time), element("span", {}, ...texts));
}
