// Asks a gateway with other people's JavaScript packages: node ask.mjs ADDRESS MODEL, beside node_modules.
// The model behind the gateway repeats the user's last message, as far as a schema allows it. Each function of `rows`
// asks in one way that users of its package ask. Prints a JSON object with what each gave, or the error its user sees.
import { createOpenAI } from "@ai-sdk/openai";
import { embed, generateObject, generateText, Output, stepCountIs, streamObject, streamText, tool } from "ai";
import OpenAI from "openai";
import { zodFunction, zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import Replicate from "replicate";
import { z } from "zod";

const [url, model] = process.argv.slice(2);
const baseURL = `${url}/v1`;
const TEXT = "one, two, three";
const TEA = '{"item": "tea", "count": 2}';
const CALL = `<tool_call>\n{"name": "order", "arguments": ${TEA}}\n</tool_call>`;
const Order = z.object({ item: z.string(), count: z.int() });
const order = ({ item, count }) => `${count} x ${item}`;
const messages = [{ role: "user", content: TEXT }];
const teaMessages = [{ role: "user", content: TEA }];
const callMessages = [{ role: "user", content: CALL }];

const openai = new OpenAI({ baseURL, apiKey: "any", maxRetries: 0 });
const tools = [zodFunction({ name: "order", parameters: Order })];
const responsesTools = [{ type: "function", ...tools[0].function }];
const replicate = new Replicate({ auth: "any", baseUrl: baseURL });
const vercel = createOpenAI({ baseURL, apiKey: "any" });
const vercelTools = { order: tool({ description: "Order something.", inputSchema: Order, execute: order }) };
const unexecuted = { order: tool({ inputSchema: Order }) };

async function joined(pieces, textOf = (piece) => piece) {
  let text = "";
  for await (const piece of pieces) text += textOf(piece) ?? "";
  return text;
}

const rows = {
  openai_js_chat: async () => (await openai.chat.completions.create({ model, messages })).choices[0].message.content,
  openai_js_chat_stream: async () =>
    joined(await openai.chat.completions.create({ model, messages, stream: true }), (one) => one.choices[0].delta.content),
  openai_js_chat_parse: async () => {
    const response_format = zodResponseFormat(Order, "order");
    const answer = await openai.chat.completions.parse({ model, messages: teaMessages, response_format });
    return answer.choices[0].message.parsed;
  },
  openai_js_chat_tool: async () => {
    const tool_choice = { type: "function", function: { name: "order" } };
    const asked = { model, messages: teaMessages, tools, tool_choice, stream_options: { include_usage: true } };
    const answer = await openai.chat.completions.stream(asked).finalChatCompletion();
    const [choice] = answer.choices;
    return [choice.finish_reason, choice.message.tool_calls[0].function.parsed_arguments, answer.usage.total_tokens > 0];
  },
  openai_js_chat_run_tools: async () => {
    const own = [zodFunction({ name: "order", parameters: Order, function: order })];
    return openai.chat.completions.runTools({ model, messages: callMessages, tools: own }).finalContent();
  },
  openai_js_responses: async () => {
    const first = await openai.responses.create({ model, input: "one" });
    const second = await openai.responses.create({ model, input: TEXT, previous_response_id: first.id });
    return (await openai.responses.retrieve(second.id)).output_text;
  },
  openai_js_responses_stream: async () =>
    (await openai.responses.stream({ model, input: TEXT }).finalResponse()).output_text,
  openai_js_responses_parse: async () => {
    const text = { format: zodTextFormat(Order, "order") };
    return (await openai.responses.parse({ model, input: TEA, text })).output_parsed;
  },
  openai_js_responses_tool_auto: async () => {
    const answer = await openai.responses.parse({ model, input: TEXT + CALL, tools: responsesTools });
    return [answer.output[0].content[0].text, JSON.parse(answer.output[1].arguments)];
  },
  openai_js_refused: async () => openai.chat.completions.create({ model, messages, guided_json: {} }),
  replicate_js_run: async () => (await replicate.run(`local/${model}`, { input: { prompt: TEXT } })).join(""),
  replicate_js_stream: async () => {
    const events = replicate.stream(`local/${model}`, { input: { prompt: TEXT } });
    return joined(events, (event) => (event.event === "output" ? event.data : ""));
  },
  vercel_embed: async () => (await embed({ model: vercel.embedding(model), value: TEXT, maxRetries: 0 })).embedding,
};

for (const [name, one] of [["vercel_chat", vercel.chat(model)], ["vercel_responses", vercel(model)]]) {
  const asked = { model: one, maxRetries: 0 };
  rows[`${name}_text`] = async () => (await generateText({ ...asked, prompt: TEXT })).text;
  rows[`${name}_turns`] = async () => {
    const first = await generateText({ ...asked, system: "Repeat.", prompt: "one" });
    const turns = [{ role: "user", content: "one" }, ...first.response.messages, ...messages];
    return (await generateText({ ...asked, messages: turns })).text;
  };
  rows[`${name}_stream`] = async () => joined(streamText({ ...asked, prompt: TEXT }).textStream);
  rows[`${name}_object`] = async () => (await generateObject({ ...asked, schema: Order, prompt: TEA })).object;
  rows[`${name}_stream_object`] = async () => {
    const answer = streamObject({ ...asked, schema: Order, prompt: TEA });
    await joined(answer.textStream);
    return answer.object;
  };
  rows[`${name}_no_schema`] = async () => (await generateObject({ ...asked, output: "no-schema", prompt: TEA })).object;
  rows[`${name}_output`] = async () =>
    (await generateText({ ...asked, output: Output.object({ schema: Order }), prompt: TEA })).output;
  rows[`${name}_tool_required`] = async () => {
    const answer = await generateText({ ...asked, tools: unexecuted, toolChoice: "required", prompt: TEA });
    return answer.toolCalls[0].input;
  };
  rows[`${name}_tool_named`] = async () => {
    const toolChoice = { type: "tool", toolName: "order" };
    return (await generateText({ ...asked, tools: unexecuted, toolChoice, prompt: TEA })).toolCalls[0].input;
  };
  rows[`${name}_tools_auto`] = async () =>
    (await generateText({ ...asked, tools: vercelTools, stopWhen: stepCountIs(2), prompt: CALL })).text;
  rows[`${name}_tools_auto_stream`] = async () => {
    const answer = streamText({ ...asked, tools: unexecuted, prompt: TEXT + CALL });
    return [await joined(answer.textStream), (await answer.toolCalls)[0].input];
  };
  rows[`${name}_tools_and_output`] = async () => {
    const output = Output.object({ schema: Order });
    return (await generateText({ ...asked, tools: unexecuted, output, prompt: TEA })).output;
  };
  rows[`${name}_tools_and_output_call`] = async () => {
    const output = Output.object({ schema: Order });
    return (await generateText({ ...asked, tools: unexecuted, output, prompt: CALL })).toolCalls[0].input;
  };
}

const found = {};
for (const [name, row] of Object.entries(rows))
  found[name] = await row().then(
    (given) => ({ given }),
    (error) => ({ error: `${error.constructor.name}: ${error.message}${error.cause ? ` (${error.cause})` : ""}` }),
  );
process.stdout.write(`\n${JSON.stringify(found)}`);
