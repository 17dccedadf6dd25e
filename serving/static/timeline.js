// Both stages over time: zoom, hover, choose a slot. What lies outside the window is not drawn, and what is narrower
// than a pixel is drawn together, so that hours of work stay light.

import { h, svg } from "./dom.js";
import { Lanes } from "./lanes.js";
import { STEPS, action, clock, colour, length } from "./words.js";

const LANE = 10;
const SLOT_LANE = 24; // a finger must hit it
const TITLE = 18;
const AXIS = 22;
const MOST_BUTTONS = 400;
const SLIGHT_MOVE = 4;
const CLOSEST_S = 0.02;

export class Timeline {
  constructor(trace, slots, choose) {
    Object.assign(this, { slots, choose, current: null, pointers: new Map(), moved: 0 });
    this.rows = Lanes.of(trace, Object.keys(STEPS));
    for (const row of this.rows) row.lane = row.name === "stage2_run" ? SLOT_LANE : LANE;
    this.end = Math.max(CLOSEST_S, ...this.rows.map((row) => row.end));
    this.window = { from: 0, to: this.end };
    this.places = this.rows.find((row) => row.name === "stage2_run")?.spans ?? [];
    this.places.forEach((span, place) => (span.place = place));
    this.focused = 0; // among places
    const help = "Slots over time: arrow keys go from slot to slot, Enter takes the video there, plus and minus zoom";
    this.drawing = svg("svg", { class: "stages", role: "group", "aria-label": help });
    this.tip = h("div", { class: "tip", hidden: true, "aria-hidden": "true" });
    this.area = h("div", { class: "stages-area" }, this.drawing, this.tip);
    const title = h("h2", { id: "stages" }, "Both stages over time");
    const hint = h("p", { class: "hint" }, "Seconds since the job began. Choose a slot, and the video jumps to it.");
    this.element = h("div", { class: "timeline" }, h("div", { class: "over" }, title, this.buttons()), hint, this.area);
    this.listen();
    this.watcher = new ResizeObserver(() => this.render());
    this.watcher.observe(this.area);
  }

  leave() {
    this.watcher.disconnect();
  }

  buttons() {
    const button = (words, sign, run) => h("button", { type: "button", "aria-label": words, title: words, onclick: run }, sign);
    return h(
      "div",
      { class: "zoom", role: "group", "aria-label": "Zoom" },
      button("Zoom in", "+", () => this.zoom(0.5)),
      button("Zoom out", "−", () => this.zoom(2)),
      button("Earlier", "←", () => this.pan(-0.5)),
      button("Later", "→", () => this.pan(0.5)),
      button("Show all", "All", () => this.zoom(Infinity)),
    );
  }

  listen() {
    const on = (kind, run, options) => this.drawing.addEventListener(kind, run, options);
    on("keydown", (event) => this.key(event));
    on("focusin", (event) => this.tell(this.places[event.target.dataset.place], event.target));
    on("focusout", () => this.untell());
    on("pointerdown", (event) => this.press(event));
    on("pointermove", (event) => this.move(event));
    on("pointerup", (event) => this.pointers.delete(event.pointerId));
    on("pointercancel", (event) => this.pointers.delete(event.pointerId));
    on("pointerleave", () => this.untell());
    on("click", (event) => this.click(event));
    on("wheel", (event) => this.wheel(event), { passive: false });
  }

  /** Zoom by a factor of the shown length, around a time. */
  zoom(factor, around = (this.window.from + this.window.to) / 2) {
    const { from, to } = this.window;
    const wanted = Math.min(this.end, Math.max(Math.min(CLOSEST_S, this.end), (to - from) * factor));
    const share = (around - from) / (to - from);
    this.look(around - wanted * share, wanted);
  }

  /** Move by a share of the shown length. */
  pan(share) {
    const shown = this.window.to - this.window.from;
    this.look(this.window.from + shown * share, shown);
  }

  look(from, shown) {
    const begin = Math.min(Math.max(0, from), this.end - shown);
    this.window = { from: begin, to: begin + shown };
    this.render();
  }

  x(time) {
    return ((time - this.window.from) / (this.window.to - this.window.from)) * this.width;
  }

  time(x) {
    return this.window.from + (x / this.width) * (this.window.to - this.window.from);
  }

  render() {
    this.width = this.area.clientWidth;
    if (!this.width) return;
    const hadFocus = this.drawing.contains(document.activeElement);
    const [ground, bars] = [[], []];
    let y = 0;
    for (const row of this.rows) {
      row.y = y + TITLE;
      const height = row.lanes.length * row.lane;
      ground.push(svg("text", { x: 0, y: row.y - 5 }, STEPS[row.name]));
      ground.push(svg("rect", { x: 0, y: row.y, width: this.width, height, class: "ground" }));
      bars.push(...this.bars(row));
      y = row.y + height;
    }
    this.drawing.setAttribute("height", y + AXIS);
    this.drawing.setAttribute("width", this.width);
    this.drawing.replaceChildren(...ground, this.axis(y), ...bars);
    if (hadFocus) this.drawing.querySelector("[tabindex='0']")?.focus({ preventScroll: true });
  }

  bars(row) {
    const { from, to } = this.window;
    if (row.name === "stage2_run") {
      const shown = row.spans.filter((span) => span.to >= from && span.from <= to);
      if (shown.length <= MOST_BUTTONS) return this.slotButtons(row, shown);
    }
    const path = [];
    row.lanes.forEach((lane, number) => {
      const [y, height] = [row.y + number * row.lane + 1, row.lane - 2];
      for (const [begin, end] of lane.pieces(from, to, (to - from) / this.width)) {
        const [left, right] = [Math.max(0, this.x(begin)), Math.min(this.width, this.x(end))];
        path.push(`M${left.toFixed(1)} ${y}h${Math.max(1, right - left).toFixed(1)}v${height}H${left.toFixed(1)}z`);
      }
    });
    return [svg("path", { d: path.join(""), class: "bar", "data-step": row.name })];
  }

  slotButtons(row, shown) {
    if (shown.length && !shown.includes(this.places[this.focused])) this.focused = shown[0].place;
    return shown.map((span) => {
      const { place } = span;
      const [left, right] = [Math.max(-2, this.x(span.from)), Math.min(this.width + 2, this.x(span.to))];
      return svg("rect", {
        x: left.toFixed(1),
        y: row.y + span.lane * row.lane + 1,
        width: Math.max(3, right - left - 1).toFixed(1),
        height: row.lane - 2,
        rx: 3,
        class: "slot",
        role: "button",
        tabindex: place === this.focused ? "0" : "-1",
        "aria-label": this.describe(span),
        "aria-current": span.slot === this.current ? "true" : null,
        "data-place": place,
        "data-slot": span.slot,
        "data-colour": colour(this.slots.get(span.slot)),
      });
    });
  }

  axis(y) {
    const { from, to } = this.window;
    const step = niceStep(((to - from) * 90) / this.width);
    const marks = [];
    for (let time = Math.ceil(from / step) * step; time <= to; time += step) {
      const x = this.x(time);
      const anchor = x < 20 ? "start" : x > this.width - 30 ? "end" : "middle";
      marks.push(svg("line", { x1: x, x2: x, y1: 0, y2: y, class: "grid" }));
      marks.push(svg("text", { x, y: y + 15, "text-anchor": anchor }, `${Number(time.toFixed(3))} s`));
    }
    return svg("g", { class: "axis", "aria-hidden": "true" }, marks);
  }

  describe(span) {
    const slot = this.slots.get(span.slot);
    const ran = `${length(span.to - span.from)} from ${span.from.toFixed(2)} s on`;
    if (slot) return `Slot ${slot.index + 1}: ${action(slot)}, ${clock(slot.start_s)} of the video. ${STEPS[span.step].split(":")[0]}, ${ran}`;
    return `${STEPS[span.step]}${span.batch === undefined ? "" : `, batch ${span.batch + 1}`}, ${ran}`;
  }

  mark(index) {
    if (index === this.current) return;
    this.current = index;
    for (const each of this.drawing.querySelectorAll("[aria-current]")) each.removeAttribute("aria-current");
    this.drawing.querySelector(`[data-slot="${index}"]`)?.setAttribute("aria-current", "true");
  }

  pick(span) {
    const slot = span && this.slots.get(span.slot);
    if (slot) this.choose(slot);
  }

  key(event) {
    const place = event.target.dataset.place;
    const last = this.places.length - 1;
    const moves = { ArrowRight: this.focused + 1, ArrowLeft: this.focused - 1, Home: 0, End: last };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in moves) this.focus(Math.min(last, Math.max(0, moves[event.key])));
    else if (event.key === "+" || event.key === "=") this.zoom(0.5, this.places[this.focused].from);
    else if (event.key === "-") this.zoom(2);
    else if (event.key === "0") this.zoom(Infinity);
    else if ((event.key === "Enter" || event.key === " ") && place !== undefined) this.pick(this.places[place]);
    else return;
    event.preventDefault();
  }

  focus(place) {
    this.focused = place;
    const span = this.places[place];
    const shown = this.window.to - this.window.from;
    if (span.from < this.window.from || span.to > this.window.to) this.look((span.from + span.to - shown) / 2, shown);
    else this.render();
    this.drawing.querySelector(`[data-place="${place}"]`)?.focus({ preventScroll: true });
  }

  press(event) {
    this.pointers.set(event.pointerId, event.clientX);
    this.moved = 0;
  }

  /** Without a button it is a hover; one finger or the mouse moves the window, two fingers zoom. */
  move(event) {
    const before = this.pointers.get(event.pointerId);
    if (before === undefined) return this.hover(event);
    const [one, other] = [...this.pointers.values()];
    this.pointers.set(event.pointerId, event.clientX);
    this.moved += Math.abs(event.clientX - before);
    if (this.moved > SLIGHT_MOVE) this.drawing.setPointerCapture(event.pointerId);
    const left = this.area.getBoundingClientRect().left;
    if (other !== undefined) {
      const [now, then] = [...this.pointers.values()];
      const apart = Math.max(8, Math.abs(now - then));
      this.zoom(Math.max(8, Math.abs(one - other)) / apart, this.time((now + then) / 2 - left));
    } else this.pan((before - event.clientX) / this.width);
  }

  hover(event) {
    const box = this.area.getBoundingClientRect();
    const span = this.find(event.clientX - box.left, event.clientY - box.top);
    this.drawing.classList.toggle("over-slot", Boolean(span && this.slots.has(span.slot)));
    if (span) this.tell(span, null, event.clientX - box.left);
    else this.untell();
  }

  find(x, y) {
    const row = this.rows.find((each) => y >= each.y && y < each.y + each.lanes.length * each.lane);
    const slack = ((this.window.to - this.window.from) / this.width) * 2;
    return row?.lanes[Math.floor((y - row.y) / row.lane)].at(this.time(x), slack);
  }

  click(event) {
    if (this.moved > SLIGHT_MOVE) return;
    const box = this.area.getBoundingClientRect();
    const place = event.target.dataset.place;
    const span = place === undefined ? this.find(event.clientX - box.left, event.clientY - box.top) : this.places[place];
    if (place !== undefined) this.focus(Number(place));
    this.pick(span);
  }

  wheel(event) {
    const sideways = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
    const box = this.area.getBoundingClientRect();
    if (event.ctrlKey || event.metaKey) this.zoom(Math.exp(event.deltaY / 200), this.time(event.clientX - box.left));
    else if (Math.abs(sideways) > Math.abs(event.shiftKey ? 0 : event.deltaY)) this.pan(sideways / this.width);
    else return;
    event.preventDefault();
  }

  tell(span, element, x = null) {
    if (!span) return;
    const middle = x ?? Number(element.getAttribute("x")) + Number(element.getAttribute("width")) / 2;
    const row = this.rows.find((each) => each.name === span.step);
    this.tip.textContent = this.describe(span);
    this.tip.hidden = false;
    const room = this.width - this.tip.offsetWidth;
    this.tip.style.left = `${Math.max(0, Math.min(room, middle - this.tip.offsetWidth / 2))}px`;
    this.tip.style.top = `${row.y + row.lanes.length * row.lane + 4}px`;
  }

  untell() {
    this.tip.hidden = true;
  }
}

/** The next larger of 1, 2, 5 times a power of ten. */
function niceStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= least);
}
