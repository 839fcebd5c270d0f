// The settings' form: what goes along with each request. Left empty, a field is not sent, and the model's default holds.

import { byId } from "./dom.js";

const STORED = "bireme.settings";
const FIELDS = ["system", "temperature", "top_p", "max_tokens", "seed", "reasoning_effort", "user", "tools"];
const NUMBERS = new Set(["temperature", "top_p", "max_tokens", "seed"]);

const field = (name) => byId(`set-${name}`);

/** Fill the form with what was stored, and store what is changed. */
export function start() {
  let stored = {};
  try {
    stored = JSON.parse(localStorage.getItem(STORED)) ?? {};
  } catch {
    // broken or none: begin with an empty form
  }
  for (const name of FIELDS) field(name).value = stored[name] ?? "";
  byId("settings-form").addEventListener("input", save);
  byId("settings-reset").addEventListener("click", () => {
    for (const name of FIELDS) field(name).value = "";
    save();
  });
  check();
}

function save() {
  const values = Object.fromEntries(FIELDS.map((name) => [name, field(name).value]).filter(([, value]) => value !== ""));
  localStorage.setItem(STORED, JSON.stringify(values));
  check();
}

function check() {
  let problem = "";
  try {
    tools();
  } catch (error) {
    problem = error.message;
  }
  field("tools").setCustomValidity(problem);
  byId("tools-problem").textContent = problem;
}

export const system = () => field("system").value.trim();

/** The fields of a request's body. Throws, with a sentence, where one can't be used. */
export function body() {
  const invalid = FIELDS.map(field).find((element) => !element.checkValidity());
  if (invalid) throw new Error(`${invalid.labels[0]?.textContent.trim()}: ${invalid.validationMessage}`);
  const sent = {};
  for (const name of FIELDS) {
    const value = field(name).value.trim();
    if (value !== "" && name !== "system" && name !== "tools") sent[name] = NUMBERS.has(name) ? Number(value) : value;
  }
  const offered = tools();
  return offered ? { ...sent, tools: offered } : sent;
}

function tools() {
  const text = field("tools").value.trim();
  if (!text) return null;
  let offered;
  try {
    offered = JSON.parse(text);
  } catch (error) {
    throw new Error(`This is not JSON yet (${error.message}).`);
  }
  if (!Array.isArray(offered)) throw new Error("Tools are a JSON list, as in the OpenAI API.");
  return offered.length ? offered : null;
}
