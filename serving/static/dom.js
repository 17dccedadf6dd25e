// Elements made by hand: text is always set as text, so that no name or answer can become markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element. Properties that begin with "on" are listeners; null, undefined and false ones are left out. */
export function h(tag, properties = {}, ...children) {
  return fill(document.createElement(tag), properties, children);
}

/** The same for SVG. */
export function svg(tag, properties = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), properties, children);
}

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Tell users of screen readers, once. */
export function say(text) {
  const place = document.getElementById("said");
  if (place.textContent !== text) place.textContent = text;
}

/** What went wrong, in words, where it happened. */
export function notice(text, ...more) {
  return h("p", { class: "notice", role: "alert" }, text, ...more);
}
