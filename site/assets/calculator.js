// Seconds of a tool loop with and without live KV. The formula is that of pipelines/analysis/costs.py
// and session.py; a test holds the two together.
(function () {
  "use strict";

  const { root, element, onPage, readState, writeState, field, select } = window.lk;
  const OWN = "own";
  const NUMBERS = [
    ["prefix", "Prefix, tokens", "2000", 1, "system prompt, tools and task, before the first turn"],
    ["hops", "Tool calls in a task", "6", 0, ""],
    ["generate", "Tokens generated a turn", "64", 1, ""],
    ["result", "Tokens of a tool's result", "200", 1, ""],
    ["prefill", "Prefill rate, tokens/s", "500", 0.001, "for rates of your own"],
    ["decode", "Decode rate, tokens/s", "30", 0.001, "for rates of your own"],
    ["share", "Worth it from, % of a task saved", "20", 1, "the break-even prefix is where this is reached"],
  ];
  const MOST = 1 << 20;

  const at = (line, depth) => line.fixed_s + line.per_depth_s * depth;

  function interpolated(xs, ys, x) {
    if (x <= xs[0]) return ys[0];
    for (let i = 1; i < xs.length; i += 1) {
      if (x <= xs[i]) return ys[i - 1] + (ys[i] - ys[i - 1]) * (x - xs[i - 1]) / (xs[i] - xs[i - 1]);
    }
    return ys[ys.length - 1];
  }

  function batch(costs, n, depth) {
    for (const line of [costs.hop, costs.chunk]) if (n === line.n_tokens) return at(line, depth);
    const slopes = costs.lines.map((line) => line.per_depth_s);
    const slope = interpolated(costs.lines.map((line) => line.n_tokens), slopes, n);
    return interpolated(costs.sizes, costs.seconds, n) + slope * depth;
  }

  function prefill(costs, n, depth) {
    if (costs.prefill_rate) return n / costs.prefill_rate;
    let total = 0;
    for (let done = 0; done < n; done += costs.chunk.n_tokens) {
      total += batch(costs, Math.min(costs.chunk.n_tokens, n - done), depth + done);
    }
    return total;
  }

  function decode(costs, steps, depth) {
    return costs.decode_rate ? steps / costs.decode_rate : steps * at(costs.step, depth + (steps - 1) / 2);
  }

  function session(costs, loop, kept) {
    let total = 0;
    for (let hop = 0; hop <= loop.hops; hop += 1) {
      const context = loop.prefix + hop * (loop.generate + loop.result);
      const fed = kept && hop > 0 ? loop.result + 1 : context;
      total += prefill(costs, fed, context - fed) + decode(costs, loop.generate - 1, context);
    }
    return total;
  }

  function savedShare(costs, loop) {
    return 1 - session(costs, loop, true) / session(costs, loop, false);
  }

  // The shortest prefix that saves the share, or none up to a million tokens.
  function breakEven(costs, loop, share) {
    const saves = (prefix) => savedShare(costs, Object.assign({}, loop, { prefix })) >= share;
    if (!loop.hops || !saves(MOST)) return null;
    let low = 0;
    let high = MOST;
    while (high - low > 1) {
      const middle = Math.floor((low + high) / 2);
      if (saves(middle)) high = middle;
      else low = middle;
    }
    return high;
  }

  const seconds = (value) => value < 1 ? `${(value * 1000).toPrecision(3)} ms` : `${value.toPrecision(3)} s`;
  const signed = (value) => `${value >= 0 ? "+" : "\u2212"}${Math.abs(value * 100).toFixed(1)} %`;

  function problem(state) {
    for (const [name, label, , least] of NUMBERS) {
      const value = Number(state[name]);
      const whole = !["prefill", "decode", "share"].includes(name);
      if (state[name].trim() === "" || !Number.isFinite(value) || value < least || (whole && !Number.isInteger(value))) {
        return `${label}: ${whole ? "a whole number" : "a number"} of at least ${least}`;
      }
    }
    if (Number(state.share) >= 100) return "Worth it from: below 100 %";
    if (Number(state.hops) > 1000) return "Tool calls in a task: at most 1000";
    return Number(state.prefix) > MOST ? "Prefix: at most 1,048,576" : "";
  }

  function answer(state, machine) {
    const loop = Object.fromEntries(["prefix", "hops", "generate", "result"].map((name) => [name, Number(state[name])]));
    const costs = machine || { prefill_rate: Number(state.prefill), decode_rate: Number(state.decode) };
    const live = session(costs, loop, true);
    const cold = session(costs, loop, false);
    return { loop, live, cold, even: breakEven(costs, loop, Number(state.share) / 100) };
  }

  function sentences(state, machine) {
    const { loop, live, cold, even } = answer(state, machine);
    const longest = loop.prefix + (loop.hops + 1) * loop.generate + loop.hops * loop.result;
    const lines = [
      `A task takes ${seconds(live)} with live KV and ${seconds(cold)} without: ${(cold / live).toFixed(2)} times as long.`,
      `${seconds(cold - live)} saved a task, ${(100 * (1 - live / cold)).toFixed(0)} %.`,
      even === null ? `No prefix up to a million tokens saves ${state.share} % of a task with these sizes.` :
        `From a prefix of ${even.toLocaleString("en")} tokens on, ${state.share} % of a task are saved.`,
    ];
    if (machine && machine.error_low !== null) {
      lines.push(`On this machine the formula was off by ${signed(machine.error_low)} to ${signed(machine.error_high)} of what was measured.`);
    }
    if (machine && longest > machine.n_ctx) {
      lines.push(`The conversation grows to ${longest.toLocaleString("en")} tokens; this machine was measured up to ${machine.n_ctx.toLocaleString("en")}, the rest is extrapolated.`);
    }
    return lines;
  }

  window.lkCalculate = answer;

  onPage("lk-calculator", function (place) {
    const known = JSON.parse(place.dataset.machines);
    const defaults = Object.fromEntries(NUMBERS.map(([name, , value]) => [name, value]));
    defaults.machine = known.length ? known[0].id : OWN;
    const titles = [...known.map((item) => [item.id, item.title]), [OWN, "Rates of my own"]];
    const state = readState(defaults, (name, value) => name === "machine" ? titles.some(([id]) => id === value) : value !== "" && Number.isFinite(Number(value)));
    const form = element("form", { class: "lk-form", "aria-label": "Your loop" });
    form.append(field("Machine and model", select("lk-worth-machine", titles, state.machine)));
    for (const [name, label, , least, note] of NUMBERS) {
      const input = element("input", { id: "lk-worth-" + name, name, type: "number", min: String(least), step: "any", inputmode: "decimal" });
      input.value = state[name];
      form.append(field(label, input, note));
    }
    const said = element("output", { class: "lk-out", "aria-live": "polite", "aria-label": "What it is worth" });
    const source = element("p", {});
    place.replaceChildren(form, said, source);

    function refresh() {
      const machine = known.find((item) => item.id === state.machine);
      for (const name of ["prefill", "decode"]) form.elements[name].disabled = Boolean(machine);
      const wrong = problem(state);
      said.toggleAttribute("data-impossible", wrong !== "");
      said.textContent = wrong ? wrong + "." : sentences(state, machine).join("\n");
      source.replaceChildren(...(machine ? ["Costs of ", element("a", { href: new URL(`runs/${machine.page}/`, root).href }, "this run"), "."] : []));
    }

    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("input", function (event) {
      state[event.target.name] = event.target.value;
      writeState(state, defaults);
      refresh();
    });
    refresh();
  });
})();
