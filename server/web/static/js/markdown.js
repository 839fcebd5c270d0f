// Markdown as it streams. The parser (vendor/marked.js) gives tokens; elements are made of them here, one by one, from a
// short list. No markup is ever made from text, so nothing a model writes can become anything but what is listed.

import { Lexer } from "../vendor/marked.js";
import { copyButton, h } from "./dom.js";

const OPTIONS = { gfm: true, breaks: true };
const HEADINGS = ["h3", "h3", "h4", "h5", "h6", "h6", "h6"]; // by depth: the page's own come before
const ENTITIES = new Map(Object.entries({ amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0" }));

/** What a node was made of: it stays while that stays. */
const made = new WeakMap();

/** Text in an element, rendered anew only where it changed. */
export class Markdown {
  #settled = 0; // characters whose elements are final
  #nodes = 0; // elements they became
  #text = "";

  constructor(element, onSettled = () => {}) {
    this.element = element;
    this.onSettled = onSettled; // called with each block's text, once nothing can change it any more
  }

  /** Show `text`, which begins as the text before did. `done`: it is whole. */
  show(text, done = false) {
    this.#text = text.replace(/\r\n?/g, "\n");
    const tokens = Lexer.lex(this.#text.slice(this.#settled), OPTIONS);
    if (done && tokens.links && Object.keys(tokens.links).length) this.#startOver(tokens);
    const blocks = tokens.filter(isShown);
    sync(this.element, blocks, this.#nodes);
    this.#settle(tokens, blocks, done);
  }

  /** References may be explained behind their use; with all the text there, each finds its link. */
  #startOver(tokens) {
    this.#settled = this.#nodes = 0;
    tokens.splice(0, tokens.length, ...Lexer.lex(this.#text, OPTIONS));
  }

  /** A block is final when the next one has begun. */
  #settle(tokens, blocks, done) {
    const last = done ? null : blocks.at(-1);
    const open = done ? tokens.length : Math.max(0, tokens.indexOf(last));
    for (const token of tokens.slice(0, open)) {
      this.#settled += token.raw.length;
      if (!isShown(token)) continue;
      this.onSettled(this.element.childNodes[this.#nodes]?.textContent ?? "");
      this.#nodes += 1;
    }
  }
}

const isShown = (token) => token.type !== "space" && token.type !== "def";

/** Make the children of `parent` from the `from`th on those of `tokens`, keeping all that are the same. */
function sync(parent, tokens, from = 0) {
  const kept = [...parent.childNodes].slice(from);
  tokens.forEach((token, at) => {
    const node = kept[at];
    if (node && adapt(node, token)) return;
    const fresh = build(token);
    made.set(fresh, token);
    if (node) node.replaceWith(fresh);
    else parent.append(fresh);
  });
  for (const node of kept.slice(tokens.length)) node.remove();
}

/** Whether `node` stands for `token` already, or could be made to. */
function adapt(node, token) {
  const before = made.get(node);
  if (!before || before.type !== token.type || before.loose !== token.loose) return false;
  if (before.raw === token.raw && before.raw !== undefined) return true;
  const how = ADAPT[token.type];
  if (!how || !how(node, token, before)) return false;
  made.set(node, token);
  return true;
}

const ADAPT = {
  paragraph: (node, token) => (sync(node, token.tokens), true),
  heading: (node, token, before) => before.depth === token.depth && (sync(node, token.tokens), true),
  blockquote: (node, token) => (sync(node, token.tokens.filter(isShown)), true),
  list: (node, token, before) => before.ordered === token.ordered && (sync(node, token.items), true),
  list_item: (node, token, before) => before.task === token.task && (sync(node, itemTokens(token)), true),
  strong: (node, token) => (sync(node, token.tokens), true),
  em: (node, token) => (sync(node, token.tokens), true),
  table: (node, token) => (fillTable(node.firstChild, token), true),
  row: (node, token) => (sync(node, token.cells), true),
  text: adaptText,
  code: (node, token) => {
    node.querySelector(".language").textContent = language(token);
    grow(node.querySelector("code").firstChild, token.text);
    return true;
  },
};

function adaptText(node, token) {
  const plain = node.nodeType === Node.TEXT_NODE;
  if (plain === Boolean(token.tokens)) return false;
  if (plain) grow(node, decode(token.text));
  else sync(node, token.tokens);
  return true;
}

/** Set a text node's data; where it only grew, add to it, so that a selection in it stays. */
function grow(node, text) {
  if (text.startsWith(node.data)) node.appendData(text.slice(node.data.length));
  else node.data = text;
}

function build(token) {
  return (BUILD[token.type] ?? verbatim)(token);
}

const inside = (element, tokens) => (sync(element, tokens), element);
const verbatim = (token) => document.createTextNode(token.raw ?? "");

const BUILD = {
  paragraph: (token) => inside(h("p"), token.tokens),
  heading: (token) => inside(h(HEADINGS[token.depth]), token.tokens),
  blockquote: (token) => inside(h("blockquote"), token.tokens.filter(isShown)),
  list: (token) => inside(h(token.ordered ? "ol" : "ul", { start: token.ordered ? token.start || 1 : undefined }), token.items),
  list_item: (token) => inside(h("li", { class: token.task ? "task" : undefined }), itemTokens(token)),
  checkbox: (token) => h("input", { type: "checkbox", checked: token.checked, disabled: true }),
  hr: () => h("hr"),
  br: () => h("br"),
  code: codeBlock,
  table,
  row: (token) => inside(h("tr"), token.cells),
  cell,
  strong: (token) => inside(h("strong"), token.tokens),
  em: (token) => inside(h("em"), token.tokens),
  del: (token) => inside(h("del"), token.tokens),
  codespan: (token) => h("code", {}, token.text),
  link,
  image: (token) => anchor(token.href, h("span", {}, `[image: ${token.text || token.href}]`)),
  escape: (token) => document.createTextNode(token.text),
  text: (token) => (token.tokens ? inside(h("span"), token.tokens) : document.createTextNode(decode(token.text))),
  html: (token) => (/^<br\s*\/?>$/i.test(token.raw) ? h("br") : token.block ? h("p", { class: "raw" }, token.raw) : verbatim(token)),
};

/** A loose item holds blocks, a tight one a line and maybe lists. */
const itemTokens = (token) => token.tokens.filter(isShown);

function codeBlock(token) {
  const code = h("code", {}, document.createTextNode(token.text));
  const bar = h("div", { class: "codebar" }, h("span", { class: "language" }, language(token)), copyButton(() => code.textContent));
  return h("div", { class: "codeblock" }, bar, h("pre", { tabIndex: 0 }, code));
}

const language = (token) => (token.lang ?? "").split(/\s/)[0].slice(0, 30);

function table(token) {
  const box = h("div", { class: "tablebox", tabIndex: 0 }, h("table", {}, h("thead"), h("tbody")));
  fillTable(box.firstChild, token);
  return box;
}

function fillTable(element, token) {
  const rows = [token.header, ...token.rows].map((cells) => ({
    type: "row",
    raw: JSON.stringify([cells.map((one) => one.text), token.align]),
    cells: cells.map((one) => ({ ...one, type: "cell", raw: `${one.align}|${one.text}` })),
  }));
  sync(element.tHead, rows.slice(0, 1));
  sync(element.tBodies[0], rows.slice(1));
}

function cell(token) {
  const element = token.header ? h("th", { scope: "col" }) : h("td");
  if (token.align) element.style.textAlign = token.align;
  return inside(element, token.tokens);
}

function link(token) {
  return anchor(token.href, inside(h("span"), token.tokens));
}

/** A link to somewhere on the web, opened beside this page; to anything else (scripts, data, files), its text alone. */
function anchor(href, label) {
  const goes = /^(https?:|mailto:)/i.test(href) ? href : null;
  if (!goes) return h("span", { title: `Not a link that is followed here: ${href}` }, label);
  return h("a", { href: goes, target: "_blank", rel: "noopener noreferrer nofollow", title: href }, label);
}

/** `&amp;` and its kin, as Markdown has them. */
function decode(text) {
  if (!text.includes("&")) return text;
  return text.replace(/&(?:#(\d{1,7})|#x([0-9a-f]{1,6})|([a-z]{2,8}));/gi, (whole, decimal, hex, name) => {
    if (name) return ENTITIES.get(name) ?? whole;
    const code = decimal ? Number.parseInt(decimal, 10) : Number.parseInt(hex, 16);
    return code > 0 && code <= 0x10ffff && !(code >= 0xd800 && code < 0xe000) ? String.fromCodePoint(code) : whole;
  });
}
