// The command builder: a form whose choices come from the page's data-choices, which is generated
// from the command line itself. The query string carries the state; defaults are left out.
(function () {
  "use strict";

  const FIELDS = [
    { name: "system", kind: "select", label: "Operating system" },
    { name: "platform", kind: "select", label: "Platform" },
    { name: "model", kind: "select", label: "Model" },
    { name: "sweep", kind: "select", label: "Sweep" },
    { name: "prefix", kind: "number", label: "Prefix of your own point, tokens" },
    { name: "hops", kind: "number", label: "Hops of your own point" },
    { name: "max_prefix", kind: "number", label: "Longest prefix of the sweep, tokens" },
    { name: "blocks", kind: "number", label: "Blocks" },
    { name: "threads", kind: "number", label: "CPU threads" },
    { name: "exploratory", kind: "checkbox", label: "Exploratory: not evidence" },
    { name: "dry_run", kind: "checkbox", label: "Dry run: print the plan only" },
  ];
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
      const given = choices.options[field.name].default;
      values[field.name] = field.kind === "checkbox" ? given === true : given === null ? "" : String(given);
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
      else if (field.kind === "number" && /^\d+$/.test(text)) values[field.name] = text;
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
    return found;
  }

  function points(choices, values) {
    const sweep = choices.sweeps.find((item) => item.id === values.sweep);
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
      if (!/^\d+$/.test(values[field.name])) return `${field.label}: a whole number`;
      const smallest = choices.options[field.name].min;
      if (smallest !== null && Number(values[field.name]) < smallest) return `${field.label}: at least ${smallest}`;
    }
    if ((values.prefix === "") !== (values.hops === "")) return "a point of your own needs both prefix and hops";
    return tooLong(choices, values);
  }

  function tooLong(choices, values) {
    const sweep = choices.sweeps.find((item) => item.id === values.sweep);
    if (values.prefix === "") {
      return points(choices, values).length ? "" : "no point of the sweep has so short a prefix";
    }
    const hops = Number(values.hops);
    const tokens = Number(values.prefix) + (hops + 1) * choices.turn.generate + hops * choices.turn.result;
    return tokens <= sweep.n_ctx ? "" : `this point needs ${tokens} KV cells, the context has ${sweep.n_ctx}: choose fewer hops or a shorter prefix`;
  }

  function words(choices, values, base) {
    const said = [];
    for (const field of FIELDS.slice(1)) {
      const flag = choices.options[field.name].flag;
      const value = values[field.name];
      if (value === base[field.name]) continue;
      said.push(flag);
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
    } else {
      const least = choices.options[field.name].min;
      input = element("input", { id, name: field.name, type: "number", step: "1", min: least === null ? "0" : String(least), inputmode: "numeric" });
    }
    input.setAttribute("aria-describedby", note.id);
    const label = element("label", { for: id }, field.label);
    return { input, note, box: element("div", { class: "lk-field" }, label, input, note) };
  }

  function build(place) {
    const choices = JSON.parse(place.dataset.choices);
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
      const effective = Object.assign({}, values);
      if (blocked.exploratory) effective.exploratory = true;
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
        [field.name]: field.kind === "checkbox" ? event.target.checked : event.target.value,
      });
      writeQuery(values, base);
      refresh();
    });
    refresh();
  }

  function hint(field, choices, values) {
    if (field.name === "blocks") {
      return "sweep's own: " + choices.sweeps.find((item) => item.id === values.sweep).blocks;
    }
    return field.name === "system" ? "" : choices.options[field.name].help || "";
  }

  function start() {
    const place = document.getElementById("lk-builder");
    if (place && !place.querySelector("form")) build(place);
  }

  if (window.document$) window.document$.subscribe(start);
  else start();
})();
