// The page of one prediction: follows it while it runs; share, delete.
import { get, remove } from "./api.js";
import { CodeTabs } from "./code_tabs.js";
import { showTurns } from "./conversation.js";
import { byId, copy, element, showText } from "./dom.js";
import { follow } from "./events.js";
import { showJson } from "./json_view.js";
import { ResultView } from "./result.js";
import { makeTabs } from "./tabs.js";
import { Verdict } from "./verdict.js";

const { base, openai, texts, keys, prediction: shown } = byId("prediction").dataset;
const asked = JSON.parse(shown);
const { id, status, model, input } = asked;
const call = { base, model, keys: keys !== undefined, input };
new CodeTabs(() => call, { openai: openai !== undefined, texts: texts ? texts.split(" ") : [] });
showJson(byId("input-json"), JSON.stringify(input));
makeTabs(byId("input-tabs"));
if (byId("asked") && Array.isArray(input.messages)) {
  const turns = element("ol", { class: "turns" });
  showTurns(turns, input.messages);
  byId("asked").replaceChildren(turns);
}
const result = new ResultView();
const verdict = new Verdict();
result.show(asked);
verdict.show(asked, result.text);

async function showRest() {
  result.reset();
  for await (const event of follow(id)) {
    if (event.name === "output") result.add(event.data);
    else if (event.name === "logs") result.setLogs(result.logs + event.data);
  }
  const prediction = await get(id);
  result.show(prediction);
  result.announce(prediction.status);
  verdict.show(prediction, result.text);
  showText(byId("prediction-error"), prediction.error ?? "");
}

if (status === "starting" || status === "processing") {
  showRest().catch((error) => {
    // Who has the link but no key, or another one, may see this page and its stream, but not ask the API.
    if ([401, 404].includes(error.status)) location.reload();
    else showText(byId("page-error"), error.message);
  });
}

byId("share").addEventListener("click", () => copy(location.href.split(/[?#]/)[0], byId("share")));
byId("delete").addEventListener("click", () => byId("confirm").showModal());
byId("confirm-keep").addEventListener("click", () => byId("confirm").close());
byId("confirm-delete").addEventListener("click", async () => {
  try {
    await remove(id);
    location.assign("/");
  } catch (error) {
    byId("confirm").close();
    showText(byId("page-error"), error.message);
  }
});
