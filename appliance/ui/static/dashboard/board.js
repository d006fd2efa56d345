// A dashboard: asks for the numbers of all its panels at once, draws them, and asks again while the tab is seen.
"use strict";

(() => {
  const board = document.getElementById("board");
  const asOf = document.getElementById("as-of");
  const all = [...board.querySelectorAll(".chart-panel")].map((figure) => ({
    figure,
    id: Number(figure.dataset.id),
    title: figure.querySelector(".title").textContent,
    kind: figure.dataset.kind,
    unit: figure.dataset.unit,
    isStacked: figure.dataset.stacked === "yes",
    empty: figure.dataset.empty,
    max: figure.dataset.max === "" ? null : Number(figure.dataset.max),
    thresholds: JSON.parse(figure.dataset.thresholds),
    picture: figure.querySelector(".picture"),
    chart: null,
  }));
  let newest = null;

  function show(answer) {
    const byId = new Map(answer.panels.map((each) => [each.id, each]));
    for (const panel of all) {
      const found = byId.get(panel.id);
      if (found.error) panels.say(panel, found.error, "problem");
      else if (!found.lines.length) panels.say(panel, panel.empty);
      else panels.draw[panel.kind](panel, found, answer.times);
      panel.figure.dataset.state = found.error ? "error" : found.lines.length ? "drawn" : "empty";
      panel.figure.setAttribute("aria-busy", "false");
    }
  }

  async function load() {
    if (document.hidden) return;
    try {
      const response = await fetch(board.dataset.url, { headers: { accept: "application/json", "hx-request": "true" } });
      if (response.status === 401) return void location.reload();
      if (!response.ok) throw new Error(`the server answered status ${response.status}`);
      newest = await response.json();
      show(newest);
      asOf.textContent = `as of ${new Date().toLocaleTimeString(undefined, { hour12: false })}`;
    } catch (error) {
      asOf.textContent = `not updated: ${error.message}`;
    }
  }

  function redraw() {
    for (const panel of all) panels.forget(panel);
    if (newest) show(newest);
  }

  const choices = document.getElementById("choices");
  const lists = [...choices.querySelectorAll(".several")];
  choices.addEventListener("change", (event) => {
    const list = event.target.closest(".several");
    if (!list) return void choices.requestSubmit();
    // "all" is ticked alone; the list is sent when it is closed
    const [everything, ...values] = list.querySelectorAll("input");
    if (event.target === everything) for (const value of values) value.checked = false;
    everything.checked = !values.some((value) => value.checked);
  });
  for (const list of lists) {
    list.addEventListener("toggle", () => {
      if (!list.open && [...list.querySelectorAll("input")].some((each) => each.checked !== each.defaultChecked)) choices.requestSubmit();
    });
  }
  document.addEventListener("click", (event) => {
    for (const list of lists) if (!list.contains(event.target)) list.open = false;
  });
  document.addEventListener("keydown", (event) => {
    const open = event.key === "Escape" && lists.find((list) => list.open);
    if (!open) return;
    open.open = false;
    open.querySelector("summary").focus();
  });
  document.addEventListener("visibilitychange", load);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  let width = board.clientWidth;
  new ResizeObserver(() => {
    if (board.clientWidth === width) return;
    width = board.clientWidth;
    for (const panel of all) {
      if (panel.chart) panels.resize(panel);
      else if (panel.kind === "heatmap" && newest) show(newest);
    }
  }).observe(board);
  const refresh = Number(board.dataset.refresh);
  if (refresh) setInterval(load, refresh * 1000);
  load();
})();
