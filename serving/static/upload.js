// Choosing or dropping videos, the options, and sending them one after another.

import { newKey, upload } from "./api.js";
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
  const form = h("form", { class: "card upload" }, zone, options, sent);

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
    const uploads = files.map((file) => new Upload(file, chosenOptions(), created));
    sent.append(...uploads.map((each) => each.element));
    choose([]);
    input.value = "";
    input.focus();
    sendAll(uploads);
  });
  return form;
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

let line = Promise.resolve(); // one upload at a time, in the order they were started

function sendAll(uploads) {
  for (const each of uploads) line = line.then(() => each.run());
}

class Upload {
  constructor(file, options, created) {
    Object.assign(this, { file, options, created, key: newKey(), stopper: new AbortController() });
    this.bar = h("progress", { max: "1", value: "0", "aria-label": `Sending ${file.name}` });
    this.words = h("span", {}, "waits to be sent");
    this.stop = h("button", { type: "button", "aria-label": `Stop sending ${file.name}` }, "Stop");
    this.stop.addEventListener("click", () => {
      this.stopper.abort();
      this.element.remove();
      say(`${file.name} is not sent`);
    });
    this.element = h("div", { class: "sending" }, h("b", {}, file.name), this.bar, this.words, this.stop);
  }

  async run() {
    if (this.stopper.signal.aborted) return;
    say(`Sending ${this.file.name}`);
    const progress = (share) => {
      this.bar.value = share;
      this.words.textContent = share < 1 ? percent(share) : "being looked at";
    };
    try {
      const job = await upload(this.file, this.options, { key: this.key, progress, signal: this.stopper.signal });
      this.element.remove();
      say(`${this.file.name} is sent`);
      this.created(job);
    } catch (error) {
      if (error.name !== "AbortError") this.fail(error);
    }
  }

  fail(error) {
    const again = h("button", { type: "button" }, "Try again");
    const away = h("button", { type: "button", "aria-label": `Forget ${this.file.name}` }, "Forget it");
    const said = notice(h("b", {}, this.file.name), " could not be taken. ", error.without(this.file.name), " ", again, " ", away);
    again.addEventListener("click", () => {
      said.replaceWith(this.element);
      sendAll([this]);
    });
    away.addEventListener("click", () => said.remove());
    this.element.replaceWith(said);
  }
}
