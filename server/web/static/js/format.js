// Numbers as people read them.

const NUMBER = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export const whole = (value) => NUMBER.format(value);

export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (value >= 1024 && at < units.length - 1) {
    value /= 1024;
    at += 1;
  }
  return `${value >= 100 || at === 0 ? value.toFixed(0) : value.toFixed(1)} ${units[at]}`;
}

export function seconds(value) {
  if (value === undefined || value === null) return "–";
  if (value < 0.001) return `${(value * 1e6).toFixed(0)} µs`;
  if (value < 1) return `${(value * 1000).toFixed(value < 0.01 ? 1 : 0)} ms`;
  return value < 60 ? `${value.toFixed(value < 10 ? 2 : 1)} s` : `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`;
}

export const rate = (value) => (value >= 100 ? value.toFixed(0) : value.toFixed(1));

export const plural = (count, word) => `${whole(count)} ${word}${count === 1 ? "" : "s"}`;
