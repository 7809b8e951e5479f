// Sizes and durations as kafila-ctl says them; no line ends between a number and its unit.

const SPACE = "\u00a0";

/** Bytes in decimal units. */
export function size(bytes) {
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (bytes < 1000) return `${digits(bytes)}${SPACE}${unit}`;
    bytes /= 1000;
  }
  return `${digits(bytes)}${SPACE}TB`;
}

/** Seconds in the unit a person would choose. */
export function seconds(value) {
  if (value == null) return "unknown";
  if (value < 1e-3) return `${Math.round(value * 1e6)}${SPACE}µs`;
  if (value < 1) return `${digits(value * 1e3)}${SPACE}ms`;
  return `${digits(value)}${SPACE}s`;
}

/** A fraction as a percentage. */
export function percent(fraction) {
  return `${Math.round(fraction * 100)}%`;
}

/** Three significant digits. */
export function digits(value) {
  return String(Number(value.toPrecision(3)));
}
