// The first view: send a video, and the jobs there are.

import { get } from "./api.js";
import { h, notice } from "./dom.js";
import { uploadForm } from "./upload.js";
import { ENDED, STATES, length, moment, progressOf } from "./words.js";

const LOOK_MS = 1500;
const LOOK_IDLE_MS = 10000;
const MOST_FOLLOWED = 6;

/** Show the view; gives back how to leave it. */
export function showJobs(main, named) {
  const list = new JobList();
  main.append(
    h("h1", { tabindex: "-1" }, "Who does what in a video"),
    h("p", { class: "lead" }, "A detector finds people and their actions; a language model looks again and says what goes on."),
    uploadForm((job) => list.add(job)),
    h("section", { "aria-labelledby": "jobs" }, h("h2", { id: "jobs" }, "Jobs"), list.trouble, list.element, list.more),
  );
  named("");
  list.look();
  return () => list.leave();
}

class JobList {
  constructor() {
    this.element = h("ul", { class: "jobs" });
    this.trouble = h("div");
    this.more = h("button", { type: "button", hidden: true, onclick: () => this.older() }, "Older jobs");
    this.rows = new Map();
    this.next = null;
    this.leaving = new AbortController();
    document.addEventListener("visibilitychange", () => this.look(), { signal: this.leaving.signal });
  }

  leave() {
    this.leaving.abort();
    clearTimeout(this.timer);
  }

  add(job) {
    this.show([job], { first: true });
    this.look();
  }

  /** Ask for the newest jobs, then again in a while. A hidden page does not ask. */
  async look() {
    clearTimeout(this.timer);
    if (document.hidden || this.leaving.signal.aborted) return;
    const options = { signal: this.leaving.signal };
    try {
      const page = await get("/jobs?limit=50", options);
      this.show(page.jobs, { first: true });
      if (this.next === null) this.paged(page.next);
      await Promise.all(this.open().map((row) => this.lookAt(row, options)));
      this.trouble.replaceChildren();
    } catch (error) {
      if (error.name === "AbortError") return;
      this.tell(error);
    }
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.look(), this.open().length ? LOOK_MS : LOOK_IDLE_MS);
  }

  async lookAt(row, options) {
    try {
      await row.look(options);
    } catch (error) {
      if (error.status !== 404) throw error;
      row.element.remove(); // deleted in the meantime
      this.rows.delete(row.job.id);
    }
  }

  async older() {
    try {
      const page = await get(this.next, { signal: this.leaving.signal });
      this.show(page.jobs, { first: false });
      this.paged(page.next);
    } catch (error) {
      if (error.name !== "AbortError") this.tell(error);
    }
  }

  tell(error) {
    if (!this.trouble.childElementCount) this.trouble.append(notice(error.message));
  }

  paged(next) {
    this.next = next;
    this.more.hidden = !next;
  }

  open() {
    const open = [...this.rows.values()].filter((row) => row.job.state === "running");
    return open.slice(0, MOST_FOLLOWED);
  }

  show(jobs, { first }) {
    this.empty?.remove();
    const before = first ? this.element.firstChild : null;
    for (const job of jobs) {
      const known = this.rows.get(job.id);
      if (known) known.update(job);
      else {
        const row = new Row(job);
        this.rows.set(job.id, row);
        this.element.insertBefore(row.element, before);
      }
    }
    if (!this.rows.size) {
      this.empty = h("li", { class: "empty" }, h("b", {}, "No jobs yet."), " Drop a video above: its job appears here.");
      this.element.append(this.empty);
    }
  }
}

class Row {
  constructor(job) {
    this.state = h("span", { class: "state" });
    this.words = h("small");
    this.bar = h("progress", { max: "1", "aria-label": `Progress of ${job.name}`, hidden: true });
    const title = h("a", { href: `#/jobs/${job.id}` }, job.name);
    this.element = h("li", {}, h("div", { class: "row" }, title, this.state), this.bar, this.words);
    this.update(job);
  }

  update(job) {
    this.job = job;
    this.state.textContent = STATES[job.state];
    this.state.dataset.state = job.state;
    this.bar.hidden = job.state !== "running";
    if (job.state === "running") return;
    const ran = ENDED.has(job.state) && job.started_at ? `, ran ${length((new Date(job.ended_at) - new Date(job.started_at)) / 1000)}` : "";
    this.words.textContent = `sent ${moment(job.created_at)}${ran}${job.error ? `. ${job.error}` : ""}`;
  }

  /** Of a running job also how far it is. */
  async look(options) {
    const job = await get(`/jobs/${this.job.id}`, options);
    this.update(job);
    if (job.state !== "running") return;
    const { share, words } = progressOf(job.progress);
    if (share === null) this.bar.removeAttribute("value");
    else this.bar.value = share;
    this.words.textContent = words;
  }
}
