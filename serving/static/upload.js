// Choosing or dropping videos or naming where one is, the options, and sending them one after another.

import { newKey, order, upload } from "./api.js";
import { h, notice, say } from "./dom.js";
import { megabytes, percent } from "./words.js";

/** The form. `created` is called with each new job. */
export function uploadForm(created) {
  const input = h("input", { type: "file", id: "file", accept: "video/*,.mkv,.ts,.avi", multiple: true });
  const chosen = h("ul", { class: "chosen", "aria-label": "Chosen videos" });
  const start = h("button", { type: "submit", class: "primary", hidden: true }, "Start");
  const zone = h(
    "div",
    { class: "zone" },
    h("p", { class: "zone-words" }, "Drop a video here, or"),
    input,
    h("label", { for: "file", class: "button" }, "Choose a video"),
    chosen,
    start,
  );
  const sent = h("div", { class: "sent" });
  const [options, chosenOptions] = optionFields();
  const form = h("form", { class: "upload" }, zone, options);
  const add = (sendings) => {
    sent.append(...sendings.map((each) => each.element));
    sendAll(sendings);
  };

  let files = [];
  const choose = (list) => {
    files = [...list];
    chosen.replaceChildren(...files.map((file) => h("li", {}, file.name, " ", h("small", {}, megabytes(file.size)))));
    start.hidden = !files.length;
    start.textContent = files.length > 1 ? `Start ${files.length} jobs` : "Start";
    if (files.length) start.focus();
  };
  input.addEventListener("change", () => choose(input.files));
  takeDrops(zone, choose);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const options = chosenOptions();
    const sendings = files.map((file) => new Sending(file.name, (hooks) => upload(file, options, hooks), created));
    choose([]);
    input.value = "";
    input.focus();
    add(sendings);
  });
  const elsewhere = sourceForm((source) => {
    const options = chosenOptions();
    add([new Sending(source, (hooks) => order(source, options, hooks), created)]);
  });
  return h("section", { class: "card", "aria-label": "New job" }, form, elsewhere, sent);
}

/** For a video that is not on this device. `start` is called with what was typed. */
function sourceForm(start) {
  const source = h("input", { id: "source", type: "text", required: true, autocomplete: "off", spellcheck: "false" });
  const form = h(
    "form",
    { class: "field" },
    h("label", { for: "source" }, "Web address, or path on the server"),
    source,
    h("button", { type: "submit" }, "Start"),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    start(source.value.trim());
    source.value = "";
  });
  const title = "The video is somewhere else";
  return h("details", { "aria-label": title }, h("summary", {}, title), form);
}

function optionFields() {
  const gate = h(
    "select",
    { id: "gate" },
    h("option", { value: "" }, "As set on the server"),
    h("option", { value: "all" }, "About every moment"),
    h("option", { value: "detections" }, "Only where the detector sees somebody"),
  );
  const annotate = h("input", { type: "checkbox", id: "annotate", checked: true });
  const fields = h(
    "fieldset",
    {},
    h("legend", {}, "Options"),
    h("div", { class: "field" }, h("label", { for: "gate" }, "Ask the language model"), gate),
    h("div", { class: "field check" }, annotate, h("label", { for: "annotate" }, "Make an annotated video")),
  );
  return [fields, () => ({ gate: gate.value || null, annotate: annotate.checked })];
}

function takeDrops(zone, choose) {
  const over = (event) => {
    event.preventDefault();
    zone.classList.add("over");
  };
  zone.addEventListener("dragenter", over);
  zone.addEventListener("dragover", over);
  zone.addEventListener("dragleave", () => zone.classList.remove("over"));
  zone.addEventListener("drop", (event) => {
    event.preventDefault();
    zone.classList.remove("over");
    choose(event.dataTransfer.files);
  });
}

let line = Promise.resolve(); // one at a time, in the order they were started

function sendAll(sendings) {
  for (const each of sendings) line = line.then(() => each.run());
}

/** A video on its way. `send` sends it and gives its job. */
class Sending {
  constructor(name, send, created) {
    Object.assign(this, { name, send, created, key: newKey(), stopper: new AbortController() });
    this.bar = h("progress", { max: "1", "aria-label": `Sending ${name}` });
    this.words = h("span", {}, "waits to be sent");
    this.stop = h("button", { type: "button", "aria-label": `Stop sending ${name}` }, "Stop");
    this.stop.addEventListener("click", () => {
      this.stopper.abort();
      this.element.remove();
      say(`${name} is not sent`);
    });
    this.element = h("div", { class: "sending" }, h("b", {}, name), this.bar, this.words, this.stop);
  }

  async run() {
    if (this.stopper.signal.aborted) return;
    say(`Sending ${this.name}`);
    this.words.textContent = "being fetched";
    const progress = (share) => {
      this.bar.value = share;
      this.words.textContent = share < 1 ? percent(share) : "being looked at";
    };
    try {
      const job = await this.send({ key: this.key, progress, signal: this.stopper.signal });
      this.element.remove();
      say(`${this.name} is sent`);
      this.created(job);
    } catch (error) {
      if (error.name !== "AbortError") this.fail(error);
    }
  }

  fail(error) {
    const again = h("button", { type: "button" }, "Try again");
    const away = h("button", { type: "button", "aria-label": `Forget ${this.name}` }, "Forget it");
    const said = notice(h("b", {}, this.name), " could not be taken. ", error.without(this.name), " ", again, " ", away);
    again.addEventListener("click", () => {
      said.replaceWith(this.element);
      sendAll([this]);
    });
    away.addEventListener("click", () => said.remove());
    this.element.replaceWith(said);
  }
}
