// The pages of corrections and of examples: shows differences; decides, shares, deletes.
import { decide, removeCorrection } from "./api.js";
import { showDifference } from "./difference.js";
import { byId, showText } from "./dom.js";
import { showJson } from "./json_view.js";

for (const card of document.querySelectorAll(".correction")) {
  const shown = card.querySelector(".difference");
  const { given, wanted } = shown.dataset;
  if (card.dataset.kind === "correction" && given) showDifference(shown, given, wanted);
  else showJson(shown, wanted || given);
  const { id } = card.dataset;
  for (const button of card.querySelectorAll("[data-change]"))
    button.addEventListener("click", () => act(() => decide(id, JSON.parse(button.dataset.change))));
  card.querySelector("[data-remove]")?.addEventListener("click", () => act(() => removeCorrection(id)));
}

async function act(change) {
  try {
    await change();
    location.reload();
  } catch (error) {
    showText(byId("page-error"), error.message);
  }
}
