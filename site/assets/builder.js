// The command builder: a form whose choices come from the page's data-choices, which is generated
// from the command line itself. The query string carries the state; defaults are left out.
(function () {
  "use strict";

  // The form's fields come with the choices; the system is the reader's, and no option.
  let FIELDS = [];

  function fieldsOf(choices) {
    const options = Object.entries(choices.options).map(([name, option]) =>
      Object.assign({ name }, option));
    return [{ name: "system", kind: "select", label: "Operating system" }, ...options];
  }

  const SYSTEMS = { Linux: "Linux", Darwin: "macOS", Windows: "Windows" };

  function element(tag, attributes, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  function defaults(choices) {
    const values = { system: choices.systems[0] };
    for (const field of FIELDS.slice(1)) {
      values[field.name] = field.kind === "checkbox" ? field.default === true :
        field.default === null ? "" : String(field.default);
    }
    return values;
  }

  function listed(choices, name) {
    if (name === "system") return choices.systems.map((id) => ({ id, title: SYSTEMS[id] || id }));
    return choices[name + "s"];
  }

  function readQuery(choices, base) {
    const values = Object.assign({}, base);
    const query = new URLSearchParams(location.search);
    for (const field of FIELDS) {
      if (!query.has(field.name)) continue;
      const text = query.get(field.name);
      if (field.kind === "checkbox") values[field.name] = text === "1";
      else if (field.kind === "number" && /^\d+(\.\d+)?$/.test(text)) values[field.name] = text;
      else if (field.kind === "text") values[field.name] = text;
      else if (field.kind === "many" && text.split(",").every((id) => choices.arms.some((arm) => arm.id === id))) values[field.name] = text;
      else if (field.kind === "select" && listed(choices, field.name).some((item) => item.id === text)) values[field.name] = text;
    }
    return values;
  }

  function writeQuery(values, base) {
    const query = new URLSearchParams();
    for (const field of FIELDS) {
      const value = values[field.name];
      if (value !== base[field.name]) query.set(field.name, value === true ? "1" : value === false ? "0" : value);
    }
    const text = query.toString();
    history.replaceState(history.state, "", location.pathname + (text ? "?" + text : "") + location.hash);
  }

  // Why a control may not be used now, or nothing.
  function reasons(choices, values) {
    const found = {};
    const own = values.prefix !== "" || values.hops !== "";
    if (own) found.max_prefix = "your own point is the only one: nothing to leave out";
    else if (values.max_prefix !== "") {
      found.prefix = found.hops = "a longest prefix selects among the sweep's points";
    }
    const needed = unregistered(choices, values);
    if (needed) found.exploratory = needed;
    if (values.resume !== "") {
      const why = "a resumed run goes on by its own plan";
      for (const field of FIELDS) {
        if (!["system", "resume", "out", "dry_run"].includes(field.name)) found[field.name] = why;
      }
    }
    return found;
  }

  function points(choices, values) {
    const sweep = sweepOf(choices, values);
    const limit = values.max_prefix === "" ? Infinity : Number(values.max_prefix);
    return sweep.points.filter((point) => point.prefix <= limit);
  }

  function unregistered(choices, values) {
    if (values.prefix !== "" || values.hops !== "") return "a point of your own has no expectation: the run is exploratory";
    const ids = points(choices, values).map((point) => point.id);
    const known = choices.registered.some((item) => item.sweep === values.sweep &&
      item.model === values.model && ids.every((id) => item.points.includes(id)));
    return known ? "" : "no committed expectation covers this sweep and model: the run is exploratory";
  }

  // Why there is no command, or nothing.
  function impossible(choices, values) {
    const platform = choices.platforms.find((item) => item.id === values.platform);
    if (!platform.systems.includes(values.system)) {
      return `${platform.title} exists on ${platform.systems.map((id) => SYSTEMS[id] || id).join(", ")} only`;
    }
    for (const field of FIELDS) {
      if (field.kind !== "number" || values[field.name] === "") continue;
      const fits = field.whole ? /^\d+$/ : /^\d+(\.\d+)?$/;
      if (!fits.test(values[field.name])) return `${field.label}: a ${field.whole ? "whole " : ""}number`;
      const smallest = field.min;
      if (smallest !== null && Number(values[field.name]) < smallest) return `${field.label}: at least ${smallest}`;
    }
    if ((values.prefix === "") !== (values.hops === "")) return "a point of your own needs both prefix and hops";
    return tooLong(choices, values);
  }

  function tooLong(choices, values) {
    const sweep = sweepOf(choices, values);
    if (values.prefix === "") {
      return points(choices, values).length ? "" : "no point of the sweep has so short a prefix";
    }
    const hops = Number(values.hops);
    const tokens = Number(values.prefix) + (hops + 1) * choices.turn.generate + hops * choices.turn.result;
    const cells = values.n_ctx === "" ? sweep.n_ctx : Number(values.n_ctx);
    return tokens <= cells ? "" : `this point needs ${tokens} KV cells, the context has ${cells}: choose fewer hops or a shorter prefix, or more KV cells`;
  }

  function words(choices, values, base) {
    const said = [];
    for (const field of FIELDS.slice(1)) {
      const value = values[field.name];
      if (value === base[field.name]) continue;
      said.push(value === false ? field.off : field.flag);
      if (field.kind !== "checkbox") said.push(value);
    }
    return said;
  }

  const plain = (word) => /^[A-Za-z0-9_.\/:=+-]+$/.test(word);
  const posix = (word) => plain(word) ? word : "'" + word.replace(/'/g, "'\\''") + "'";
  const powershell = (word) => plain(word) ? word : "'" + word.replace(/'/g, "''") + "'";

  function command(choices, said, quote) {
    if (!said.length) return choices.command;
    // PowerShell keeps a bare -- for itself where the program is a script; quoted it passes.
    const separator = quote === powershell ? "'--'" : "--";
    return [choices.command, separator, ...said.map(quote)].join(" ");
  }

  function control(field, choices) {
    const id = "lk-" + field.name;
    const note = element("p", { id: id + "-note", class: "lk-note" });
    let input;
    if (field.kind === "select") {
      input = element("select", { id, name: field.name });
      for (const item of listed(choices, field.name)) {
        input.append(element("option", { value: item.id }, item.title));
      }
    } else if (field.kind === "checkbox") {
      input = element("input", { id, name: field.name, type: "checkbox" });
    } else if (field.kind === "many") {
      return many(field, choices, id, note);
    } else if (field.kind === "number") {
      const least = field.min === null ? "0" : String(field.min);
      input = element("input", { id, name: field.name, type: "number", step: field.whole ? "1" : "any", min: least, inputmode: field.whole ? "numeric" : "decimal" });
    } else {
      input = element("input", { id, name: field.name, type: "text", spellcheck: "false", autocapitalize: "off" });
    }
    input.setAttribute("aria-describedby", note.id);
    const label = element("label", { for: id }, field.label);
    return { input, note, box: element("div", { class: "lk-field" }, label, input, note) };
  }

  // A box for each; none is the sweep's own choice. Its value is the names, with commas.
  function many(field, choices, id, note) {
    const input = element("fieldset", { id, "aria-describedby": note.id }, element("legend", {}, field.label));
    for (const item of choices[field.name]) {
      const box = element("input", { type: "checkbox", name: field.name, value: item.id, id: `${id}-${item.id}` });
      input.append(element("label", { for: box.id }, box, " " + item.title));
    }
    const boxes = [...input.querySelectorAll("input")];
    Object.defineProperty(input, "value", {
      get: () => boxes.filter((box) => box.checked).map((box) => box.value).join(","),
      set: (text) => boxes.forEach((box) => { box.checked = text.split(",").includes(box.value); }),
    });
    return { input, note, box: element("div", { class: "lk-field lk-wide" }, input, note) };
  }

  // Of a resumed run only what is not in its plan is still asked for.
  function resumed(values, base) {
    const kept = Object.fromEntries(["system", "resume", "out", "dry_run"].map((name) => [name, values[name]]));
    return Object.assign({}, base, kept);
  }

  function build(place) {
    const choices = JSON.parse(place.dataset.choices);
    FIELDS = fieldsOf(choices);
    choices.systems = [...new Set(choices.platforms.flatMap((item) => item.systems))].sort().reverse();
    const base = defaults(choices);
    let values = readQuery(choices, base);
    const controls = Object.fromEntries(FIELDS.map((field) => [field.name, control(field, choices)]));
    const form = element("form", { class: "lk-form" }, ...FIELDS.map((field) => controls[field.name].box));
    const outputs = [["lk-posix", "Linux, macOS (POSIX shell)", posix], ["lk-powershell", "PowerShell", powershell]];
    const shown = outputs.map(([id, title]) => element("p", {}, element("strong", { id: id + "-title" }, title),
      element("output", { id, class: "lk-out", "aria-live": "polite", "aria-labelledby": id + "-title" })));
    place.replaceChildren(form, ...shown);

    function refresh() {
      const blocked = reasons(choices, values);
      const effective = values.resume === "" ? Object.assign({}, values) : resumed(values, base);
      if (blocked.exploratory && values.resume === "") effective.exploratory = true;
      if (blocked.max_prefix) effective.max_prefix = "";
      for (const field of FIELDS) {
        const { input, note } = controls[field.name];
        const reason = blocked[field.name] || "";
        input.disabled = reason !== "";
        note.textContent = reason || hint(field, choices, effective);
        if (field.kind === "checkbox") input.checked = effective[field.name];
        else if (input.value !== effective[field.name]) input.value = effective[field.name];
      }
      for (const option of controls.platform.input.options) {
        const item = choices.platforms.find((known) => known.id === option.value);
        const fits = item.systems.includes(values.system);
        option.disabled = !fits;
        option.textContent = fits ? item.title : `${item.title} (only on ${item.systems.map((id) => SYSTEMS[id] || id).join(", ")})`;
      }
      const problem = impossible(choices, effective);
      const said = words(choices, effective, base);
      for (const [id, , quote] of outputs) {
        const output = place.querySelector("#" + id);
        output.textContent = problem ? "No such run: " + problem + "." : command(choices, said, quote);
        output.toggleAttribute("data-impossible", problem !== "");
      }
    }

    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("input", function (event) {
      const field = FIELDS.find((item) => item.name === event.target.name);
      values = Object.assign({}, values, {
        [field.name]: field.kind === "checkbox" ? event.target.checked : controls[field.name].input.value,
      });
      writeQuery(values, base);
      refresh();
    });
    refresh();
  }

  const sweepOf = (choices, values) => choices.sweeps.find((item) => item.id === values.sweep);

  function hint(field, choices, values) {
    if (field.name === "blocks") {
      return "sweep's own: " + sweepOf(choices, values).blocks;
    }
    if (field.name === "arms") return "sweep's own: " + sweepOf(choices, values).arms.join(", ");
    return field.help || "";
  }

  function start() {
    const place = document.getElementById("lk-builder");
    if (place && !place.querySelector("form")) build(place);
  }

  if (window.document$) window.document$.subscribe(start);
  else start();
})();
