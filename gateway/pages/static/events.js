// Follows a prediction's server-sent events; a broken connection is taken up where it ended.
import { ApiError } from "./api.js";

const MAX_ATTEMPTS = 5; // without a single new event
const PAUSE_MS = 500;

/** Yields {name, data} of each event up to `done`. */
export async function* follow(id) {
  let lastId = "";
  for (let attempt = 0; attempt < MAX_ATTEMPTS; attempt++) {
    try {
      for await (const event of connect(id, lastId)) {
        attempt = 0;
        lastId = event.id || lastId;
        yield event;
        if (event.name === "done") return;
      }
    } catch (error) {
      if (error instanceof ApiError) throw error;
    }
    await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
  }
  throw new ApiError(0, { detail: "The connection broke. The prediction may still run; its page shows it." });
}

async function* connect(id, lastId) {
  const headers = { Accept: "text/event-stream" };
  if (lastId) headers["Last-Event-ID"] = lastId;
  const response = await fetch(`/v1/predictions/${encodeURIComponent(id)}/stream`, { headers });
  if (!response.ok) throw new ApiError(response.status, await response.json().catch(() => ({})));
  let event = { name: "", id: "", data: [] };
  for await (const line of lines(response.body)) {
    if (line === "") {
      if (event.data.length) yield { ...event, data: event.data.join("\n") };
      event = { name: "", id: "", data: [] };
      continue;
    }
    const [, field, value] = /^([^:]*):? ?([^]*)$/.exec(line);
    if (field === "event") event.name = value;
    else if (field === "id") event.id = value;
    else if (field === "data") event.data.push(value);
  }
}

async function* lines(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const parts = (rest + value).split("\n");
      rest = parts.pop();
      yield* parts;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
