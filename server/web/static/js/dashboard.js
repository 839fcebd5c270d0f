// The dashboard: the feed's numbers and pictures.

import { BlockMap } from "./blockmap.js";
import { byId, h, setText } from "./dom.js";
import { Feed } from "./feed.js";
import { plural, rate, seconds, whole } from "./format.js";
import { History } from "./history.js";
import { Palette } from "./palette.js";
import { Sparkline } from "./sparkline.js";
import { Timeline } from "./timeline.js";

const PERCENTILES = ["p50", "p90", "p99"];
const TABLE_STEPS = 30;
const MOST_USERS = 12; // rows; the rest is summed up in one

export class Dashboard {
  #paused = false;

  constructor() {
    this.history = new History();
    this.palette = new Palette(() => this.#show());
    this.feed = new Feed((snapshot) => this.#take(snapshot), (text) => setText(byId("feed-problem"), text));
    this.blocks = new BlockMap(byId("block-map"), this.palette);
    this.sparkline = new Sparkline(byId("sparkline"), this.palette);
    this.timeline = new Timeline(byId("timeline"), this.palette, this.history, (...told) => this.#tell(...told));
    byId("pause").addEventListener("click", () => this.#pause());
    byId("span").addEventListener("change", ({ target }) => {
      this.timeline.span = Number(target.value);
      this.timeline.show();
    });
    byId("step-details").addEventListener("toggle", () => this.#table());
    byId("steps-refresh").addEventListener("click", () => this.#table());
  }

  /** Be fed, or not. */
  watch(on) {
    if (on) this.feed.start();
    else this.feed.stop();
  }

  #take(snapshot) {
    this.history.take(snapshot);
    setText(byId("feed-state"), STATES[snapshot.state] ?? snapshot.state);
    if (!this.#paused) this.#show();
  }

  #pause() {
    this.#paused = !this.#paused;
    byId("pause").setAttribute("aria-pressed", String(this.#paused));
    if (!this.#paused) this.#show();
  }

  #show() {
    const { history } = this;
    this.#latency();
    if (!history.stats) return;
    this.#numbers();
    this.#blocks();
    this.#users();
    this.sparkline.show(history.rates);
    this.timeline.show();
    setText(byId("timeline-empty"), this.timeline.steps.length ? "" : "Nothing ran in these seconds.");
  }

  #numbers() {
    const { stats, rates } = this.history;
    const now = rates.at(-1) ?? { made: 0, read: 0 };
    const looked = stats.prompt_tokens_cached + stats.prompt_tokens_computed;
    setText(byId("n-running"), whole(stats.running));
    setText(byId("n-waiting"), whole(stats.waiting));
    setText(byId("n-made"), rate(now.made));
    setText(byId("n-read"), rate(now.read));
    setText(byId("n-cached"), looked ? `${((100 * stats.prompt_tokens_cached) / looked).toFixed(0)} %` : "–");
    setText(byId("n-preempted"), whole(stats.preemptions));
  }

  #blocks() {
    const { stats, blocks } = this.history;
    this.blocks.show(blocks);
    const shared = sum(blocks.shared);
    const counts = {
      used: stats.kv_blocks_live - (blocks.perCell < 256 ? shared : 0),
      shared,
      cached: stats.kv_blocks_cached,
      free: stats.kv_blocks_free,
    };
    for (const [name, count] of Object.entries(counts)) setText(byId(`b-${name}`), whole(Math.max(0, count)));
    const told = `${whole(stats.kv_blocks_live)} of ${plural(stats.kv_blocks_total, "block")} in use, ${whole(shared)} of them shared, ${whole(stats.kv_blocks_cached)} cached, ${whole(stats.kv_blocks_free)} free`;
    byId("block-map").setAttribute("aria-label", told);
    const each = blocks.perCell > 1 ? `${blocks.perCell} blocks a cell, ` : "";
    setText(byId("b-size"), `${each}${stats.block_size} tokens a block`);
  }

  #users() {
    const shares = this.history.shares();
    const most = Math.max(1, ...[...shares.values()].map((one) => one.made));
    const busy = [...this.history.users.values()].filter((one) => one.running || one.waiting || shares.has(one));
    busy.sort((a, b) => (shares.get(b)?.made ?? 0) - (shares.get(a)?.made ?? 0) || a.number - b.number);
    const rows = busy.slice(0, MOST_USERS).map((one) => this.#user(one, shares.get(one), most));
    const rest = busy.slice(MOST_USERS);
    if (rest.length) rows.push(this.#rest(rest));
    byId("users").replaceChildren(...rows);
    byId("no-users").hidden = rows.length > 0;
  }

  #user(user, share = { made: 0, read: 0 }, most) {
    const swatch = h("span", { class: "swatch" });
    swatch.style.background = this.palette.user(user.number);
    const bar = h("span", { class: "bar" });
    bar.style.width = `${(100 * share.made) / most}%`;
    bar.style.background = this.palette.user(user.number);
    const name = user.own && user.name !== "you" ? `${user.name} (you)` : user.name;
    return h(
      "tr",
      {},
      h("th", { scope: "row" }, swatch, h("span", { class: "user-name", title: name }, name)),
      h("td", {}, whole(user.running)),
      h("td", {}, whole(user.waiting)),
      h("td", { class: "share" }, h("span", { class: "track" }, bar), h("span", {}, rate(share.made))),
    );
  }

  #rest(users) {
    const total = (name) => whole(users.reduce((all, one) => all + one[name], 0));
    return h("tr", {}, h("th", { scope: "row" }, `${plural(users.length, "more user")}`), h("td", {}, total("running")), h("td", {}, total("waiting")), h("td"));
  }

  #latency() {
    const { latency, objective } = this.history;
    if (!latency) return;
    const rows = ["ttft", "tpot"].map((name) => latencyRow(name, latency[name], objective?.[name] ?? null));
    byId("latencies").replaceChildren(...rows);
    const judged = objective?.judged ?? 0;
    const met = judged ? `${((100 * objective.met) / judged).toFixed(1)} % of ${plural(judged, "request")} met the objective.` : "No request was judged yet.";
    setText(byId("objective"), objective ? met : "No objective is set (--slo ttft=1s,tpot=50ms).");
  }

  #tell(text, x, y) {
    const tip = byId("step-tip");
    tip.hidden = !text;
    setText(tip, text);
    if (!text) return;
    const room = byId("timeline").clientWidth - tip.offsetWidth - 4;
    tip.style.transform = `translate(${Math.max(0, Math.min(x + 12, room))}px, ${y + 14}px)`;
  }

  /** The same in words: filled when it is opened, and when asked; a table that moves can't be read. */
  #table() {
    if (!byId("step-details").open) return;
    const steps = this.timeline.steps.slice(-TABLE_STEPS).reverse();
    byId("steps").replaceChildren(...steps.map((step) => this.#row(step)));
  }

  #row(step) {
    const { sequences } = this.history;
    const name = (order) => sequences.get(order)?.user.name ?? "?";
    const chunks = step.chunks.map(([order, , tokens]) => `${name(order)}: ${whole(tokens)}`).join(", ");
    return h("tr", {}, h("th", { scope: "row" }, whole(step.number)), h("td", {}, seconds(step.seconds)), h("td", {}, whole(step.decodes.length)), h("td", {}, chunks || "–"));
  }
}

const STATES = { ok: "live", loading: "the model loads", restarting: "the engine restarts", stalled: "stalled", failed: "failed", draining: "shutting down" };
const NAMES = { ttft: "First token", tpot: "Each further token" };

const sum = (values) => values.reduce((all, one) => all + one, 0);

function latencyRow(name, told, bound) {
  const cells = PERCENTILES.map((percentile) => {
    const value = told[percentile];
    const over = bound !== null && value > bound;
    return h("td", { class: over ? "over" : undefined }, seconds(value), over ? h("span", { class: "visually-hidden" }, " over the objective") : null);
  });
  return h("tr", {}, h("th", { scope: "row" }, NAMES[name]), ...cells, h("td", { class: "bound" }, bound === null ? "–" : `≤ ${seconds(bound)}`));
}
