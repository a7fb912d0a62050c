// Shows which lines of a text differ from another's. Every line is a text node.
import { element } from "./dom.js";
import { indented } from "./json_view.js";

const MAX_LINES = 600; // more take too long to compare; all of both are shown then

/** Show in a `pre` how to get from one text to the other; JSON is indented first. False if they are the same. */
export function showDifference(target, given, wanted) {
  const lines = difference(indented(given).split("\n"), indented(wanted).split("\n"));
  target.replaceChildren(
    ...lines.map(([sign, line]) =>
      sign === " " ? `  ${line}\n` : element(sign === "-" ? "del" : "ins", {}, `${sign} ${line}\n`),
    ),
  );
  return lines.some(([sign]) => sign !== " ");
}

/** Show two texts in a `pre` each, which has its text as data; lines that only one has are marked. */
export function showBeside(first, second) {
  const lines = difference(indented(first.dataset.text).split("\n"), indented(second.dataset.text).split("\n"));
  for (const [target, own, tag] of [[first, "-", "del"], [second, "+", "ins"]])
    target.replaceChildren(
      ...lines
        .filter(([sign]) => sign === " " || sign === own)
        .map(([sign, line]) => (sign === " " ? `${line}\n` : element(tag, {}, `${line}\n`))),
    );
}

/** [sign, line] of each line: " " is in both texts, "-" only in the first, "+" only in the second. */
function difference(first, second) {
  const common = first.length + second.length > MAX_LINES ? [] : lengths(first, second);
  const found = [];
  let [i, j] = [0, 0];
  while (i < first.length || j < second.length) {
    if (i < first.length && first[i] === second[j] && common.length) found.push([" ", first[i++], j++]);
    else if (i < first.length && (j === second.length || !common.length || common[i + 1][j] >= common[i][j + 1]))
      found.push(["-", first[i++]]);
    else found.push(["+", second[j++]]);
  }
  return found;
}

/** lengths[i][j]: how many lines first[i…] and second[j…] have in common, in order. */
function lengths(first, second) {
  const table = Array.from({ length: first.length + 1 }, () => new Uint16Array(second.length + 1));
  for (let i = first.length - 1; i >= 0; i--)
    for (let j = second.length - 1; j >= 0; j--)
      table[i][j] = first[i] === second[j] ? table[i + 1][j + 1] + 1 : Math.max(table[i + 1][j], table[i][j + 1]);
  return table;
}
