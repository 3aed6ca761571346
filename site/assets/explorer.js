// The explorer: every published ratio, filtered by the reader; chart, table and files of one choice.
(function () {
  "use strict";

  const { root, element, onPage, load, readState, writeState, field, select, table, save, csv } = window.lk;
  const ANY = "all";
  const FILTERS = [
    ["platform", "Platform"],
    ["hardware", "Hardware"],
    ["model", "Model"],
    ["workload", "Workload"],
    ["baseline", "Baseline"],
    ["measure", "What the ratio times"],
  ];
  const DEFAULTS = {
    platform: ANY, hardware: ANY, model: ANY, workload: ANY, baseline: "reprefill", measure: "whole session",
    runs: "newest", axis: "log", targets: "shown",
  };
  const SWITCHES = [
    ["runs", "Runs", [["newest", "The newest of each"], ["every", "Every run"]]],
    ["axis", "Scale of the ratio", [["log", "Logarithmic"], ["linear", "Linear"]]],
    ["targets", "Figures of others", [["shown", "Shown"], ["hidden", "Hidden"]]],
  ];
  const TONES = ["ours-1", "ours-2", "ours-3", "ours-4"];
  const SYMBOLS = ["circle", "square", "diamond", "triangle-up"];

  // The file names columns once and runs once: a row is a list.
  function unpacked(data) {
    return data.rows.map(function (row) {
      const item = Object.fromEntries(data.columns.map((name, index) => [name, row[index]]));
      return Object.assign({}, data.runs[item.run], item, { run: data.runs[item.run].run_id });
    });
  }

  function values(rows, name) {
    return [...new Set(rows.map((row) => row[name]))].sort();
  }

  function chosen(rows, state) {
    return rows.filter((row) =>
      FILTERS.every(([name]) => state[name] === ANY || row[name] === state[name]) &&
      (state.runs === "every" || row.newest));
  }

  const pointOf = (row) => `${row.prefix.toLocaleString("en")} / ${row.hops}`;
  const number = (value, digits) => value === null ? "\u2014" : value.toFixed(digits);
  const within = (row) => row.low === null ? "\u2014" : `${row.low.toFixed(3)} to ${row.high.toFixed(3)}`;

  function traces(rows) {
    const series = new Map();
    for (const row of rows) {
      const name = [row.model, row.platform, row.hardware, "against " + row.baseline, row.verdict === "INVALID" ? "INVALID" : "", row.newest ? "" : row.run]
        .filter(Boolean).join(", ");
      if (!series.has(name)) series.set(name, []);
      series.get(name).push(row);
    }
    return [...series].map(([name, items], index) => ({
      type: "scatter", mode: "lines+markers", name,
      x: items.map(pointOf), y: items.map((row) => row.ratio),
      text: items.map((row) => `${row.n_blocks} blocks, 95 % t interval ${within(row)}`),
      error_y: {
        type: "data", symmetric: false,
        array: items.map((row) => row.high === null ? null : row.high - row.ratio),
        arrayminus: items.map((row) => row.low === null ? null : row.ratio - row.low),
      },
      marker: { symbol: SYMBOLS[index % SYMBOLS.length], size: 10 },
      meta: { tone: TONES[index % TONES.length] },
    }));
  }

  // A figure of others is a marked line across the points it was measured at.
  function targetTraces(targets, state, axis) {
    if (state.targets !== "shown") return [];
    const shown = targets.filter((item) => item.measure === state.measure && axis.includes(pointOf(item)) &&
      (state.baseline === ANY || item.baseline === state.baseline));
    const names = [...new Set(shown.map((item) => item.name))];
    return names.map((name) => {
      const items = shown.filter((item) => item.name === name);
      return {
        type: "scatter", mode: "lines+markers", name: "target: " + name,
        x: items.map(pointOf), y: items.map((item) => item.ratio),
        line: { dash: "dot", width: 1.5 }, marker: { symbol: "line-ew-open", size: 16 }, meta: { tone: "target" },
      };
    });
  }

  function figure(rows, targets, state) {
    const order = [...new Map(rows.map((row) => [pointOf(row), row])).values()]
      .sort((a, b) => a.hops - b.hops || a.prefix - b.prefix).map(pointOf);
    return {
      data: [...traces(rows), ...targetTraces(targets, state, order)],
      layout: {
        xaxis: { title: { text: "measured prefix (tokens) / hops" }, type: "category", categoryorder: "array", categoryarray: order },
        yaxis: Object.assign({ title: { text: `ratio, ${state.measure}` } }, state.axis === "log" ? { type: "log", dtick: "D2" } : { rangemode: "tozero" }),
        shapes: [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: 1, y1: 1, line: { width: 1 } }],
      },
    };
  }

  const link = (path, text) => element("a", { href: new URL(path, root).href }, text);

  function sql(row) {
    const text = (value) => "'" + value.replace(/'/g, "''") + "'";
    return `from ratios where run_id = ${text(row.run)} and point = ${text(row.point)}` +
      ` and baseline = ${text(row.baseline)} and measure = ${text(row.measure)}`;
  }

  function cells(row) {
    const page = `runs/${row.page}/`;
    return [
      `${row.model}, ${row.platform}, ${row.hardware}`, pointOf(row), row.baseline, number(row.ratio, 3), within(row),
      row.n_void ? `${row.n_blocks}, ${row.n_void} void` : String(row.n_blocks),
      row.verdict || row.registration, row.forecast || "\u2014",
      element("span", {}, link(page, "run"), " ", link(page + "#registration", "expectation"), " ",
        link(page + "#reproduce", "command"), " ", link("query/?sql=" + encodeURIComponent(sql(row)), "SQL")),
    ];
  }

  const HEAD = ["Model, platform", "Prefix / hops", "Baseline", "Ratio", "95 % t interval", "Blocks", "Verdict", "Forecast", "Where from"];
  const FIELDS = ["run", "platform", "hardware", "machine", "model", "workload", "point", "prefix", "hops", "baseline", "measure", "ratio", "low",
    "high", "n_blocks", "n_void", "verdict", "forecast", "registration"];

  onPage("lk-explorer", async function (place) {
    const data = await load(place.dataset.source);
    const rows = unpacked(data);
    const options = Object.fromEntries(FILTERS.map(([name]) => [name, values(rows, name)]));
    const known = (name, value) => {
      const fixed = SWITCHES.find(([own]) => own === name);
      return fixed ? fixed[2].some(([key]) => key === value) : value === ANY || options[name].includes(value);
    };
    const state = readState(DEFAULTS, known);
    const form = element("form", { class: "lk-form", "aria-label": "Filters" });
    for (const [name, label] of FILTERS) {
      const items = [[ANY, "All"], ...options[name].map((value) => [value, value])];
      form.append(field(label, select("lk-explore-" + name, items, state[name])));
    }
    for (const [name, label, items] of SWITCHES) form.append(field(label, select("lk-explore-" + name, items, state[name])));
    const plot = element("div", { class: "lk-plot", style: "height:480px" });
    const note = element("figcaption", {});
    const chart = element("figure", { class: "lk-chart", role: "group", "aria-label": "Ratios of the chosen runs" }, plot, note);
    const files = element("p", { class: "lk-buttons" });
    const shown = element("div", {});
    const said = element("p", { role: "status" });
    place.replaceChildren(form, said, chart, files, shown);

    function refresh() {
      const found = chosen(rows, state);
      said.textContent = found.length ? `${found.length} ratio(s) of ${rows.length}.` : "No published ratio fits these filters.";
      note.textContent = `Baseline time / live KV time, ${state.measure}. Bars: 95 % t interval over blocks; a figure of others has none. The thin line is 1.`;
      shown.replaceChildren(table("Ratios that fit the filters", HEAD, found.map(cells)));
      window.lkPlot(plot, figure(found.filter((row) => row.ratio !== null), data.targets, state));
    }

    function button(text, act) {
      const made = element("button", { type: "button", class: "lk-button" }, text);
      made.addEventListener("click", act);
      files.append(made, " ");
    }
    button("CSV of these rows", () =>
      save("livekv-ratios.csv", "text/csv", csv(FIELDS, chosen(rows, state).map((row) => FIELDS.map((name) => row[name])))));
    button("PNG of the chart", () => window.Plotly.downloadImage(plot, { format: "png", filename: "livekv-ratios", width: 1200, height: 700 }));
    files.append(element("a", { class: "lk-button", href: new URL("downloads/ratios.parquet", root).href, download: "" }, "Parquet of every ratio"));

    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("input", function (event) {
      state[event.target.name] = event.target.value;
      writeState(state, DEFAULTS);
      refresh();
    });
    refresh();
  });
})();
