// A job's view: how far it is, its video, both stages over time, the answers, downloads.

import { Answers } from "./answers.js";
import { follow, get } from "./api.js";
import { h, notice, say } from "./dom.js";
import { Timeline } from "./timeline.js";
import { ENDED, STATES, action, clock, length, moment, progressOf } from "./words.js";

const TOLD_EVERY_MS = 5000;
const AGAIN_MS = 3000;
const JUST_INSIDE_S = 0.001; // a player that rounds down would show the frame before

const DOWNLOADS = [
  ["results", "results.json", "Results (JSON)"],
  ["results.jsonl", "results.jsonl", "Records as they came (JSON Lines)"],
  ["events.jsonl", "events.jsonl", "Events (JSON Lines)"],
  ["timeline", "timeline.json", "Trace of both stages, for ui.perfetto.dev (JSON)"],
  ["timeline.svg", "timeline.svg", "Picture of both stages (SVG)"],
  ["video", "annotated.mp4", "Annotated video (MP4)"],
];

/** Show the view; gives back how to leave it. */
export function showJob(main, id, named) {
  const view = new JobView(id, named);
  main.append(view.element);
  view.start();
  return () => view.leave();
}

class JobView {
  constructor(id, named) {
    Object.assign(this, { id, named, slots: new Map(), told: 0, warned: new Set(), drawing: 0, left: false });
    this.stop = () => {};
    this.answers = new Answers(id, (slot) => this.choose(slot));
    this.title = h("h1", { tabindex: "-1" }, "Job");
    this.state = h("span", { class: "state" });
    this.meta = h("p", { class: "meta" });
    this.trouble = h("div");
    this.warnings = h("ul", { class: "warnings", hidden: true, "aria-label": "Warnings" });
    this.progress = this.progressCard();
    this.video = h("section", { class: "video", hidden: true, "aria-labelledby": "video" });
    this.stages = h("section", { class: "card", hidden: true, "aria-labelledby": "stages" });
    this.downloads = h("section", { class: "card downloads", hidden: true, "aria-labelledby": "downloads" });
    const left = h("div", { class: "left" }, this.video, this.stages);
    this.columns = h("div", { class: "columns" }, left, this.answers.element, this.downloads);
    this.element = h(
      "article",
      { class: "job" },
      h("a", { href: "#/", class: "back" }, "← All jobs"),
      h("div", { class: "title" }, this.title, this.state),
      this.meta,
      this.trouble,
      this.progress,
      this.warnings,
      this.columns,
    );
  }

  progressCard() {
    this.bar = h("progress", { max: "1", "aria-label": "Progress" });
    this.words = h("p", {}, "");
    const dialog = h(
      "dialog",
      { "aria-labelledby": "sure" },
      h("p", { id: "sure" }, "Cancel this job? What has been found so far is kept; the rest is not done."),
      h("form", { method: "dialog" }, h("button", {}, "Keep it running"), h("button", { value: "yes", class: "danger" }, "Cancel the job")),
    );
    dialog.addEventListener("close", () => {
      if (dialog.returnValue === "yes") this.cancel();
    });
    this.cancelButton = h("button", { type: "button", onclick: () => dialog.showModal() }, "Cancel…");
    return h("div", { class: "card progress", hidden: true }, this.bar, this.words, this.cancelButton, dialog);
  }

  async start() {
    try {
      const job = await get(`/jobs/${this.id}`);
      if (this.left) return;
      this.update(job);
      this.count(job.progress);
      this.listen();
    } catch (error) {
      this.fail(error);
    }
  }

  leave() {
    this.left = true;
    this.stop();
    this.timeline?.leave();
    cancelAnimationFrame(this.drawing);
    clearTimeout(this.again);
  }

  fail(error) {
    if (this.left) return;
    this.trouble.replaceChildren(notice(error.message, " ", h("a", { href: "#/" }, "All jobs")));
  }

  listen() {
    this.stop = follow(this.id, {
      open: () => this.trouble.replaceChildren(),
      state: (job) => this.update(job),
      progress: (progress) => this.count(progress),
      run: ({ run }) => this.begin(run),
      keyframe: (keyframe) => this.draw(() => this.answers.keyframe(keyframe)),
      slot: (slot) => this.draw(() => this.take(slot)),
      warning: ({ message }) => this.warn(message),
      end: (job) => this.end(job),
      cut: (closed) => this.lost(closed),
    });
  }

  /** The browser connects again by itself, unless the server has refused. */
  async lost(closed) {
    this.trouble.replaceChildren(notice("The connection to the server is lost. Trying again…"));
    if (!closed) return;
    try {
      await get(`/jobs/${this.id}`);
    } catch (error) {
      if (error.status) return this.fail(error);
    }
    if (!this.left) this.again = setTimeout(() => this.listen(), AGAIN_MS);
  }

  update(job) {
    if (this.job && this.job.state !== job.state) say(`${job.name}: ${STATES[job.state]}`);
    this.job = job;
    this.named(job.name);
    this.title.textContent = job.options.live ? `${job.name} (live)` : job.name;
    this.state.textContent = STATES[job.state];
    this.state.dataset.state = job.state;
    this.meta.textContent = times(job);
    const open = !ENDED.has(job.state);
    this.progress.hidden = !open;
    if (job.state === "queued") this.words.textContent = "It begins when the jobs before it are done.";
    this.answers.waiting(open);
    if (job.error && !open) this.trouble.replaceChildren(notice(`This job ended early. ${job.error}`));
  }

  count(progress) {
    if (this.job.state === "queued") return;
    const { share, words } = progressOf(progress);
    if (share === null) this.bar.removeAttribute("value");
    else this.bar.value = share;
    this.words.textContent = words;
    if (!ENDED.has(this.job.state) && Date.now() - this.told > TOLD_EVERY_MS) {
      this.told = Date.now();
      say(words);
    }
  }

  warn(message) {
    if (this.warned.has(message)) return;
    this.warned.add(message);
    this.warnings.hidden = false;
    this.warnings.append(h("li", {}, message));
  }

  /** A live source's numbers and times begin anew with another run. */
  begin(run) {
    if (this.run && this.run !== run) {
      this.slots.clear();
      this.answers.clear();
    }
    this.run = run;
  }

  take(slot) {
    this.slots.set(slot.index, slot);
    this.answers.slot(slot);
  }

  /** Records may come by the hundred: what they change is drawn once a frame. */
  draw(change) {
    change();
    if (this.drawing) return;
    this.drawing = requestAnimationFrame(() => {
      this.drawing = 0;
      this.answers.render();
    });
  }

  async cancel() {
    this.cancelButton.disabled = true;
    this.words.textContent = "Being cancelled…";
    try {
      this.update(await get(`/jobs/${this.id}`, { method: "DELETE" }));
      this.title.focus({ preventScroll: true }); // the button that had the focus is gone
    } catch (error) {
      this.fail(error);
    } finally {
      this.cancelButton.disabled = false;
    }
  }

  async end(record) {
    this.update(record);
    try {
      const { available } = await get(`/jobs/${this.id}`);
      const has = (part) => available.includes(part);
      if (this.left) return;
      this.showVideo(has);
      this.showDownloads(has);
      if (has("results")) {
        const { video } = await get(`/jobs/${this.id}/results`);
        this.answers.size(video.width, video.height);
        this.answers.render();
      }
      if (has("timeline")) this.showStages(await get(`/jobs/${this.id}/timeline`));
    } catch (error) {
      this.fail(error);
    }
  }

  showVideo(has) {
    const there = has("video");
    const wanted = this.job.options.annotate && !this.job.options.live && ["succeeded", "partial"].includes(this.job.state);
    this.video.hidden = !there && !wanted;
    this.columns.classList.toggle("two", !this.video.hidden || has("timeline"));
    if (!there) {
      this.video.replaceChildren(h("h2", { id: "video" }, "Video"), h("p", {}, "The annotated video could not be made."));
      return;
    }
    this.player = h("video", { src: `/jobs/${this.id}/video`, controls: true, playsinline: true, preload: "metadata" });
    this.now = h("p", { class: "now" });
    this.player.setAttribute("aria-label", `Annotated video of ${this.job.name}`);
    this.player.addEventListener("timeupdate", () => this.showNow(this.player.currentTime));
    this.player.addEventListener("error", () => this.now.replaceChildren(notice("This browser cannot play the video. Download it below.")));
    this.video.replaceChildren(h("h2", { id: "video" }, "Video"), this.player, this.now);
  }

  showNow(time) {
    let slot = null;
    for (const each of this.slots.values()) {
      if (each.start_s <= time && (!slot || each.start_s > slot.start_s)) slot = each;
    }
    if (!slot) return;
    this.now.replaceChildren(h("b", {}, action(slot)), ` ${slot.answer?.description ?? slot.reason ?? ""}`);
    this.mark(slot.index);
  }

  mark(index) {
    this.answers.mark(index);
    this.timeline?.mark(index);
  }

  /** Jump to a slot: the video, the timeline, the answer. */
  choose(slot) {
    say(`Slot ${slot.index + 1}, ${clock(slot.start_s)} of the video: ${action(slot)}`);
    this.answers.show(slot.index);
    this.mark(slot.index);
    if (!this.player) return;
    this.player.currentTime = slot.start_s + JUST_INSIDE_S;
    this.showNow(slot.start_s + JUST_INSIDE_S);
    this.player.scrollIntoView({ block: "nearest" });
  }

  showStages(trace) {
    this.timeline?.leave();
    this.timeline = new Timeline(trace, this.slots, (slot) => this.choose(slot));
    this.stages.replaceChildren(this.timeline.element);
    this.stages.hidden = false;
    this.timeline.render();
  }

  showDownloads(has) {
    const base = this.job.name.replace(/\.[^.]*$/, "") || "job";
    const links = DOWNLOADS.filter(([part]) => has(part)).map(([part, name, words]) =>
      h("li", {}, h("a", { href: `/jobs/${this.id}/${part}`, download: `${base}-${name}` }, words)),
    );
    this.downloads.replaceChildren(h("h2", { id: "downloads" }, "Downloads"), h("ul", {}, links));
    this.downloads.hidden = !links.length;
  }
}

function times(job) {
  const parts = [`Sent ${moment(job.created_at)}`];
  if (job.started_at && job.ended_at) parts.push(`ran ${length((new Date(job.ended_at) - new Date(job.started_at)) / 1000)}`);
  if (job.attempts > 1) parts.push(`${job.attempts} attempts`);
  if (job.options.gate === "detections") parts.push("asked only where the detector saw somebody");
  return parts.join(" · ");
}
