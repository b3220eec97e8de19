/** A chart of series over time, drawn by uPlot. Colours and fonts come from the style sheet. */
import uPlot from "uplot";
import { html } from "lit";
import { route } from "../core/route.js";
import { exact, time } from "../core/format.js";
import { Element, Follow } from "./base.js";

/** @typedef {{label: string, points: [number, number][]}} Series */
export const COLORS = 8;
/** Lines of the series after the first 8, 16, and so on, which have the same colours. */
const DASHES = [[], [7, 4], [2, 3], [10, 3, 2, 3]];

export class Chart extends Element {
  static properties = {
    series: { attribute: false },
    stepMs: { attribute: false },
    label: { type: String },
    shown: { attribute: false },
    fill: { type: Boolean },
    tall: { type: Number },
  };

  constructor() {
    super();
    /** @type {Series[]} */ this.series = [];
    this.stepMs = 0;
    this.label = "";
    this.fill = false;
    /** height in pixels; 0: by the width */ this.tall = 0;
    /** @type {Set<string> | null} labels that are drawn; null: all */
    this.shown = null;
    /** @type {uPlot | null} */ this.plot = null;
    this.shape = "";
    this.theme = new Follow(this, [document, "theme"]);
    this.zone = new Follow(this, [route, "change"]);
  }

  connectedCallback() {
    super.connectedCallback();
    this.sizes = new ResizeObserver(() => this.#resize());
    this.sizes.observe(this);
    this.requestUpdate();
  }

  disconnectedCallback() {
    super.disconnectedCallback();
    this.sizes?.disconnect();
    this.plot?.destroy();
    this.plot = null;
    this.shape = "";
  }

  render() {
    return html`<div class="plot" role="img" aria-label=${this.label}></div>
      <i class="probe" hidden></i>`;
  }

  #resize() {
    const width = this.clientWidth;
    if (this.plot && width && this.plot.width !== width) this.plot.setSize({ width, height: this.#height() });
  }

  #height() {
    return this.tall || Math.max(160, Math.min(320, Math.round(this.clientWidth * 0.36)));
  }

  updated() {
    // An update can be due when the view is left. A plot that is drawn then would never be destroyed, and its listeners keep the view.
    if (!this.isConnected) return;
    const place = /** @type {HTMLElement} */ (this.querySelector(".plot"));
    const styles = getComputedStyle(this);
    const probe = /** @type {HTMLElement} */ (this.querySelector(".probe"));
    /** The colour of the current theme. @param {string} name */
    const color = (name) => {
      probe.style.color = `var(${name})`;
      return getComputedStyle(probe).color;
    };
    const shape = [this.series.map((one) => one.label).join("|"), color("--text"), route.isUtc, this.fill].join("#");
    const data = columns(this.series, this.stepMs);
    if (this.plot && this.shape === shape) {
      this.plot.setData(/** @type {any} */ (data));
      this.#show();
      return;
    }
    this.plot?.destroy();
    this.shape = shape;
    const axis = {
      stroke: color("--muted"),
      font: `11px ${styles.fontFamily}`,
      grid: { stroke: color("--line"), width: 1 },
      ticks: { show: false },
    };
    this.plot = new uPlot(
      {
        width: this.clientWidth || 600,
        height: this.#height(),
        tzDate: (seconds) => (route.isUtc ? uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC") : new Date(seconds * 1000)),
        legend: { show: false },
        cursor: { points: { size: 7 }, y: false },
        padding: [8, 28, 0, 0],
        axes: [
          { ...axis, space: 64, size: 30, values: (_, ticks, __, ___, step) => ticks.map((tick) => clock(tick * 1000, step)) },
          { ...axis, size: 58, values: (_, ticks) => ticks.map((tick) => exact(tick)) },
        ],
        series: [
          {},
          ...this.series.map((one, at) => ({
            label: one.label,
            stroke: color(`--series-${(at % COLORS) + 1}`),
            width: 1.5,
            dash: DASHES[Math.floor(at / COLORS) % DASHES.length],
            fill: this.fill && at === 0 ? color("--series-fill") : undefined,
            points: { show: data[0].length < 3 },
          })),
        ],
        hooks: {
          setCursor: [
            (plot) => this.dispatchEvent(new CustomEvent("point", { detail: plot.cursor.idx == null ? null : plot.data[0][plot.cursor.idx] * 1000 })),
          ],
        },
      },
      /** @type {any} */ (data),
      place,
    );
    this.#show();
  }

  #show() {
    this.series.forEach((one, at) => {
      const isShown = this.shown === null || this.shown.has(one.label);
      if (this.plot && this.plot.series[at + 1].show !== isShown) this.plot.setSeries(at + 1, { show: isShown });
    });
  }
}
customElements.define("sl-chart", Chart);

/** The time at a tick: a date where the day begins, or where the ticks are days apart. @param {number} ms @param {number} stepS */
function clock(ms, stepS) {
  const minute = time(ms, "minute");
  return stepS >= 86_400 || minute === "00:00" ? time(ms).slice(5, 10) : stepS < 60 ? time(ms, "time") : minute;
}

/**
 * One column of times (seconds) and one of values for each series; a step without a window is a gap.
 * @param {Series[]} series @param {number} stepMs
 * @returns {(number | null)[][]}
 */
export function columns(series, stepMs) {
  const found = new Set(series.flatMap((one) => one.points.map(([at]) => at)));
  let starts = [...found].sort((a, b) => a - b);
  if (stepMs > 0 && starts.length > 1) {
    const all = [];
    for (let at = starts[0]; at <= starts[starts.length - 1] && all.length < 5_000; at += stepMs) all.push(at);
    if (all.length < 5_000 && starts.every((at) => (at - starts[0]) % stepMs === 0)) starts = all;
  }
  const rows = series.map((one) => {
    const values = new Map(one.points);
    return starts.map((at) => values.get(at) ?? null);
  });
  return [starts.map((at) => at / 1000), ...rows];
}
