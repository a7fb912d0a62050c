// The page of one prediction: follows it while it runs; share, delete.
import { get, remove } from "./api.js";
import { CodeTabs } from "./code_tabs.js";
import { showTurns } from "./conversation.js";
import { byId, copy, element, showText } from "./dom.js";
import { follow } from "./events.js";
import { ResultView, outputText } from "./result.js";
import { Verdict } from "./verdict.js";

const { id, status, metrics, input, model, base, openai, texts, keys } = byId("prediction").dataset;
const call = { base, model, keys: keys !== undefined, input: JSON.parse(input) };
new CodeTabs(() => call, { openai: openai !== undefined, texts: texts ? texts.split(" ") : [] });
if (byId("asked") && Array.isArray(call.input.messages)) {
  const turns = element("ol", { class: "turns" });
  showTurns(turns, call.input.messages);
  byId("asked").replaceChildren(turns);
}
const result = new ResultView();
const verdict = new Verdict();
result.setStatus(status);
result.setMetrics(JSON.parse(metrics));
verdict.show({ id, status }, result.text);

async function showRest() {
  result.reset();
  for await (const event of follow(id)) {
    if (event.name === "output") result.add(event.data);
    else if (event.name === "logs") result.setLogs(result.logs + event.data);
  }
  const prediction = await get(id);
  result.setOutput(outputText(prediction.output));
  result.setLogs(prediction.logs);
  result.setMetrics(prediction.metrics);
  result.setStatus(prediction.status);
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
