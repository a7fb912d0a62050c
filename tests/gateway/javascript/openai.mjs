// Asks the gateway with OpenAI's JavaScript client: node openai.mjs ADDRESS, beside node_modules.
import OpenAI from "openai";

const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "any", maxRetries: 0 });
const [model] = (await client.models.list()).data.map((one) => one.id);
const messages = [{ role: "user", content: '{"item": "tea", "count": 2}' }];
const schema = {
  type: "object",
  properties: { item: { type: "string" }, count: { type: "integer" } },
  required: ["item", "count"],
  additionalProperties: false,
};

const whole = await client.chat.completions.create({ model, messages });
let streamed = "";
for await (const chunk of await client.chat.completions.create({ model, messages, stream: true }))
  streamed += chunk.choices[0].delta.content ?? "";
const helper = client.chat.completions.stream({
  model,
  messages,
  tools: [{ type: "function", function: { name: "order", parameters: schema } }],
  tool_choice: { type: "function", function: { name: "order" } },
  stream_options: { include_usage: true },
});
const final = await helper.finalChatCompletion();
const format = { type: "json_schema", name: "order", schema };
const parsed = await client.responses.parse({ model, input: messages, text: { format } });
const events = client.responses.stream({ model, input: "one, two" });
const response = await events.finalResponse();
const refused = await client.chat.completions.create({ model, messages, guided_json: {} }).catch((error) => error);
console.log(
  JSON.stringify({
    whole: whole.choices[0].message.content,
    streamed,
    call: JSON.parse(final.choices[0].message.tool_calls[0].function.arguments),
    finish_reason: final.choices[0].finish_reason,
    responses: [JSON.parse(parsed.output_text), response.output_text],
    has_usage: final.usage.total_tokens > 0,
    refused: [refused.constructor.name, refused.param],
  }),
);
