// What numbers and states are called.

export const STATES = {
  queued: "Waiting",
  running: "Running",
  succeeded: "Done",
  partial: "Done, with gaps",
  failed: "Failed",
  cancelled: "Cancelled",
};

export const ENDED = new Set(["succeeded", "partial", "failed", "cancelled"]);

export const STEPS = {
  decode: "Decode the video",
  preprocess: "Prepare frames",
  stage1_wait: "Stage 1 (detector), waiting",
  stage1_run: "Stage 1 (detector), working",
  slot_wait: "Slots, waiting to be sent",
  stage2_wait: "Stage 2 (language model), waiting",
  stage2_run: "Stage 2 (language model), working: choose a slot",
};

const SLOT_STATES = {
  failed: "No answer",
  skipped: "Not asked",
  shed: "Not asked in time",
  dropped: "Left out",
};

/** Seconds as a time in the video: 0:03.67, 1:02:03.00. */
export function clock(seconds) {
  const hundredths = Math.round(seconds * 100);
  const [hours, minutes] = [Math.floor(hundredths / 360000), Math.floor(hundredths / 6000) % 60];
  const rest = ((hundredths % 6000) / 100).toFixed(2).padStart(5, "0");
  return hours ? `${hours}:${String(minutes).padStart(2, "0")}:${rest}` : `${minutes}:${rest}`;
}

/** Seconds as a length. */
export function length(seconds) {
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const minutes = Math.round(seconds / 60);
  return minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** When something was, as people here write it. */
export function moment(iso) {
  const then = new Date(iso);
  const today = then.toDateString() === new Date().toDateString();
  const day = today ? {} : { day: "numeric", month: "short", year: "numeric" };
  return then.toLocaleString("en", { ...day, hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
}

export function megabytes(bytes) {
  return bytes < 1e5 ? `${Math.ceil(bytes / 1e3)} kB` : `${(bytes / 1e6).toFixed(1)} MB`;
}

/** What a slot says, in a word or two. */
export function action(slot) {
  if (!slot.answer) return SLOT_STATES[slot.state] ?? slot.state;
  return typeof slot.answer.action === "string" ? slot.answer.action : "Answer";
}

export function percent(part) {
  return `${Math.round(part * 100)} %`;
}

const colours = new Map();

/** One colour of eight for an action, the same for as long as the page is open. */
export function colour(slot) {
  if (!slot || slot.state !== "ok") return "none";
  const name = action(slot);
  if (!colours.has(name)) colours.set(name, String(colours.size % 8));
  return colours.get(name);
}

/** How far a job is, from its counters: a share of 1 (null if nobody knows yet), and in words. */
export function progressOf({ frames, frames_expected: expected, keyframes, slots }) {
  const [seen, answered] = [total(keyframes), total(slots)];
  const share = expected ? Math.min(1, frames / expected) : null;
  const known = expected ? `${frames} of about ${Math.max(expected, frames)} frames` : `${frames} frames`;
  return { share, words: `${known}, ${seen} keyframes looked at, ${answered} ${answered === 1 ? "answer" : "answers"}` };
}

function total(counts) {
  return Object.values(counts).reduce((sum, count) => sum + count, 0);
}
