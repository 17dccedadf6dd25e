// What the language model says, slot by slot, beside the frames it was shown.

import { h, svg } from "./dom.js";
import { action, clock, colour, percent } from "./words.js";

const PAGE = 24;

export class Answers {
  constructor(jobId, choose) {
    Object.assign(this, { jobId, choose, slots: new Map(), keyframes: new Map(), cards: new Map(), page: 0 });
    this.frame = null;
    this.current = null;
    this.list = h("ol", { class: "answers" });
    this.none = h("p", { class: "empty" }, "No answers.");
    this.region = h("div", { class: "scroll", role: "region", "aria-labelledby": "answers", tabindex: "0" }, this.list);
    this.pager = this.makePager();
    this.element = h("section", { class: "right" }, h("h2", { id: "answers" }, "Answers"), this.none, this.region, this.pager);
    this.render();
  }

  makePager() {
    this.earlier = h("button", { type: "button", onclick: () => this.turn(this.page - 1) }, "Earlier");
    this.later = h("button", { type: "button", onclick: () => this.turn(this.page + 1) }, "Later");
    this.place = h("span");
    return h("nav", { class: "pager", "aria-label": "Pages of answers", hidden: true }, this.earlier, this.place, this.later);
  }

  waiting(open) {
    this.none.textContent = open ? "Answers appear here as they come." : "There are no answers.";
  }

  clear() {
    for (const each of [this.slots, this.keyframes, this.cards]) each.clear();
    this.sorted = null;
    this.page = 0;
  }

  keyframe(record) {
    this.keyframes.set(record.key_index, record);
  }

  slot(record) {
    this.slots.set(record.index, record);
    this.cards.delete(record.index);
    this.sorted = null;
  }

  /** Width and height of the source: from here on boxes can be drawn. */
  size(width, height) {
    this.frame = [width, height];
    this.cards.clear();
  }

  turn(page) {
    this.page = page;
    this.render();
    this.region.scrollTop = 0;
    this.region.focus({ preventScroll: true });
  }

  render() {
    this.sorted ??= [...this.slots.values()].sort((one, other) => one.index - other.index);
    const pages = Math.ceil(this.sorted.length / PAGE);
    const shown = this.sorted.slice(this.page * PAGE, (this.page + 1) * PAGE);
    const cards = shown.map((slot) => this.card(slot));
    // Cards that are there already stay, with their pictures and the focus in them.
    cards.forEach((card, place) => {
      if (this.list.children[place] !== card) this.list.insertBefore(card, this.list.children[place] ?? null);
    });
    while (this.list.children.length > cards.length) this.list.lastChild.remove();
    this.none.hidden = this.region.hidden = false;
    this.none.hidden = cards.length > 0;
    this.region.hidden = !cards.length;
    this.pager.hidden = pages < 2;
    this.place.textContent = `${this.page + 1} of ${pages}`;
    this.earlier.disabled = this.page === 0;
    this.later.disabled = this.page + 1 >= pages;
  }

  card(slot) {
    const known = this.cards.get(slot.index);
    if (known) return known;
    const times = `${clock(slot.start_s)} – ${clock(slot.end_s)}`;
    const jump = h("button", { type: "button", class: "jump", "aria-label": `Go to ${times} in the video` }, times);
    jump.addEventListener("click", () => this.choose(slot));
    const card = h(
      "li",
      { class: "answer", "data-colour": colour(slot), "data-slot": slot.index, "aria-current": slot.index === this.current ? "true" : null },
      h("div", { class: "head" }, h("h3", {}, action(slot)), jump),
      ...said(slot),
      h("ul", { class: "frames" }, [...new Set(slot.key_indices)].map((index) => this.picture(index))),
      h("p", { class: "remarks" }, remarks(slot)),
    );
    this.cards.set(slot.index, card);
    return card;
  }

  picture(index) {
    const keyframe = this.keyframes.get(index);
    if (!keyframe) return h("li", { class: "frame" });
    const seen = keyframe.detections?.map((found) => labels(found)).filter(Boolean) ?? [];
    const text = seen.length ? seen.join("; ") : keyframe.state === "ok" ? "nobody seen" : "not looked at";
    const image = h("img", {
      src: `/jobs/${this.jobId}/frame?time_s=${keyframe.time_s}`,
      alt: `Frame at ${clock(keyframe.time_s)}`,
      loading: "lazy",
      decoding: "async",
    });
    const box = h("div", { class: "picture" }, image);
    image.addEventListener("error", () => box.replaceChildren(h("span", {}, "This frame cannot be shown.")));
    if (this.frame) {
      const [width, height] = this.frame;
      box.style.aspectRatio = `${width} / ${height}`;
      box.append(boxes(keyframe.detections ?? [], width, height));
    }
    return h("li", { class: "frame" }, box, h("small", {}, h("b", {}, clock(keyframe.time_s)), " ", text));
  }

  mark(index) {
    if (index === this.current) return;
    this.cards.get(this.current)?.removeAttribute("aria-current");
    this.cards.get(index)?.setAttribute("aria-current", "true");
    this.current = index;
  }

  /** Turn to the page of a slot, and scroll to it where the answers have a column of their own. */
  show(index) {
    const place = this.sorted.findIndex((slot) => slot.index === index);
    if (place < 0) return;
    if (Math.floor(place / PAGE) !== this.page) {
      this.page = Math.floor(place / PAGE);
      this.render();
    }
    const card = this.cards.get(index);
    const inside = this.region.scrollHeight > this.region.clientHeight + 1;
    if (inside) this.region.scrollTop = card.offsetTop - this.region.offsetTop;
  }
}

function said(slot) {
  if (!slot.answer) {
    const title = "What the model said";
    const raw = slot.raw_text && h("details", { "aria-label": title }, h("summary", {}, title), h("pre", {}, slot.raw_text));
    return [h("p", {}, slot.reason ?? "No reason is given."), raw];
  }
  const { action: name, description, confirmed, ...rest } = slot.answer;
  const more = typeof name === "string" ? rest : { action: name, ...rest };
  const extra = Object.keys(more).length ? h("pre", {}, JSON.stringify(more, null, 1)) : null;
  return [typeof description === "string" && h("p", {}, description), extra];
}

function remarks(slot) {
  const words = [`Slot ${slot.index + 1}`];
  const confirmed = slot.answer?.confirmed;
  if (confirmed === true) words.push("the detector saw the same");
  if (confirmed === false) words.push("the detector saw something else");
  if (slot.confidence !== null && slot.confidence !== undefined) words.push(`${percent(slot.confidence)} sure`);
  if (slot.attempts > 1) words.push(`asked ${slot.attempts} times`);
  return words.join(" · ");
}

function labels(found) {
  return found.labels.map((label) => `${label.name} ${percent(label.score)}`).join(", ");
}

function boxes(detections, width, height) {
  const shapes = detections.map(({ box: [x1, y1, x2, y2] }) =>
    svg("rect", { x: x1, y: y1, width: Math.max(0, x2 - x1), height: Math.max(0, y2 - y1), "vector-effect": "non-scaling-stroke" }),
  );
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" }, shapes);
}
