// What the interactive pages share: elements, their state in the address, files to save.
// Values from data go through textContent and setAttribute only, never through innerHTML.
(function () {
  "use strict";

  const root = new URL("../", document.currentScript.src);

  function element(tag, attributes, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  // Run `build(place)` once for the element with this id, on every visit of its page.
  function onPage(id, build) {
    async function start() {
      const place = document.getElementById(id);
      if (!place || place.dataset.built) return;
      place.dataset.built = "yes";
      try {
        await build(place);
      } catch (error) {
        place.append(element("p", { class: "lk-problem", role: "alert" }, "This part does not work: " + error.message));
      }
    }
    if (window.document$) window.document$.subscribe(start);
    else start();
  }

  async function load(path) {
    const answer = await fetch(new URL(path, root));
    if (!answer.ok) throw new Error(path + " is missing");
    return answer.json();
  }

  // The address carries what differs from the defaults; what it says wrongly is ignored.
  function readState(defaults, allowed) {
    const query = new URLSearchParams(location.search);
    const state = Object.assign({}, defaults);
    for (const name of Object.keys(defaults)) {
      if (query.has(name) && allowed(name, query.get(name))) state[name] = query.get(name);
    }
    return state;
  }

  function writeState(state, defaults) {
    const query = new URLSearchParams();
    for (const [name, value] of Object.entries(state)) if (value !== defaults[name]) query.set(name, value);
    const text = query.toString();
    history.replaceState(history.state, "", location.pathname + (text ? "?" + text : "") + location.hash);
  }

  function field(label, input, note) {
    const id = input.id;
    const parts = [element("label", { for: id }, label), input];
    if (note) {
      input.setAttribute("aria-describedby", id + "-note");
      parts.push(element("p", { id: id + "-note", class: "lk-note" }, note));
    }
    return element("div", { class: "lk-field" }, ...parts);
  }

  function select(id, items, value) {
    const input = element("select", { id, name: id.replace(/^lk-[a-z]+-/, "") });
    for (const [key, title] of items) input.append(element("option", { value: key }, title));
    input.value = value;
    return input;
  }

  // A table that scrolls by itself; cells are text or nodes.
  function table(caption, head, rows) {
    const body = element("tbody");
    for (const [first, ...rest] of rows) {
      body.append(element("tr", {}, element("th", { scope: "row" }, first), ...rest.map((cell) => element("td", {}, cell))));
    }
    const top = element("tr", {}, ...head.map((name) => element("th", { scope: "col" }, name)));
    const made = element("table", { class: "lk-table" }, element("caption", {}, caption), element("thead", {}, top), body);
    return element("div", { class: "lk-scroll", tabindex: "0", role: "region", "aria-label": caption }, made);
  }

  function save(name, kind, content) {
    const address = URL.createObjectURL(new Blob([content], { type: kind }));
    const link = element("a", { href: address, download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(address), 1000);
  }

  // A field that a spreadsheet would run as a formula is told to be text.
  function csv(head, rows) {
    const quoted = (value) => {
      const text = value === null || value === undefined ? "" : String(value);
      const tame = typeof value === "string" && /^[=+@\t\r-]/.test(text) ? "'" + text : text;
      return /[",\r\n]/.test(tame) ? '"' + tame.replace(/"/g, '""') + '"' : tame;
    };
    return [head, ...rows].map((row) => row.map(quoted).join(",")).join("\r\n") + "\r\n";
  }

  window.lk = { root, element, onPage, load, readState, writeState, field, select, table, save, csv };
})();
