// Asks the gateway with Replicate's JavaScript client: node replicate.mjs ADDRESS KEY MODEL QUESTION, beside node_modules.
// The question has an answer that takes seconds.
import Replicate from "replicate";

const [address, auth, model, slow] = process.argv.slice(2);
const baseUrl = `${address}/v1`;
const replicate = new Replicate({ auth, baseUrl });
const short = { nlq: "how many?", cols: "a,b" };
const long = { nlq: slow, cols: "a,b" };
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function streamed() {
  const texts = [];
  let last, running;
  for await (const event of replicate.stream(model, { input: { ...long, cols: "streamed" } })) {
    running ??= (await replicate.predictions.list()).results.find((one) => one.input.cols === "streamed");
    texts.push(String(event));
    last = event;
  }
  return { texts, last: [last.event, JSON.parse(last.data)], status: running.status };
}

async function cancelled() {
  const { version } = await replicate.predictions.create({ model, input: short, wait: true });
  let prediction = await replicate.predictions.create({ version, input: long });
  const statuses = [prediction.status];
  while (!prediction.output) {
    await sleep(20);
    prediction = await replicate.predictions.get(prediction.id);
  }
  statuses.push(prediction.status, (await replicate.predictions.cancel(prediction.id)).status);
  const waited = await replicate.wait(prediction, {});
  return [...statuses, waited.status];
}

async function drained(stream) {
  for await (const event of stream);
}

const errorOf = (promise) => promise.then(() => null, (error) => [error.name, error.message]);
const calls = {
  run: replicate.run(model, { input: short }),
  longerThanItsWait: replicate.run(model, { input: long, wait: { mode: "block", timeout: 1 } }),
  polledRun: replicate.run(model, { input: short, wait: { mode: "poll", interval: 50 } }),
  streamed: streamed(),
  cancelled: cancelled(),
  modelError: errorOf(replicate.run(model, { input: { nlq: " ", cols: "a" } })),
  streamedError: errorOf(drained(replicate.stream(model, { input: { nlq: " ", cols: "a" } }))),
  wrongInput: errorOf(replicate.run(model, { input: { nlq: 5, cols: "a" } })),
  wrongKey: errorOf(new Replicate({ auth: "wrong", baseUrl }).run(model, { input: short })),
};
const found = await Promise.all(Object.entries(calls).map(async ([name, call]) => [name, await call]));
console.log(JSON.stringify(Object.fromEntries(found)));
