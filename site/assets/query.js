// SQL in the browser: DuckDB-WASM from this site, loaded on a click that names its size. The file is
// fetched whole and opened read-only; results are shown as text.
(function () {
  "use strict";

  const { root, element, onPage, field, select, table, save, csv } = window.lk;
  const MOST_ROWS = 1000;
  const BASE = "assets/vendor/duckdb/";
  let engine = null;

  async function loaded() {
    const duckdb = await import(new URL(BASE + "duckdb.js", root).href);
    const worker = new Worker(new URL(BASE + "duckdb-browser-eh.worker.js", root));
    const database = new duckdb.AsyncDuckDB(new duckdb.VoidLogger(), worker);
    try {
      await database.instantiate(new URL(BASE + "duckdb-eh.wasm", root).href);
      const answer = await fetch(new URL("downloads/results.duckdb", root));
      if (!answer.ok) throw new Error("the published database is missing");
      await database.registerFileBuffer("results.duckdb", new Uint8Array(await answer.arrayBuffer()));
      await database.open({
        path: "results.duckdb",
        accessMode: duckdb.DuckDBAccessMode.READ_ONLY,
        query: { castBigIntToDouble: true, castDecimalToDouble: true, castTimestampToDate: true },
      });
      const connection = await database.connect();
      // Extensions would come from another host.
      await connection.query("set autoinstall_known_extensions = false");
      await connection.query("set autoload_known_extensions = false");
      return { database, connection };
    } catch (error) {
      worker.terminate();
      throw error;
    }
  }

  function text(value) {
    if (value === null || value === undefined) return "NULL";
    if (value instanceof Date) return value.toISOString();
    if (typeof value === "object") {
      return JSON.stringify(value, (_, inner) => typeof inner === "bigint" ? String(inner) : inner);
    }
    return String(value);
  }

  async function ask(connection, sql) {
    const stream = await connection.send(sql, true);
    const rows = [];
    let names = [];
    for await (const batch of stream) {
      names = batch.schema.fields.map((item) => item.name);
      for (const row of batch) {
        if (rows.length >= MOST_ROWS) return { names, rows, more: true };
        rows.push(names.map((name) => text(row[name])));
      }
    }
    if (!names.length && stream.schema) names = stream.schema.fields.map((item) => item.name);
    return { names, rows, more: false };
  }

  onPage("lk-query", function (place) {
    const examples = JSON.parse(place.dataset.examples);
    const asked = new URLSearchParams(location.search).get("sql");
    const first = asked === null ? examples[0].sql : asked;
    const sql = element("textarea", { id: "lk-query-sql", rows: "6", spellcheck: "false", autocapitalize: "off", autocomplete: "off" });
    sql.value = first;
    const titles = [["", "Choose a question"], ...examples.map((one, index) => [String(index), one.title])];
    const picker = select("lk-query-example", titles, "");
    const megabytes = Math.round(Number(place.dataset.bytes) / 1e6);
    const run = element("button", { type: "submit", class: "lk-button" });
    const stop = element("button", { type: "button", class: "lk-button", disabled: "" }, "Stop");
    const keep = element("button", { type: "button", class: "lk-button", disabled: "" }, "CSV of this answer");
    const said = element("p", { role: "status" });
    const shown = element("div", {});
    const form = element("form", { class: "lk-stack" }, field("A question", picker), field("SQL", sql),
      element("p", { class: "lk-buttons" }, run, " ", stop, " ", keep));
    place.replaceChildren(form, said, shown);
    let answer = null;

    function named() {
      run.textContent = engine ? "Ask" : `Load DuckDB (${megabytes} MB, less when compressed) and ask`;
    }

    function busy(now) {
      run.disabled = now;
      stop.disabled = !now;
      keep.disabled = now || !answer;
    }

    function end() {
      if (engine) engine.then((held) => held.database.terminate(), () => {});
      engine = null;
      named();
    }

    async function go() {
      busy(true);
      shown.replaceChildren();
      answer = null;
      said.textContent = engine ? "Asking\u2026" : "Loading\u2026";
      const mine = engine = engine || loaded();
      try {
        const held = await mine;
        named();
        said.textContent = "Asking\u2026";
        const started = performance.now();
        answer = await ask(held.connection, sql.value);
        const took = Math.round(performance.now() - started);
        said.textContent = `${answer.more ? `the first ${MOST_ROWS} rows` : `${answer.rows.length} row(s)`} in ${took} ms`;
        shown.replaceChildren(table("Answer", answer.names, answer.rows));
      } catch (error) {
        if (mine !== engine) return; // stopped: said already
        said.textContent = "DuckDB says: " + error.message;
        mine.catch(() => { engine = null; named(); });
      } finally {
        busy(false);
      }
    }

    form.addEventListener("submit", function (event) {
      event.preventDefault();
      const query = sql.value === examples[0].sql ? "" : "?sql=" + encodeURIComponent(sql.value);
      history.replaceState(history.state, "", location.pathname + query + location.hash);
      go();
    });
    picker.addEventListener("input", () => { if (picker.value !== "") sql.value = examples[Number(picker.value)].sql; });
    stop.addEventListener("click", function () {
      said.textContent = "Stopped; the next question loads DuckDB again.";
      end();
      busy(false);
    });
    keep.addEventListener("click", () => save("livekv-answer.csv", "text/csv", csv(answer.names, answer.rows)));
    named();
    busy(false);
  });
})();
