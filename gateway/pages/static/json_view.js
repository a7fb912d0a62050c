// Shows JSON indented and coloured, also while it is still being written. Every part is a text node.
import { element } from "./dom.js";

const TOKEN = /\s*(?:("(?:[^"\\]|\\[^])*(?:"|$))|([{}[\],:])|([^\s"{}[\],:]+))/y;
const MAX_CHARACTERS = 200_000; // longer texts are shown as they are
const MAX_DEPTH = 100;
const LINE = 64; // characters of a list that stays on one line

/** Show a text in a `pre`: JSON objects and lists as such, all else as prose. */
export function showJson(target, text) {
  const tree = text.length <= MAX_CHARACTERS && /^\s*[{[]/.test(text) ? parse(text) : null;
  target.classList.toggle("prose", tree === null);
  target.replaceChildren(...(tree === null ? [text] : layOut(tree, "")));
}

/** A text of the same values with indentation; the text itself if it is no JSON. */
export function indented(text) {
  const tree = /^\s*[{[]/.test(text) ? parse(text) : null;
  return tree === null ? text : layOut(tree, "").map((part) => part.textContent ?? part).join("");
}

/** The tree of a JSON text that may be incomplete: {open, close, items} or {token, kind}; null if it is no JSON. */
function parse(text) {
  const tokens = tokenize(text);
  if (tokens === null) return null;
  let at = 0;
  let depth = 0;

  function value() {
    const token = tokens[at++];
    if (token === "{" || token === "[") return group(token, token === "{" ? "}" : "]");
    if (token === undefined || /^[}\],:]$/.test(token)) throw new SyntaxError();
    return { token, kind: kindOf(token) };
  }

  function group(open, close) {
    const found = { open, close: "", items: [] };
    if (++depth > MAX_DEPTH) throw new SyntaxError();
    while (at < tokens.length) {
      if (tokens[at] === close) {
        found.close = tokens[at++];
        break;
      }
      const item = { key: null, value: null, comma: false };
      if (open === "{") {
        item.key = tokens[at++];
        if (!item.key.startsWith('"')) throw new SyntaxError();
        item.colon = tokens[at] === ":";
        if (item.colon) at++;
        else if (at < tokens.length) throw new SyntaxError();
      }
      if (at < tokens.length) item.value = value();
      item.comma = tokens[at] === ",";
      if (item.comma) at++;
      else if (at < tokens.length && tokens[at] !== close) throw new SyntaxError();
      found.items.push(item);
    }
    depth--;
    return found;
  }

  try {
    const tree = value();
    return at === tokens.length ? tree : null;
  } catch (error) {
    if (error instanceof SyntaxError) return null;
    throw error;
  }
}

function tokenize(text) {
  const found = [];
  const end = text.trimEnd().length;
  TOKEN.lastIndex = 0;
  while (TOKEN.lastIndex < end) {
    const match = TOKEN.exec(text);
    if (match === null) return null;
    found.push(match[1] ?? match[2] ?? match[3]);
  }
  return found;
}

function kindOf(token) {
  if (token.startsWith('"')) return "string";
  return /^(true|false|null)$/.test(token) ? "word" : "number";
}

function layOut(node, indent) {
  if (node.token !== undefined) return [element("span", { class: `json-${node.kind}` }, node.token)];
  const line = oneLine(node);
  if (line !== null) return line;
  const inner = `${indent}  `;
  const parts = [node.open];
  for (const item of node.items) parts.push(`\n${inner}`, ...itemParts(item, inner), item.comma ? "," : "");
  if (node.close) parts.push(`\n${indent}${node.close}`);
  return parts;
}

function itemParts(item, indent) {
  const value = item.value === null ? [] : layOut(item.value, indent);
  if (item.key === null) return value;
  return [element("span", { class: "json-key" }, item.key), item.colon ? ": " : "", ...value];
}

/** A complete group without groups inside, if it is short. */
function oneLine(node) {
  if (!node.close || node.items.some((item) => item.value?.open)) return null;
  const parts = node.items.flatMap((item) => [...itemParts(item, ""), item.comma ? ", " : ""]);
  const length = parts.reduce((sum, part) => sum + (part.textContent ?? part).length, 0);
  return length <= LINE ? [node.open, ...parts, node.close] : null;
}
