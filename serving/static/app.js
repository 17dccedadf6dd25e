// The frame of the page: which view is shown, and signing in.

import { get, signIn } from "./api.js";
import { h, notice, say } from "./dom.js";
import { showJob } from "./job.js";
import { showJobs } from "./list.js";

const main = document.getElementById("main");
const signOut = document.getElementById("sign-out");
const docs = document.getElementById("docs");
let leave = () => {};
let shown = false;

/** Show what the address says. A view gives back how to leave it. */
function route() {
  leave();
  const job = /^#\/jobs\/(\w+)$/.exec(location.hash);
  main.replaceChildren();
  leave = job ? showJob(main, job[1], named) : showJobs(main, named);
  scrollTo(0, 0);
  if (shown) main.querySelector("h1")?.focus({ preventScroll: true }); // the first view leaves the focus where it is
  shown = true;
}

function named(title) {
  document.title = title ? `${title} · ZroAct` : "ZroAct";
}

function askForToken() {
  leave();
  leave = () => {};
  signOut.hidden = docs.hidden = true;
  named("Sign in");
  const token = h("input", { id: "token", type: "password", autocomplete: "current-password", required: true });
  const wrong = h("div");
  const button = h("button", { type: "submit", class: "primary" }, "Sign in");
  const form = h(
    "form",
    { class: "card sign-in" },
    h("h1", { tabindex: "-1" }, "Sign in"),
    h("p", {}, "This server asks for its access token. Whoever runs it has it (serving.token)."),
    h("label", { for: "token" }, "Access token"),
    token,
    wrong,
    button,
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    button.disabled = true;
    wrong.replaceChildren();
    try {
      await signIn(token.value.trim());
      start();
    } catch (error) {
      wrong.append(notice(error.status === 401 ? "This is not the token. Check it and try again." : error.message));
      token.select();
      token.focus();
    } finally {
      button.disabled = false;
    }
  });
  main.replaceChildren(form);
  token.focus();
}

async function start() {
  try {
    const session = await get("/session");
    signOut.hidden = !session.signed_in;
    docs.hidden = session.token_needed && !session.signed_in;
    if (session.token_needed && !session.signed_in) askForToken();
    else route();
  } catch (error) {
    const again = h("button", { type: "button", onclick: start }, "Try again");
    main.replaceChildren(notice(error.message, " ", again));
  }
}

signOut.addEventListener("click", async () => {
  try {
    await get("/session", { method: "DELETE" });
  } catch (error) {
    say(error.message);
  }
  askForToken();
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the part of the address behind # says which view is shown
  main.focus();
});
window.addEventListener("signed-out", () => {
  if (!document.getElementById("token")) askForToken();
});
window.addEventListener("hashchange", start);
start();
