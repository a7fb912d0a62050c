// The page of a candidate's answers: both answers side by side, with the lines that differ marked.
import { showBeside } from "./difference.js";
import { showJson } from "./json_view.js";

for (const pair of document.querySelectorAll(".pair")) {
  const [given, answer] = [pair.querySelector(".given"), pair.querySelector(".answer")];
  if (answer) showBeside(given, answer);
  else showJson(given, given.dataset.text);
}
