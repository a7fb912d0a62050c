// The gateway's HTTP API, as far as the pages need it.

/** A refusal: `fields` are {name, message} of the inputs that are wrong. */
export class ApiError extends Error {
  constructor(status, problem) {
    const text = problem.detail ?? problem.title ?? `the server answered ${status}`;
    super(text.replace(/^- (wanted|note|prediction): /gm, "")); // parts of a correction, which have one dialog
    this.status = status;
    this.fields = (problem.invalid_fields ?? [])
      .filter((field) => field.field.startsWith("input."))
      .map((field) => ({ name: field.field.split(".")[1], message: field.description }));
  }
}

/** Start a prediction. */
export const create = (model, input) => ask("POST", `/v1/models/${model}/predictions`, { input });

/** A prediction as it is now. */
export const get = (id) => ask("GET", `/v1/predictions/${encodeURIComponent(id)}`);

/** Cancel a prediction; the answer is what became of it. */
export const cancel = (id) => ask("POST", `/v1/predictions/${encodeURIComponent(id)}/cancel`);

/** Delete a prediction for ever. */
export const remove = (id) => ask("DELETE", `/v1/predictions/${encodeURIComponent(id)}`);

/** Propose a correction {prediction, kind, wanted, note, state}. */
export const propose = (body) => ask("POST", "/v1/corrections", body);

/** Whether an answer is one of a prediction's model: {valid, wanted, problem}. */
export const check = (prediction, wanted) => ask("POST", "/v1/corrections/check", { prediction, wanted });

/** Change a correction's state or sharing. */
export const decide = (id, change) => ask("PATCH", `/v1/corrections/${encodeURIComponent(id)}`, change);

/** Delete a correction for ever. */
export const removeCorrection = (id) => ask("DELETE", `/v1/corrections/${encodeURIComponent(id)}`);

async function ask(method, path, body) {
  const options = { method };
  if (body !== undefined) {
    options.headers = { "Content-Type": "application/json" };
    options.body = JSON.stringify(body);
  }
  let response;
  try {
    response = await fetch(path, options);
  } catch {
    throw new ApiError(0, { detail: "The server cannot be reached. Is it still running?" });
  }
  const content = response.status === 204 ? {} : await response.json().catch(() => ({}));
  if (!response.ok) throw new ApiError(response.status, content);
  return content;
}
