// Shows Markdown: a library reads it, and this makes the elements. What is none of these stays text, also HTML.
import { element } from "./dom.js";
import { Lexer } from "./marked.js";

const MAX_CHARACTERS = 20_000; // longer texts are shown as they are
const ENTITY = /&(?:#\d{1,7}|#x[\da-f]{1,6}|[a-z][a-z\d]{1,31});/gi;
const ELEMENTS = { paragraph: "p", blockquote: "blockquote", strong: "strong", em: "em", del: "del" };

/** Show a text as Markdown in an element. */
export function showMarkdown(target, text) {
  target.replaceChildren(...(text.length <= MAX_CHARACTERS ? parts(text) : [text]));
}

function parts(text) {
  try {
    return nodes(new Lexer().lex(text));
  } catch (error) {
    if (error instanceof RangeError) return [text]; // nested more deeply than the stack allows
    throw error;
  }
}

const nodes = (tokens) => tokens.flatMap(node);

/** The nodes of one token of the lexer. */
function node(token) {
  const { type, raw, text, tokens } = token;
  if (type in ELEMENTS) return element(ELEMENTS[type], {}, ...nodes(tokens));
  switch (type) {
    case "space":
    case "def":
      return [];
    case "text":
      return tokens ? nodes(tokens) : text.replace(ENTITY, decoded);
    case "escape":
      return text;
    case "heading":
      return element("h3", { class: `depth-${token.depth}` }, ...nodes(tokens));
    case "code":
      return element("pre", { tabindex: "0" }, element("code", {}, text));
    case "codespan":
      return element("code", {}, text);
    case "br":
    case "hr":
      return element(type);
    case "list":
      return list(token);
    case "checkbox":
      return token.checked ? "☑ " : "☐ ";
    case "link":
      return link(token, nodes(tokens));
    case "image": // it is not loaded: its server would learn who reads the text
      return link(token, [text || token.href]);
    case "table":
      return table(token);
    default:
      return raw;
  }
}

function list({ ordered, start, items }) {
  const attributes = ordered && start !== 1 ? { start } : {};
  return element(ordered ? "ol" : "ul", attributes, ...items.map((item) => element("li", {}, ...nodes(item.tokens))));
}

function link({ href, raw }, children) {
  if (!/[:&\\]/.test(href)) return children; // a place in the writer's folder, which is not here
  if (!/^https?:\/\//i.test(href) || !URL.canParse(href)) return raw;
  return element("a", { href, title: href, target: "_blank", rel: "noopener noreferrer nofollow" }, ...children);
}

function table({ header, rows }) {
  const row = (cells, name) =>
    element("tr", {}, ...cells.map(({ tokens, align }) => element(name, { class: align ?? "left" }, ...nodes(tokens))));
  return element(
    "div",
    { class: "table", tabindex: "0" },
    element(
      "table",
      {},
      element("thead", {}, row(header, "th")),
      element("tbody", {}, ...rows.map((cells) => row(cells, "td"))),
    ),
  );
}

/** The character that an entity such as &lt; stands for. */
const decoded = (entity) => new DOMParser().parseFromString(entity, "text/html").documentElement.textContent;
