// Numbers as panels write them, by Grafana's names of units.
"use strict";

const units = (() => {
  const digits = (value) => (Number.isInteger(value) ? String(value) : Math.abs(value) >= 100 ? value.toFixed(0) : Math.abs(value) >= 10 ? value.toFixed(1) : Math.abs(value) >= 0.01 ? value.toFixed(2) : value.toPrecision(2));
  const scaled = (value, sizes) => {
    const [unit, size] = sizes.find(([, least]) => Math.abs(value) >= least) ?? [sizes.at(-1)[1] === 1 ? sizes.at(-1)[0] : "", 1];
    return digits(value / size) + unit;
  };
  const short = (value) => scaled(value, [["G", 1e9], ["M", 1e6], ["k", 1e3]]);
  const seconds = (value) => {
    const size = Math.abs(value);
    if (size === 0) return "0 s";
    if (size < 1e-3) return `${digits(value * 1e6)} µs`;
    if (size < 1) return `${digits(value * 1e3)} ms`;
    return size < 120 ? `${digits(value)} s` : size < 7200 ? `${digits(value / 60)} min` : `${digits(value / 3600)} h`;
  };
  const writers = {
    s: seconds,
    percentunit: (value) => `${digits(value * 100)} %`,
    reqps: (value) => `${short(value)} /s`,
    bytes: (value) => scaled(value, [[" GiB", 2 ** 30], [" MiB", 2 ** 20], [" KiB", 2 ** 10], [" B", 1]]),
    bool_yes_no: (value) => (value ? "yes" : "no"),
    none: digits,
  };
  return {
    write(unit, value) {
      if (value === null || value === undefined) return "–";
      if (unit.startsWith("suffix:")) return `${short(value)} ${unit.slice(7).trim()}`;
      return (writers[unit] ?? short)(value);
    },
  };
})();
