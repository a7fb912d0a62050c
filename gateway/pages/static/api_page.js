// The page about the API: a call with the first example's inputs in code.
import { CodeTabs } from "./code_tabs.js";
import { byId } from "./dom.js";

const { model, version, base, input, openai, texts, keys } = byId("api").dataset;
const call = { base, model, version, keys: keys !== undefined, input: JSON.parse(input) };
new CodeTabs(() => call, { openai: openai !== undefined, texts: texts ? texts.split(" ") : [] });
