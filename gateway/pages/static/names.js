// Reads lists of names as people have them: a Python list, JSON, commas, or lines.

const LITERAL = /\s*[uU]?('(?:[^'\\\n]|\\[^\n])*'|"(?:[^"\\\n]|\\[^\n])*")\s*(,\s*\]?|\])/y;
const ESCAPES = { n: "\n", t: "\t", r: "\r" };

/** The names in a text, without blanks around them and each once. Throws an Error if a list is not well formed. */
export function parseNames(text) {
  const trimmed = text.trim();
  const names = trimmed.startsWith("[") ? listItems(trimmed) : separatedItems(trimmed);
  return [...new Set(names.map((name) => name.trim()).filter(Boolean))];
}

function separatedItems(text) {
  return text.split(/[,\n;\t]/).map((item) => item.trim().replace(/^(['"])(.*)\1$/, "$2"));
}

function listItems(text) {
  const json = parseJson(text);
  if (json !== undefined) {
    if (json.every((item) => typeof item === "string")) return json;
    throw new Error("the list has items that are not names");
  }
  return pythonItems(text);
}

function parseJson(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

function pythonItems(text) {
  const items = [];
  LITERAL.lastIndex = 1;
  for (;;) {
    const match = LITERAL.exec(text);
    if (match === null) throw new Error("this is not a complete list such as ['name', 'duration_ms']");
    items.push(match[1].slice(1, -1).replace(/\\(.)/g, (_, character) => ESCAPES[character] ?? character));
    if (match[2].endsWith("]")) return items;
  }
}
