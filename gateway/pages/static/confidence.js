// How sure the model is of the fields of an answer. A field is known by its JSON pointer.
import { showText } from "./dom.js";

const NAMED = 4; // doubtful fields; the others are marked in the answer only

/** Say which fields are doubtful, or that none is; nothing where the model's server does not tell. */
export function showConfidence(target, confidence) {
  showText(target, confidence ? told(confidence) : "");
  target.classList.toggle("doubt", Boolean(confidence) && doubtful(confidence).length > 0);
  if (confidence) target.title = meaning(confidence);
}

/** What marks the value of a pointer: {class, title, data-share}; null where nothing is known of it. */
export function markOf(confidence, pointer) {
  const share = confidence?.fields[pointer];
  if (share === undefined) return null;
  const title = `${percent(share)} sure`;
  return share < confidence.doubtful_below ? { class: "doubtful", title, "data-share": percent(share) } : { title };
}

/** The pointer of a value in an object or list. */
export const child = (pointer, name) => `${pointer}/${String(name).replaceAll("~", "~0").replaceAll("/", "~1")}`;

function told(confidence) {
  const found = doubtful(confidence);
  if (!found.length) return `No field is doubtful; the least sure is at ${percent(confidence.lowest)}.`;
  const names = found.slice(0, NAMED).map(([pointer, share]) => `${nameOf(pointer, confidence)} ${percent(share)}`);
  const more = found.length > NAMED ? `, and ${found.length - NAMED} more` : "";
  return `Doubtful: ${names.join(", ")}${more}.`;
}

const doubtful = ({ fields, doubtful_below }) =>
  Object.entries(fields).filter(([, share]) => share < doubtful_below).sort(([, a], [, b]) => a - b);

/** filters[0].column for /filters/0/column; of an object or list, what is meant is which parts it has. */
function nameOf(pointer, { fields }) {
  const names = pointer.split("/").slice(1).map((name) => name.replaceAll("~1", "/").replaceAll("~0", "~"));
  const path = names.map((name) => (/^\d+$/.test(name) ? `[${name}]` : `.${name}`)).join("").replace(/^\./, "");
  const hasParts = Object.keys(fields).some((other) => other.startsWith(`${pointer}/`));
  return hasParts ? `parts of ${path || "the answer"}` : path || "the text";
}

const meaning = ({ calibrated, doubtful_below }) =>
  calibrated
    ? `Of fields like these on examples that the model had not learned, this share was right. Below ${percent(doubtful_below)} a field is doubtful.`
    : `The model's own probability of a field's least likely token, not calibrated. Below ${percent(doubtful_below)} a field is doubtful.`;

const percent = (share) => `${Math.floor(share * 100)} %`;
