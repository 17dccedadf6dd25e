// The job API, and what its refusals mean to people.

const ADVICE = {
  queue_full: "The queue is full. Try again in a moment.",
  storage_full: "The server's disk is full. Ask whoever runs it to make room.",
  job_not_found: "This job does not exist, or no longer: old jobs are deleted.",
};

/** A refusal or a failure; its message is for people. */
export class Refused extends Error {
  constructor(message, status, code) {
    super(message);
    this.status = status;
    this.code = code;
  }

  /** The message without the name it begins with. */
  without(name) {
    const begin = `${name}: `.toLowerCase();
    return this.message.toLowerCase().startsWith(begin) ? sentence(this.message.slice(begin.length)) : this.message;
  }
}

/** JSON of a path. Throws Refused. */
export async function get(path, options = {}) {
  const reply = await send(path, options);
  return reply.status === 204 ? null : reply.json();
}

async function send(path, options) {
  let reply;
  try {
    reply = await fetch(path, { credentials: "same-origin", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused("The server cannot be reached. Is it running?", 0, "unreachable");
  }
  if (!reply.ok) throw refusal(reply.status, await reply.text());
  return reply;
}

function refusal(status, text) {
  if (status === 401) window.dispatchEvent(new Event("signed-out"));
  try {
    const { code, detail } = JSON.parse(text);
    const more = code === "video" ? " Choose another file." : "";
    return new Refused(ADVICE[code] ?? sentence(detail) + more, status, code);
  } catch {
    return new Refused(`The server answered with an error (${status}).`, status, "http");
  }
}

/** The API's messages begin small and end bare. */
function sentence(text) {
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;
}

export function signIn(token) {
  let headers;
  try {
    headers = new Headers({ Authorization: `Bearer ${token}` });
  } catch {
    throw new Refused("This is not the token.", 401, "unauthorized");
  }
  return get("/session", { method: "POST", headers });
}

/** Send a video. With the same key again it is the same job. `progress` is told a share of 1; `signal` stops it. */
export function upload(file, options, { key, progress, signal }) {
  const form = new FormData();
  form.append("options", JSON.stringify(options));
  form.append("video", file, file.name);
  const request = new XMLHttpRequest(); // fetch does not tell how much has been sent
  return new Promise((resolve, reject) => {
    request.open("POST", "/jobs");
    request.setRequestHeader("Idempotency-Key", key);
    request.upload.addEventListener("progress", (event) => progress(event.total ? event.loaded / event.total : 0));
    request.addEventListener("load", () => {
      if (request.status === 202) resolve(JSON.parse(request.responseText));
      else reject(refusal(request.status, request.responseText));
    });
    request.addEventListener("error", () =>
      reject(new Refused("The connection broke while the video was sent. Try again.", 0, "unreachable")),
    );
    request.addEventListener("abort", () => reject(new DOMException("stopped", "AbortError")));
    signal.addEventListener("abort", () => request.abort());
    request.send(form);
  });
}

/** Have the server take a video from a web address or its own disk. */
export function order(source, options, { key, signal }) {
  const headers = { "Content-Type": "application/json", "Idempotency-Key": key };
  return get("/jobs", { method: "POST", headers, body: JSON.stringify({ source, options }), signal });
}

/** A key nobody else has; also where `crypto.randomUUID` is not, on plain HTTP. */
export function newKey() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Follow a job until its end. `on` has a function for each kind of event, and `cut` for a broken connection. */
export function follow(id, on) {
  const source = new EventSource(`/jobs/${id}/events`);
  for (const kind of ["state", "progress", "run", "keyframe", "slot", "warning", "end"]) {
    source.addEventListener(kind, (event) => {
      if (kind === "end") source.close();
      on[kind]?.(JSON.parse(event.data));
    });
  }
  source.addEventListener("open", () => on.open?.());
  source.addEventListener("error", () => on.cut?.(source.readyState === EventSource.CLOSED));
  return () => source.close();
}
