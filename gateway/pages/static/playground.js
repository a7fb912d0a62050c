// The playground: runs the model with the form's inputs and shows the answer while it is written.
import { ApiError, cancel, create, get } from "./api.js";
import { CodeTabs } from "./code_tabs.js";
import { Conversation } from "./conversation.js";
import { byId, showText } from "./dom.js";
import { follow } from "./events.js";
import { seconds } from "./figures.js";
import { InputForm } from "./form.js";
import { JsonInput } from "./json_input.js";
import { ResultView, outputText } from "./result.js";
import { Verdict } from "./verdict.js";

const { model, version, base, openai, texts, keys, answered } = byId("playground").dataset;
const result = new ResultView();
const verdict = new Verdict();
const form = new InputForm(byId("form"), () => code.update());
const call = () => ({ base, model, version, keys: keys !== undefined, input: form.read().input });
const code = new CodeTabs(call, { openai: openai !== undefined, texts: texts ? texts.split(" ") : [] });
const json = new JsonInput(form, () => code.update());
const conversation = byId("composer") && new Conversation(form, { run, change });
let running = null; // {id, isCancelled}: the run that is shown

async function run() {
  if (running) return;
  const { input, errors } = form.read();
  showErrors(errors);
  if (errors.length || !json.isRight) {
    conversation?.end("");
    return;
  }
  form.commit();
  const mine = { id: null, isCancelled: false };
  setRunning(mine);
  conversation?.begin(input);
  const stopClock = startClock();
  try {
    const created = await create(model, input);
    mine.id = created.id;
    byId("permalink").href = `/p/${created.id}`;
    byId("permalink").hidden = false;
    if (mine.isCancelled) await cancel(mine.id);
    await showEvents(mine.id);
    showEnd(await get(mine.id));
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    result.setStatus("failed");
    result.announce("Failed");
    conversation?.end("");
    showErrors(error.fields.length ? error.fields : [{ name: null, message: error.message }]);
  } finally {
    stopClock();
    setRunning(null);
  }
}

async function showEvents(id) {
  for await (const event of follow(id)) {
    if (event.name === "output") {
      result.setStatus("processing");
      result.add(event.data);
    } else if (event.name === "logs") {
      result.setLogs(result.logs + event.data);
    }
  }
}

function showEnd(prediction) {
  result.show(prediction);
  verdict.show(prediction, outputText(prediction.output));
  conversation?.end(prediction.status === "failed" ? "" : outputText(prediction.output));
  if (prediction.error) showErrors(form.errorsIn(prediction.error));
  const time = seconds(prediction.metrics.total_time ?? 0);
  const texts = { succeeded: `Answered in ${time}`, canceled: "Cancelled", failed: `Failed: ${prediction.error}` };
  result.announce(texts[prediction.status] ?? prediction.status);
  if (prediction.status !== "failed") requestAnimationFrame(showOutput); // it is longer now
}

/** Errors of inputs are beside them in the form. */
function showErrors(errors) {
  if (errors.some(({ name }) => form.fields.has(name))) json.select(byId("tab-form"));
  form.showErrors(errors);
}

function setRunning(mine) {
  running = mine;
  byId("run").disabled = mine !== null;
  byId("cancel").hidden = mine === null;
  byId("cancel").disabled = false;
  if (mine === null) return;
  result.reset();
  verdict.hide();
  result.setStatus("starting");
  result.announce("Running");
  byId("permalink").hidden = true;
  showOutput();
}

function fill(input) {
  form.fill(input);
  change();
}

/** The form has other inputs. */
function change() {
  json.reset();
  code.update();
}

function clearAnswer() {
  result.reset();
  result.setStatus("idle");
  verdict.hide();
  byId("permalink").hidden = true;
}

/** On a phone the answer is below the form, and at most its beginning is in view. */
function showOutput() {
  if (byId("output").getBoundingClientRect().top > innerHeight / 2) byId("output").scrollIntoView({ block: "start" });
}

function startClock() {
  const start = performance.now();
  const show = () => showText(byId("elapsed"), `${((performance.now() - start) / 1000).toFixed(1)} s`);
  show();
  const timer = setInterval(show, 100);
  return () => {
    clearInterval(timer);
    showText(byId("elapsed"), ""); // the figures have the time that the server measured
  };
}

byId("form").addEventListener("submit", (event) => {
  event.preventDefault();
  run();
});
for (const button of [byId("cancel"), byId("stop")]) button?.addEventListener("click", stop);

async function stop() {
  if (!running) return;
  running.isCancelled = true;
  this.disabled = true;
  if (running.id !== null) await cancel(running.id).catch((error) => form.showErrors([{ name: null, message: error.message }]));
}

document.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey) || document.querySelector("dialog[open]")) return;
  event.preventDefault();
  run();
});
byId("clear").addEventListener("click", () => {
  fill({});
  if (conversation && !running) conversation.clear();
});
byId("composer")?.addEventListener("reset", clearAnswer);
if (conversation) conversation.resume(form.read().input, answered);
for (const button of document.querySelectorAll("[data-example]")) {
  button.addEventListener("click", () => {
    fill(JSON.parse(button.dataset.example));
  });
}
