// What is served, and what it takes: in the bar and beside the settings.

import { getJson, health } from "./api.js";
import { byId, h, setText } from "./dom.js";
import { bytes, whole } from "./format.js";

const AGAIN = { ok: 15000, other: 2000 }; // milliseconds between two looks
const STATES = { ok: "ready", loading: "loading", restarting: "restarting", stalled: "stalled", failed: "failed", draining: "shutting down" };

let timer;
let wasReady = false;

/** Show what is served, and go on watching how the server is. Where a key is needed and not there yet, show what can be. */
export async function showFacts() {
  wasReady = false;
  await look();
}

async function look() {
  clearTimeout(timer);
  const state = await health();
  const loaded = state.total_bytes ? ` ${Math.floor((100 * state.loaded_bytes) / state.total_bytes)} %` : "";
  setText(byId("state"), (STATES[state.status] ?? "can't be reached") + loaded);
  byId("state").dataset.state = state.status;
  const ready = state.status === "ok";
  if (ready && !wasReady) await showModel();
  wasReady = ready;
  clearTimeout(timer);
  timer = setTimeout(look, AGAIN[state.status] ?? AGAIN.other);
}

async function showModel() {
  try {
    const [models, info] = await Promise.all([getJson("v1/models"), getJson("server_info")]);
    show(models.data[0], info);
  } catch {
    setText(byId("model-name"), "");
  }
}

function show(model, info) {
  setText(byId("model-name"), model.id);
  document.title = `${model.id} – Bireme`;
  const rows = factsOf(model, info.backend ?? {}, info.engine ?? {});
  byId("facts").replaceChildren(...rows.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

function factsOf(model, backend, engine) {
  const capacity = backend.num_blocks * backend.block_size;
  const rows = [
    ["Model", model.root ?? model.id],
    ["Weights", [model.meta?.quantization, backend.weight_bytes && bytes(backend.weight_bytes)].filter(Boolean).join(", ")],
    ["Device", backend.device],
    ["Context", model.max_model_len && `${whole(model.max_model_len)} tokens`],
  ];
  if (capacity) {
    rows.push(["KV cache", `${whole(capacity)} tokens, ${bytes(capacity * (backend.kv_bytes_per_token ?? 0))}`]);
    rows.push(["Blocks", `${whole(backend.num_blocks)} of ${backend.block_size} tokens`]);
  }
  if (engine.max_num_seqs) rows.push(["At once", `${whole(engine.max_num_seqs)} sequences`]);
  return rows.filter(([, value]) => value);
}
