/** The base of all elements. They render into the page itself, so one style sheet holds for all of them. */
import { LitElement } from "lit";

/** @typedef {import("lit").ReactiveController} ReactiveController */

export class Element extends LitElement {
  createRenderRoot() {
    return this;
  }
}

/**
 * Render the element again when one of these targets reports a change.
 * @implements {ReactiveController}
 */
export class Follow {
  /** @param {import("lit").ReactiveControllerHost} host @param {[EventTarget, string][]} sources */
  constructor(host, ...sources) {
    this.sources = sources;
    this.render = () => host.requestUpdate();
    host.addController(this);
  }
  hostConnected() {
    for (const [target, kind] of this.sources) target.addEventListener(kind, this.render);
  }
  hostDisconnected() {
    for (const [target, kind] of this.sources) target.removeEventListener(kind, this.render);
  }
}

/**
 * Render the element again at intervals, for ages that grow while nothing else happens.
 * @implements {ReactiveController}
 */
export class Tick {
  /** @param {import("lit").ReactiveControllerHost} host @param {number} everyMs */
  constructor(host, everyMs) {
    this.host = host;
    this.everyMs = everyMs;
    host.addController(this);
  }
  hostConnected() {
    this.timer = setInterval(() => document.hidden || this.host.requestUpdate(), this.everyMs);
  }
  hostDisconnected() {
    clearInterval(this.timer);
  }
}
