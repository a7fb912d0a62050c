// Shows JSON indented and coloured, also while it is still being written. Every part is a text node.
import { child, markOf } from "./confidence.js";
import { element } from "./dom.js";
import { showMarkdown } from "./markdown.js";

const TOKEN = /\s*(?:("(?:[^"\\]|\\[^])*(?:"|$))|([{}[\],:])|([^\s"{}[\],:]+))/y;
const MAX_CHARACTERS = 200_000; // longer texts are shown as they are
const MAX_DEPTH = 100;
const LINE = 64; // characters of a list that stays on one line

/** Show a model's answer: JSON as such, prose as Markdown where the element has data-markdown. */
export function showAnswer(target, text, confidence) {
  const isProse = showJson(target, text, confidence) && "markdown" in target.dataset;
  target.classList.toggle("markdown", isProse);
  if (isProse) showMarkdown(target, text);
}

/** Show a text in an element: JSON objects and lists as such, with what is known of their fields; all else as prose. Whether it is prose. */
export function showJson(target, text, confidence) {
  const tree = text.length <= MAX_CHARACTERS && /^\s*[{[]/.test(text) ? parse(text) : null;
  target.classList.toggle("prose", tree === null);
  target.replaceChildren(...(tree === null ? [text] : layOut(tree, "", "", confidence)));
  return tree === null;
}

/** A text of the same values with indentation; the text itself if it is no JSON. */
export function indented(text) {
  const tree = /^\s*[{[]/.test(text) ? parse(text) : null;
  return tree === null ? text : layOut(tree, "", "").map((part) => part.textContent ?? part).join("");
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

function layOut(node, indent, pointer, confidence) {
  const mark = markOf(confidence, pointer);
  if (node.token !== undefined) {
    const kind = `json-${node.kind}`;
    return [element("span", { ...mark, class: mark?.class ? `${kind} ${mark.class}` : kind }, node.token)];
  }
  const close = mark?.class ? element("span", mark, node.close) : node.close;
  const line = oneLine(node, pointer, confidence);
  if (line !== null) return [node.open, ...line, close];
  const inner = `${indent}  `;
  const parts = [node.open];
  node.items.forEach((item, index) => {
    parts.push(`\n${inner}`, ...itemParts(item, inner, pointerOf(item, index, pointer, confidence), confidence), item.comma ? "," : "");
  });
  if (node.close) parts.push(`\n${indent}`, close);
  return parts;
}

/** The pointer of an item, where something is known of the fields, which is so at the end of an answer. */
function pointerOf(item, index, pointer, confidence) {
  return confidence && child(pointer, item.key === null ? index : JSON.parse(item.key));
}

function itemParts(item, indent, pointer, confidence) {
  const value = item.value === null ? [] : layOut(item.value, indent, pointer, confidence);
  if (item.key === null) return value;
  return [element("span", { class: "json-key" }, item.key), item.colon ? ": " : "", ...value];
}

/** What is in a complete group without groups inside, if it is short. */
function oneLine(node, pointer, confidence) {
  if (!node.close || node.items.some((item) => item.value?.open)) return null;
  const parts = node.items.flatMap((item, index) => [
    ...itemParts(item, "", pointerOf(item, index, pointer, confidence), confidence),
    item.comma ? ", " : "",
  ]);
  const length = parts.reduce((sum, part) => sum + (part.textContent ?? part).length, 0);
  return length <= LINE ? parts : null;
}
