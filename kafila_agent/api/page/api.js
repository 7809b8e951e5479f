// What is asked of the agent that this page came from, and of nobody else.

const KEY = "kafila-key";
const UNFINISHED = "the agent on this machine was stopped, or is out of reach";

/** An answer that is an error; `status` is 0 where nobody answered. */
export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Use this key from now on; this tab alone remembers it. */
export function useKey(key) {
  sessionStorage.setItem(KEY, key);
}

/** Whether a key has been given. */
export function hasKey() {
  return sessionStorage.getItem(KEY) !== null;
}

async function request(path, options = {}) {
  const key = sessionStorage.getItem(KEY);
  const headers = { ...(key ? { authorization: `Bearer ${key}` } : {}), ...options.headers };
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "the agent on this machine does not answer: see that kafila-agent runs");
  }
  if (response.ok) return response;
  const body = await response.json().catch(() => null);
  throw new ApiError(response.status, body?.error?.message ?? `${response.status} ${response.statusText}`);
}

/** The session as this agent knows it. */
export async function fetchSession() {
  return (await request("/session")).json();
}

/** Ask, and yield each chunk of the answer. Throws ApiError, or AbortError once `signal` says so. */
export async function* streamChat(body, signal) {
  const response = await request("/v1/chat/completions", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ApiError(response.status, chunk.error.message);
    yield chunk;
  }
  throw new ApiError(0, UNFINISHED);
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let read = "";
  for (;;) {
    const { value, done } = await reader.read().catch((error) => {
      throw error.name === "AbortError" ? error : new ApiError(0, UNFINISHED);
    });
    if (done) return;
    read += value;
    const whole = read.split("\n\n");
    read = whole.pop();
    for (const event of whole) if (event.startsWith("data: ")) yield event.slice("data: ".length);
  }
}
