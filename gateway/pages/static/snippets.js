// Writes the code of a call in several languages. Inputs become literals that no shell or language reads otherwise.

/** The languages that fit: {id, label, write(call)}; a call is {base, model, version, keys, input}. Where the gateway
 * asks for keys, the code reads the key from the variable GATEWAY_KEY. `texts` are the inputs that make up the one
 * message of a model without conversations. */
export function languages({ openai, texts }) {
  const found = [
    { id: "curl", label: "curl", write: curl },
    { id: "python", label: "Python", write: python },
    { id: "javascript", label: "JavaScript", write: javascript },
    { id: "cog", label: "Cog", write: cog },
  ];
  if (openai) {
    found.splice(2, 0, { id: "openai", label: "Python (openai)", write: (call) => openaiPython(call, texts) });
    found.splice(4, 0, { id: "openai-js", label: "JS (openai)", write: (call) => openaiJavascript(call, texts) });
  }
  return found;
}

function curl({ base, model, keys, input }) {
  return `curl -s ${quote(`${base}/v1/models/${model}/predictions`)} \\${keys ? `
  -H "Authorization: Bearer $GATEWAY_KEY" \\` : ""}
  -H 'Content-Type: application/json' -H 'Prefer: wait' \\
  -d ${quote(JSON.stringify({ input }))}`;
}

function python({ base, model, keys, input }) {
  return `${pythonImports(keys)}import replicate  # pip install replicate

client = replicate.Client(base_url=${pythonText(base)}, api_token=${pythonKey(keys)})
for event in client.stream(
    ${pythonText(model)},
    input=${pythonValue(input, "    ")},
):
    print(event, end="")`;
}

function javascript({ base, model, keys, input }) {
  return `import Replicate from "replicate"; // npm install replicate

const replicate = new Replicate({ baseUrl: ${JSON.stringify(`${base}/v1`)}, auth: ${javascriptKey(keys)} });
const input = ${JSON.stringify(input, null, 2)};
for await (const event of replicate.stream(${JSON.stringify(model)}, { input })) {
  process.stdout.write(String(event));
}`;
}

function cog({ input }) {
  const words = Object.entries(input).map(
    ([name, value]) => `-i ${name}=${quote(typeof value === "string" ? value : JSON.stringify(value))}`,
  );
  return `# In the package's folder. Cog needs Docker; scripts/predict, or ./package.py predict, takes the same -i without it.
${["cog predict", ...words].join(" \\\n  ")}`;
}

// predict's inputs that OpenAI's API has, by its names there; the gateway takes the others in extra_body.
const OPENAI_NAMES = ["max_tokens", "temperature", "top_p", "seed", "presence_penalty", "frequency_penalty", "tools"];

/** {options, more}: what OpenAI's API has for these inputs, and the inputs that it does not know. */
function openaiOptions(input, texts) {
  const others = Object.entries(input).filter(([name]) => !texts.includes(name));
  const { prompt, messages, system_prompt, stop_sequences, json_schema, logprobs, ...rest } = Object.fromEntries(others);
  const asked = [...(messages ?? [])];
  if (texts.length) asked.push({ role: "user", content: oneText(input, texts) });
  if (system_prompt) asked.unshift({ role: "system", content: system_prompt });
  if (prompt) asked.push({ role: "user", content: prompt });
  const options = { messages: asked };
  for (const name of OPENAI_NAMES) if (name in rest) options[name] = rest[name];
  if (stop_sequences) options.stop = stop_sequences;
  if (json_schema)
    options.response_format = json_schema.type === "json_schema"
      ? json_schema
      : { type: "json_schema", json_schema: { name: "answer", schema: json_schema } };
  if (Number.isInteger(logprobs)) Object.assign(options, { logprobs: true, top_logprobs: logprobs });
  const more = Object.fromEntries(Object.entries(rest).filter(([name]) => !OPENAI_NAMES.includes(name)));
  return { options, more };
}

function openaiPython({ base, model, keys, input }, texts) {
  const { options, more } = openaiOptions(input, texts);
  if (Object.keys(more).length) options.extra_body = more;
  const lines = Object.entries(options).map(([name, value]) => `    ${name}=${pythonValue(value, "    ")},`);
  return `${pythonImports(keys)}from openai import OpenAI  # pip install openai

client = OpenAI(base_url=${pythonText(`${base}/v1`)}, api_key=${pythonKey(keys)})
stream = client.chat.completions.create(
    model=${pythonText(model)},
    stream=True,
${lines.join("\n")}
)
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="")`;
}

function openaiJavascript({ base, model, keys, input }, texts) {
  const { options, more } = openaiOptions(input, texts);
  const body = JSON.stringify({ model, stream: true, ...options, ...more }, null, 2);
  return `import OpenAI from "openai"; // npm install openai

const client = new OpenAI({ baseURL: ${JSON.stringify(`${base}/v1`)}, apiKey: ${javascriptKey(keys)} });
const stream = await client.chat.completions.create(${body});
for await (const chunk of stream) {
  process.stdout.write(chunk.choices[0]?.delta?.content ?? "");
}`;
}

/** The message that stands for these inputs: the only one, or a JSON object of them. */
const oneText = (input, texts) =>
  texts.length === 1 ? input[texts[0]] ?? "" : JSON.stringify(Object.fromEntries(texts.map((name) => [name, input[name]])));

const pythonImports = (keys) => (keys ? "import os\n\n" : "");
const javascriptKey = (keys) => (keys ? "process.env.GATEWAY_KEY" : '"any"');
const pythonKey = (keys) => (keys ? 'os.environ["GATEWAY_KEY"]' : '"any"');

/** A word of a POSIX shell. */
function quote(text) {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`;
}

/** A Python literal; JSON's texts are Python's as well, apart from what is not ASCII beyond 16 bits. */
function pythonValue(value, indent = "") {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value === "string") return pythonText(value);
  if (typeof value === "number") return String(value);
  const inner = `${indent}    `;
  const items = Array.isArray(value)
    ? value.map((item) => pythonValue(item, inner))
    : Object.entries(value).map(([key, item]) => `${pythonText(key)}: ${pythonValue(item, inner)}`);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  if (!items.length) return open + close;
  return `${open}\n${items.map((item) => `${inner}${item},\n`).join("")}${indent}${close}`;
}

function pythonText(text) {
  return JSON.stringify(text);
}
