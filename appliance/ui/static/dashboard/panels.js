// One drawing function for each kind of panel: (panel, answer, times) into `panel.picture`. A panel is {figure, picture, unit, ...}.
"use strict";

const panels = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  const NUM_COLOURS = 8;
  const HEAT_LEVELS = 6;
  const BYTE_STEPS = Array.from({ length: 40 }, (_, power) => 2 ** power);
  const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hour12: false });
  const precise = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
  const day = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric" });

  function node(name, attributes = {}, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  }

  function drawn(name, attributes = {}, text = "") {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text) made.textContent = text;
    return made;
  }

  // A custom property as a colour that a canvas takes: `light-dark()` is resolved on an element only.
  function colour(name) {
    const probe = node("i", { class: "hidden" });
    probe.style.color = `var(--${name})`;
    document.body.append(probe);
    const found = getComputedStyle(probe).color;
    probe.remove();
    return found;
  }

  // A time (seconds) as an axis over so many seconds needs it.
  const moment = (time, span) => (span > 2e5 ? day : span > 600 ? clock : precise).format(new Date(time * 1000));
  const state = (panel, value) => panel.thresholds.filter(([from]) => from === null || value >= from).pop()?.[1] ?? "good";
  const last = (values) => values.findLast((value) => value !== null) ?? null;
  const present = (values) => values.filter((value) => value !== null);
  const write = (panel, value) => units.write(panel.unit, value);
  const topOf = (panel, answer) => panel.max ?? Math.max(...answer.lines.flatMap((line) => present(line.values)), 0);

  // ---- the course of time

  function columns(panel, answer, times) {
    if (!panel.isStacked) return [times, ...answer.lines.map((line) => line.values)];
    const sums = times.map((_, index) => (answer.lines.some((line) => line.values[index] !== null) ? 0 : null));
    return [times, ...answer.lines.map((line) => line.values.map((value, index) => (sums[index] === null ? null : (sums[index] += value ?? 0))))];
  }

  const names = (answer) => answer.lines.map((line) => line.name).join("\n");

  function timeseries(panel, answer, times) {
    const key = names(answer);
    if (panel.chart && panel.key === key) {
      panel.answer = answer;
      panel.chart.setData(columns(panel, answer, times));
    } else {
      panel.chart?.destroy();
      panel.answer = answer;
      panel.key = key;
      const chart = node("div", { class: "plot" });
      panel.legend = node("div", { class: "values", tabindex: "0", role: "region", "aria-label": `Values of ${panel.title}` });
      panel.picture.replaceChildren(chart, panel.legend);
      panel.chart = new uPlot(options(panel, chart, answer), columns(panel, answer, times), chart);
    }
    legend(panel, null);
  }

  // Values without a neighbour, which no line reaches: they are drawn as points.
  function alone(chart, series) {
    const values = chart.data[series];
    const found = values.flatMap((value, index) => (value != null && values[index - 1] == null && values[index + 1] == null ? [index] : []));
    return found.length ? found : null;
  }

  function options(panel, element, answer) {
    const soft = colour("soft");
    const axis = { stroke: soft, grid: { stroke: colour("line"), width: 1 }, ticks: { show: false }, font: "11px system-ui", gap: 4 };
    const series = answer.lines.map((line, index) => {
      const stroke = colour(`line-${(index % NUM_COLOURS) + 1}`);
      const isTarget = line.name.endsWith("target");
      return {
        label: line.name, stroke, width: 1.5, dash: isTarget ? [5, 4] : undefined, points: { show: false, filter: alone }, spanGaps: false,
        fill: panel.isStacked ? stroke.replace("rgb(", "rgba(").replace(")", ", 0.3)") : undefined,
      };
    });
    return {
      width: element.clientWidth, height: element.clientHeight, padding: [8, 6, 0, 0], legend: { show: false },
      cursor: { y: false, points: { size: 5 }, sync: { key: "board" } },
      scales: { x: { time: true }, y: { range: (_, least, most) => [Math.min(0, least ?? 0), panel.max ?? most > 0 ? most * 1.1 : 1] } },
      axes: [
        { ...axis, space: 70, size: 22, values: (chart, ticks) => ticks.map((tick) => moment(tick, chart.scales.x.max - chart.scales.x.min)) },
        { ...axis, size: 62, incrs: panel.unit === "bytes" ? BYTE_STEPS : undefined, values: (_, ticks) => ticks.map((tick) => write(panel, tick)) },
      ],
      series: [{}, ...series],
      bands: panel.isStacked ? answer.lines.slice(1).map((_, index) => ({ series: [index + 2, index + 1] })) : [],
      hooks: { setCursor: [(chart) => legend(panel, chart.cursor.idx ?? null)] },
    };
  }

  // Mean, largest and newest value of each line; the one under the pointer while it is there.
  function legend(panel, index) {
    const rows = panel.answer.lines.map((line, number) => {
      const values = present(line.values);
      const mean = values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null;
      const shown = [mean, values.length ? Math.max(...values) : null, index === null ? last(line.values) : line.values[index]];
      const name = node("th", { scope: "row" }, node("span", { class: `key line-${(number % NUM_COLOURS) + 1}` }), line.name);
      return node("tr", {}, name, ...shown.map((value) => node("td", { class: "num" }, write(panel, value))));
    });
    const heads = ["mean", "max", index === null ? "last" : "here"].map((text) => node("th", { scope: "col", class: "num" }, text));
    const first = node("th", { scope: "col" }, panel.answer.left_out ? `${panel.answer.left_out} more lines are not drawn` : node("span", { class: "hidden" }, "line"));
    panel.legend.replaceChildren(node("table", {}, node("thead", {}, node("tr", {}, first, ...heads)), node("tbody", {}, ...rows)));
  }

  // ---- how it is now

  function stat(panel, answer) {
    const facts = answer.lines.map((line) => {
      const value = last(line.values);
      const name = answer.lines.length > 1 ? [node("span", { class: "soft" }, line.name)] : [];
      return node("p", { class: "big" }, node("strong", { class: state(panel, value) }, write(panel, value)), ...name);
    });
    panel.picture.replaceChildren(node("div", { class: "stats" }, ...facts));
  }

  function gauge(panel, answer) {
    const most = topOf(panel, answer) || 1;
    panel.picture.replaceChildren(node("div", { class: "gauges" }, ...answer.lines.map((line) => {
      const value = last(line.values);
      const part = Math.min(1, Math.max(0, value / most));
      const svg = drawn("svg", { viewBox: "0 0 120 76", role: "img", "aria-label": `${line.name}: ${write(panel, value)}` });
      svg.append(arc("rail", 1), arc(`arc-${state(panel, value)}`, part), drawn("text", { x: 60, y: 58, class: "middle" }, write(panel, value)));
      svg.append(drawn("text", { x: 60, y: 74, class: "under" }, line.name));
      return svg;
    })));
  }

  function arc(kind, part) {
    const angle = Math.PI * (1 - part);
    const to = `${(60 + 48 * Math.cos(angle)).toFixed(2)} ${(60 - 48 * Math.sin(angle)).toFixed(2)}`;
    return drawn("path", { class: `arc ${kind}`, d: `M 12 60 A 48 48 0 0 1 ${to}` });
  }

  function bargauge(panel, answer) {
    const most = topOf(panel, answer) || 1;
    const worstFirst = panel.thresholds[0]?.[1] === "bad" ? 1 : -1;
    const rows = answer.lines.map((line) => [line.name, last(line.values)]).sort((one, other) => worstFirst * (one[1] - other[1]));
    panel.picture.replaceChildren(scroller(panel, node("table", { class: "bars" }, node("tbody", {}, ...rows.map(([name, value]) => {
      const svg = drawn("svg", { class: "meter", viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true" });
      svg.append(drawn("rect", { class: "rail", width: 100, height: 8 }));
      svg.append(drawn("rect", { class: `bar-${state(panel, value)}`, width: Math.max(0, Math.min(100, (value / most) * 100)), height: 8 }));
      return node("tr", {}, node("th", { scope: "row" }, name), node("td", { class: "track" }, svg), node("td", { class: "num" }, write(panel, value)));
    })))));
  }

  function table(panel, answer) {
    const labels = [...new Set(answer.lines.flatMap((line) => Object.keys(line.labels)))];
    const heads = [...labels.map((label) => node("th", { scope: "col" }, label)), node("th", { scope: "col", class: "num" }, "value")];
    const rows = [...answer.lines].sort((one, other) => last(other.values) - last(one.values));
    panel.picture.replaceChildren(scroller(panel, node("table", {}, node("thead", {}, node("tr", {}, ...heads)), node("tbody", {}, ...rows.map((line) =>
      node("tr", {}, ...labels.map((label) => node("td", {}, line.labels[label] ?? "")), node("td", { class: "num" }, write(panel, last(line.values)))))))));
  }

  const scroller = (panel, child) => node("div", { class: "values tall", tabindex: "0", role: "region", "aria-label": `Values of ${panel.title}` }, child);

  // ---- how values are spread over time

  function heatmap(panel, answer, times) {
    const width = panel.picture.clientWidth - 8, height = panel.picture.clientHeight, left = 62, under = 22;
    const filled = answer.lines.map((line) => present(line.values).some((value) => value > 0));
    const lines = answer.lines.slice(Math.max(0, filled.indexOf(true) - 1), filled.lastIndexOf(true) + 2);
    const most = Math.max(...lines.flatMap((line) => present(line.values)), 1e-9);
    const total = (line) => present(line.values).reduce((sum, value) => sum + value, 0);
    const busiest = lines.reduce((one, other) => (total(other) > total(one) ? other : one));
    const svg = drawn("svg", { width, height, role: "img", "aria-label": `${panel.title}: most values lie up to ${bound(panel, busiest)}` });
    const cell = { width: (width - left) / times.length, height: (height - under) / lines.length };
    lines.forEach((line, row) => {
      const y = height - under - (row + 1) * cell.height;
      line.values.forEach((value, column) => {
        if (!value) return;
        const level = Math.max(1, Math.ceil(Math.sqrt(value / most) * HEAT_LEVELS));
        const rect = drawn("rect", { class: `heat-${level}`, x: (left + column * cell.width).toFixed(2), y: y.toFixed(2), width: (cell.width + 0.3).toFixed(2), height: (cell.height - 0.5).toFixed(2) });
        rect.append(drawn("title", {}, `${precise.format(new Date(times[column] * 1000))}, up to ${bound(panel, line)}: ${units.write("short", value)}`));
        svg.append(rect);
      });
      if (row % Math.ceil(lines.length / 8) === 0) svg.append(drawn("text", { x: left - 6, y: (y + cell.height / 2 + 4).toFixed(2), class: "tick end" }, bound(panel, line)));
    });
    const every = Math.max(1, Math.ceil(times.length / Math.max(2, Math.floor((width - left) / 70))));
    for (let column = Math.floor(every / 2); column < times.length - 1; column += every) {
      svg.append(drawn("text", { x: (left + column * cell.width).toFixed(2), y: height - 6, class: "tick" }, moment(times[column], times.at(-1) - times[0])));
    }
    panel.picture.replaceChildren(svg);
  }

  const bound = (panel, line) => (line.labels.le === "+Inf" ? "∞" : write(panel, Number(line.labels.le)));

  return {
    draw: { timeseries, stat, gauge, bargauge, table, heatmap },
    say(panel, text, kind = "empty") {
      panel.chart?.destroy();
      panel.chart = null;
      panel.picture.replaceChildren(node("p", { class: kind }, text));
    },
    resize(panel) {
      const plot = panel.picture.querySelector(".plot");
      if (plot && panel.chart.width !== plot.clientWidth) panel.chart.setSize({ width: plot.clientWidth, height: plot.clientHeight });
    },
    forget(panel) { panel.chart?.destroy(); panel.chart = null; },
  };
})();
