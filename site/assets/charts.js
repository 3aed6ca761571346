// Draws every .lk-plot of the page. Instant navigation swaps pages without running scripts, so
// drawing hangs on the theme's document$; the chart library is loaded once, and only where needed.
(function () {
  "use strict";

  const root = new URL("../", document.currentScript.src);
  const CONFIG = {
    displaylogo: false,
    responsive: true,
    showSendToCloud: false,
    plotlyServerURL: "",
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "toggleSpikelines"],
  };
  let loading = null;
  let stylesKept = false;

  function library() {
    if (window.Plotly) return Promise.resolve(window.Plotly);
    loading = loading || new Promise(function (resolve, reject) {
      const script = document.createElement("script");
      script.src = new URL("assets/vendor/plotly.min.js", root).href;
      script.onload = () => resolve(window.Plotly);
      script.onerror = () => reject(new Error("the chart library is missing"));
      document.head.append(script);
    });
    return loading;
  }

  // Instant navigation drops plotly's style node from the head; adopted sheets stay.
  function keepStyles() {
    if (stylesKept) return;
    const node = document.querySelector("style[id^='plotly.js-style']");
    if (!node || !node.sheet) return;
    const sheet = new CSSStyleSheet();
    for (const rule of node.sheet.cssRules) sheet.insertRule(rule.cssText, sheet.cssRules.length);
    document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
    stylesKept = true;
  }

  function colour(name) {
    return getComputedStyle(document.body).getPropertyValue(name).trim();
  }

  function toned(trace) {
    const tone = colour("--lk-" + ((trace.meta && trace.meta.tone) || "ours-1"));
    return Object.assign({}, trace, {
      marker: Object.assign({}, trace.marker, { color: tone }),
      line: Object.assign({}, trace.line, { color: tone }),
      error_y: trace.error_y && Object.assign({}, trace.error_y, { color: tone }),
    });
  }

  function laidOut(layout) {
    const ink = colour("--md-default-fg-color");
    const grid = colour("--md-default-fg-color--lightest");
    const axis = (given) => Object.assign({ gridcolor: grid, zeroline: false, automargin: true }, given);
    return Object.assign({}, layout, {
      autosize: true,
      font: { color: ink, family: getComputedStyle(document.body).fontFamily, size: 13 },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      margin: { l: 55, r: 15, t: 15, b: 60 },
      legend: { orientation: "h", y: -0.22, yanchor: "top" },
      xaxis: axis(layout.xaxis),
      yaxis: axis(layout.yaxis),
      shapes: (layout.shapes || []).map((shape) =>
        Object.assign({}, shape, { line: Object.assign({ color: ink }, shape.line) })),
    });
  }

  async function draw(place) {
    if (place.dataset.state) return;
    place.dataset.state = "loading";
    try {
      const address = new URL(place.dataset.figure, root);
      const [plotly, answer] = await Promise.all([library(), fetch(address)]);
      if (!answer.ok) throw new Error("the figure is missing");
      await show(plotly, place, await answer.json());
    } catch (error) {
      fail(place, error);
    }
  }

  async function show(plotly, place, figure) {
    place.lkFigure = figure;
    await plotly.react(place, figure.data.map(toned), laidOut(figure.layout), CONFIG);
    keepStyles();
    place.dataset.state = "drawn";
  }

  function fail(place, error) {
    place.dataset.state = "failed";
    place.style.height = "auto";
    place.textContent =
      "No chart: " + error.message + ". The table on this page holds the same numbers.";
  }

  // For pages that make their figure themselves: draw it now, and again whenever it changes.
  window.lkPlot = async function (place, figure) {
    place.dataset.state = place.dataset.state || "loading";
    try {
      await show(await library(), place, figure);
    } catch (error) {
      fail(place, error);
    }
  };

  function recolour() {
    for (const place of document.querySelectorAll(".lk-plot[data-state='drawn']")) {
      window.Plotly.react(place, place.lkFigure.data.map(toned), laidOut(place.lkFigure.layout), CONFIG);
    }
  }

  function start() {
    document.querySelectorAll(".lk-plot[data-figure]").forEach(draw);
  }

  new MutationObserver(recolour).observe(document.body, {
    attributes: true,
    attributeFilter: ["data-md-color-scheme"],
  });
  if (window.document$) window.document$.subscribe(start);
  else start();
})();
