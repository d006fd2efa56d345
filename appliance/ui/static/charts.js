// The overview's charts: fifteen minutes, a point a second, drawn by uPlot from what the page's stream brings.
"use strict";

const KEPT_POINTS = 900;
const HEIGHT = 150;
const LEAST_SPAN_S = 120;

// A custom property as a colour that a canvas takes: `light-dark()` is resolved on an element only.
function colour(name) {
  const probe = document.createElement("i");
  probe.className = "hidden";
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

const seconds = (value) => (value == null ? "–" : value < 1 ? `${(value * 1000).toFixed(0)} ms` : `${value.toFixed(2)} s`);
const whole = (value) => (value == null ? "–" : Math.round(value).toLocaleString("en"));
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hour12: false });
const ratio = (value) => (value == null ? "–" : `${(value * 100).toFixed(1)} %`);

const MINUTES = [60, 120, 300, 600];
const WHOLE_STEPS = Array.from({ length: 24 }, (_, index) => [1, 2, 5][index % 3] * 10 ** Math.floor(index / 3));

// Columns are those of `pulse.Point.row`: time, prefill, decode, running, queued, used, cached, refused, p50, p99. `least` is how far up
// an axis reaches while nothing happens.
const CHARTS = {
  tokens: { columns: [2, 1], labels: ["generated", "prefilled"], write: whole, steps: WHOLE_STEPS, least: 10 },
  ttft: { columns: [9, 8], labels: ["P99", "P50"], write: seconds, least: 0.1 },
  load: { columns: [3, 4], labels: ["running", "queued"], write: whole, steps: WHOLE_STEPS, least: 4 },
  memory: { columns: [5, 6], labels: ["used", "cached"], write: ratio, max: 1 },
};

// Values by series: of the newest point, or of the one under the pointer.
const rowOf = (chart, spec, index = chart.data[0].length - 1) => spec.columns.map((_, series) => chart.data[series + 1][index]);

// The caption's legend: which line is which, and its value. It has its room before there is a value.
function name(element, spec, values) {
  const legend = element.parentElement.querySelector(".lines");
  legend.replaceChildren(...spec.labels.map((label, index) => {
    const line = document.createElement("span");
    line.className = index ? "line weak" : "line";
    const value = document.createElement("b");
    value.textContent = spec.write(values[index]);
    line.append(label, " ", value);
    return line;
  }));
}

function draw(element, spec, rows) {
  const [strong, weak, soft, line] = ["used", "line-strong", "soft", "line"].map(colour);
  const axis = { stroke: soft, grid: { stroke: line, width: 1 }, ticks: { show: false }, font: "11px system-ui", gap: 4 };
  const options = {
    width: element.clientWidth,
    height: HEIGHT,
    padding: [8, 4, 0, 0],
    cursor: { y: false, points: { size: 5 } },
    scales: { x: { time: true, range: (_, oldest, newest) => [Math.max(newest - KEPT_POINTS, Math.min(oldest, newest - LEAST_SPAN_S)), newest] }, y: { range: (_, __, top) => [0, spec.max ?? Math.max(top * 1.1, spec.least)] } },
    axes: [{ ...axis, space: 70, size: 22, incrs: MINUTES, values: (_, ticks) => ticks.map((tick) => clock.format(new Date(tick * 1000))) }, { ...axis, size: 52, incrs: spec.steps, values: (_, ticks) => ticks.map(spec.write) }],
    series: [
      {},
      ...spec.labels.map((label, index) => ({
        label, stroke: index ? weak : strong, width: index ? 1.25 : 1.75, points: { show: false },
      })),
    ],
    legend: { show: false },
    hooks: { setLegend: [(chart) => name(element, spec, chart.cursor.idx == null ? rowOf(chart, spec) : rowOf(chart, spec, chart.cursor.idx))] },
  };
  return new uPlot(options, columnsOf(spec, rows), element);
}

const columnsOf = (spec, rows) => [0, ...spec.columns].map((column) => rows.map((row) => row[column]));

(() => {
  let rows = [];
  const drawn = new Map();
  const show = () => {
    for (const element of document.querySelectorAll("[data-chart]")) {
      const spec = CHARTS[element.dataset.chart];
      const chart = drawn.get(element);
      if (chart) chart.setData(columnsOf(spec, rows));
      else drawn.set(element, draw(element, spec, rows));
      name(element, spec, rowOf(drawn.get(element), spec));
    }
  };
  const redraw = () => {
    for (const chart of drawn.values()) chart.destroy();
    drawn.clear();
    if (rows.length) show();
  };
  document.addEventListener("fairlane:points", (event) => {
    const points = event.detail;
    const last = rows.length ? rows[rows.length - 1][0] : 0;
    rows = (points.length > 60 ? points : [...rows, ...points.filter((row) => row[0] > last)]).slice(-KEPT_POINTS);
    show();
  });
  new ResizeObserver(() => {
    for (const [element, chart] of drawn) if (chart.width !== element.clientWidth) chart.setSize({ width: element.clientWidth, height: HEIGHT });
  }).observe(document.getElementById("main"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
})();
