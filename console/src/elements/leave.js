/** The question before a view is left whose text isn't applied. */
import { html, nothing } from "lit";
import { route } from "../core/route.js";
import { Element, Follow } from "./base.js";

export class LeaveDialog extends Element {
  constructor() {
    super();
    this.follow = new Follow(this, [route, "held"]);
  }

  updated() {
    const dialog = this.querySelector("dialog");
    if (route.held !== null && dialog && !dialog.open) dialog.showModal();
  }

  render() {
    if (route.held === null) return nothing;
    return html`<dialog aria-labelledby="leave-title" @close=${() => route.stay()}>
      <form method="dialog">
        <h2 id="leave-title">Leave without applying?</h2>
        <p>The text in the editor has changed and isn't applied. It is lost when you leave.</p>
        <footer>
          <button class="primary">Stay</button>
          <button type="button" class="danger" @click=${() => route.leave()}>Leave</button>
        </footer>
      </form>
    </dialog>`;
  }
}
customElements.define("sl-leave", LeaveDialog);
