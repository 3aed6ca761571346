// Two published runs side by side: what differs first, then the grades that were computed for the pair.
(function () {
  "use strict";

  const { root, element, onPage, load, readState, writeState, field, select, table } = window.lk;
  const said = (value) => value === undefined || value === null ? "not recorded" : String(value);

  // The same rule, names and sentence as pipelines/analysis/comparison.py; the names come from there.
  function refusal(data, one, other) {
    for (const [names, what] of [[data.machine, "different machines"], [data.model, "different models"]]) {
      for (const name of names) {
        if (one.facts[name] !== other.facts[name]) {
          return `${what}: ${name} is ${said(one.facts[name])} in ${one.id} and ${said(other.facts[name])} in ${other.id}; ${data.futile}`;
        }
      }
    }
    return "";
  }

  function differing(one, other) {
    const names = [...new Set([...Object.keys(one.facts), ...Object.keys(other.facts)])].sort();
    return names.filter((name) => one.facts[name] !== other.facts[name]);
  }

  function graded(data, one, other) {
    const refused = refusal(data, one, other);
    if (refused) return [element("p", { class: "lk-problem" }, "Not compared: " + refused + ".")];
    const pair = data.pairs.find((item) => item.first === one.id && item.second === other.id);
    if (!pair) {
      const flipped = data.pairs.some((item) => item.first === other.id && item.second === one.id);
      return [element("p", {}, flipped ? "Choose the earlier run first: " : "Not computed for this page: ",
        element("code", {}, `nox -s compare -- ${one.id} ${other.id}`))];
    }
    const rows = pair.lines.map((line) => {
      const mark = element("span", { class: "lk-badge", "data-state": line.grade }, line.grade);
      return [line.point, line.arm, line.ratio.toFixed(3), line.interval, line.blocks, mark];
    });
    return [table("Whole session: time of the second run / time of the first",
      ["Prefix / hops", "Arm", "Second / first", "95 % interval", "Blocks", "Grade"], rows)];
  }

  onPage("lk-compare", async function (place) {
    const data = await load(place.dataset.source);
    if (data.runs.length < 2) return;
    const first = data.pairs.length ? data.pairs[0] : { first: data.runs[1].id, second: data.runs[0].id };
    const defaults = { first: first.first, second: first.second };
    const state = readState(defaults, (_, value) => data.runs.some((run) => run.id === value));
    const items = data.runs.map((run) => [run.id, run.title]);
    const form = element("form", { class: "lk-form", "aria-label": "Two runs" },
      field("First run", select("lk-compare-first", items, state.first)),
      field("Second run", select("lk-compare-second", items, state.second)));
    const shown = element("div", { "aria-live": "polite" });
    place.replaceChildren(form, shown);

    function refresh() {
      const [one, other] = [state.first, state.second].map((id) => data.runs.find((run) => run.id === id));
      if (one === other) {
        shown.replaceChildren(element("p", {}, "Choose two different runs."));
        return;
      }
      const names = differing(one, other);
      const link = (run) => element("a", { href: new URL(`runs/${run.page}/`, root).href }, run.id);
      const around = names.length ? table("What differs", ["", one.id, other.id],
        names.map((name) => [name, said(one.facts[name]), said(other.facts[name])])) :
        element("p", {}, "Nothing differs around the two runs.");
      shown.replaceChildren(element("p", {}, link(one), " and ", link(other)), around, ...graded(data, one, other));
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
