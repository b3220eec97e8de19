/** The pipeline as a graph: streams, windows, sinks. dagre places the boxes; the page draws them. */
import { Graph, layout } from "@dagrejs/dagre";
import { html, nothing, svg } from "lit";
import { duration } from "../core/format.js";
import { Element } from "./base.js";

/** @typedef {{id: string, kind: string, title: string, lines: string[], tone?: string, value?: string}} Box */
/** @typedef {{from: string, to: string, label: string}} Edge */

const WIDTH = 200;

/**
 * @param {any} graph the answer of `GET /v1/jobs/{name}/graph`
 * @param {any} job
 * @returns {{boxes: Box[], edges: Edge[]}}
 */
export function boxesOf(graph, job) {
  /** @type {Box[]} */
  const boxes = [];
  /** @type {Edge[]} */
  const edges = [];
  for (const input of graph.inputs) {
    boxes.push({
      id: `stream:${input.stream}`,
      kind: "stream",
      title: input.stream,
      lines: [`${input.partitions} partitions · ${input.format}`, `delay ${duration(input.event_time.delay_ms)}`],
    });
  }
  for (const stage of [...graph.record_stages, ...graph.stages]) {
    const isWindow = "windows" in stage;
    const by = Object.keys(stage.by ?? {}).join(", ");
    boxes.push({
      id: `stage:${stage.name}`,
      kind: stage.join ? "join" : isWindow ? "window" : "records",
      title: stage.name,
      lines: [
        isWindow ? (/^\d/.test(stage.windows) ? `windows of ${stage.windows}` : stage.windows) : `${Object.keys(stage.fields).length} fields`,
        by ? `by ${by}` : isWindow ? "one group" : "each record",
      ],
      value: `${new Intl.NumberFormat("en", { notation: "compact" }).format(job.counts.results[stage.name] ?? 0)} results`,
    });
    const steps = stage.steps_before.length;
    for (const name of String(stage.from).split(", ")) {
      const from = graph.inputs.some((/** @type {any} */ one) => one.stream === name) ? `stream:${name}` : `stage:${name}`;
      edges.push({ from, to: `stage:${stage.name}`, label: steps ? `${steps} ${steps === 1 ? "step" : "steps"}` : "" });
    }
    for (const emit of stage.emits) {
      const [kind, ...rest] = emit.split(": ");
      const id = `sink:${emit}`;
      const name = rest.join(": ").split(",")[0];
      if (!boxes.some((box) => box.id === id)) boxes.push({ id, kind: "sink", title: name, lines: [kind] });
      edges.push({ from: `stage:${stage.name}`, to: id, label: "" });
    }
  }
  return { boxes, edges };
}

export class PipelineGraph extends Element {
  static properties = { graph: { attribute: false }, job: { attribute: false } };

  constructor() {
    super();
    /** @type {any} */ this.graph = null;
    /** @type {any} */ this.job = null;
  }

  render() {
    if (!this.graph || !this.job) return nothing;
    const { boxes, edges } = boxesOf(this.graph, this.job);
    const known = new Set(boxes.map((box) => box.id));
    const drawn = edges.filter((edge) => known.has(edge.from) && known.has(edge.to));
    const plan = new Graph().setGraph({ rankdir: "LR", nodesep: 18, ranksep: 56, marginx: 2, marginy: 2 });
    plan.setDefaultEdgeLabel(() => ({}));
    for (const box of boxes) plan.setNode(box.id, { width: WIDTH, height: 47 + 17 * (box.lines.length + (box.value ? 1 : 0)) });
    for (const edge of drawn) plan.setEdge(edge.from, edge.to);
    layout(plan);
    const { width = 0, height = 0 } = plan.graph();
    const summary = drawn.map((edge) => `${edge.from.split(":")[1]} to ${edge.to.split(":").slice(1).join(":")}`).join("; ");
    return html`<div class="graph" tabindex="0" role="img" aria-label="Pipeline: ${summary}">
      <svg width=${width} height=${height} viewBox="0 0 ${width} ${height}">
        ${drawn.map((edge) => {
          const points = plan.edge(edge.from, edge.to).points;
          const [first, last] = [points[0], points[points.length - 1]];
          const half = (last.x - first.x) / 2;
          return svg`<path class="edge" d="M${first.x},${first.y} C${first.x + half},${first.y} ${last.x - half},${last.y} ${last.x - 4},${last.y}"></path>
            <path class="tip" d="M${last.x - 7},${last.y - 4} L${last.x},${last.y} L${last.x - 7},${last.y + 4}"></path>
            ${edge.label ? svg`<text class="on-edge" x=${first.x + half} y=${(first.y + last.y) / 2 - 6}>${edge.label}</text>` : nothing}`;
        })}
        ${boxes.map((box) => {
          const { x, y, height: tall } = plan.node(box.id);
          const [left, top] = [x - WIDTH / 2, y - tall / 2];
          return svg`<g class="box ${box.kind}" transform="translate(${left} ${top})">
            <rect width=${WIDTH} height=${tall} rx="8"></rect>
            <rect class="accent" x="0" y="10" width="3" height=${tall - 20} rx="1.5"></rect>
            <text class="kind" x="14" y="19">${box.kind}</text>
            <text class="title" x="14" y="36">${clip(box.title, 25)}<title>${box.title}</title></text>
            ${box.lines.map((line, at) => svg`<text x="14" y=${53 + 17 * at}>${clip(line, 30)}<title>${line}</title></text>`)}
            ${box.value ? svg`<text class="value" x="14" y=${53 + 17 * box.lines.length}>${box.value}</text>` : nothing}
          </g>`;
        })}
      </svg>
    </div>`;
  }
}
customElements.define("sl-graph", PipelineGraph);

/** @param {string} text @param {number} most */
const clip = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
