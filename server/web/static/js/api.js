// Requests to this server, with the key if one was given, and errors in one shape.

const KEY = "bireme.key";

export class ServerError extends Error {
  /** `status` is 0 where no answer came at all; `retryAfter` in seconds, where the server said so. */
  constructor(status, message, code = "", retryAfter = null) {
    super(message);
    this.status = status;
    this.code = code;
    this.retryAfter = retryAfter;
  }
}

/** The key is kept for this tab, and forgotten with it. */
export const storedKey = () => sessionStorage.getItem(KEY) ?? "";
export const storeKey = (key) => (key ? sessionStorage.setItem(KEY, key) : sessionStorage.removeItem(KEY));

/** A successful response; everything else is thrown as `ServerError`, an abort as what it is. */
export async function call(path, { body, signal } = {}) {
  const headers = {};
  if (storedKey()) headers.authorization = `Bearer ${storedKey()}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  let response;
  try {
    const method = body === undefined ? "GET" : "POST";
    response = await fetch(path, { method, headers, signal, body: body && JSON.stringify(body), cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError(0, "The server can't be reached.");
  }
  if (response.ok) return response;
  throw await failure(response);
}

async function failure(response) {
  const text = await response.text().catch(() => "");
  let error = {};
  try {
    error = JSON.parse(text).error ?? {};
  } catch {
    // not ours: a proxy's page, maybe
  }
  const after = Number.parseFloat(response.headers.get("retry-after"));
  const message = error.message ?? `The server answered ${response.status} ${response.statusText}`.trim();
  return new ServerError(response.status, message, error.code ?? "", Number.isFinite(after) ? after : null);
}

export const getJson = async (path, options) => (await call(path, options)).json();

/** What the server says of itself while it can't serve: also without a key. */
export async function health() {
  try {
    return await (await fetch("health", { cache: "no-store" })).json();
  } catch {
    return { status: "unreachable" };
  }
}
