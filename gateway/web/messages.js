// What is in a message or a record: text, or what no text is as hexadecimal numbers.

import { bytes, h, number, text } from "./dom.js"

const HEX_BYTES = 1024

/** Bytes as the broker tells them: {"text"} or {"base64"}, with "bytes" if there are more; null. */
export function body(value, most = Infinity) {
  if (value === null || value === undefined) return h("span", { class: "null" }, "null")
  const whole = "text" in value ? value.text : hex(value.base64)
  const cut = whole.length > most ? whole.slice(0, most) : whole
  const more = value.bytes !== undefined ? h("small", { class: "more" }, ` … of ${bytes(value.bytes)}`) : cut.length < whole.length ? "…" : ""
  return h("span", { class: "text" in value ? "body" : "body hex" }, text(cut, most === Infinity ? "\n\t" : ""), more)
}

function hex(base64) {
  const raw = atob(base64 ?? "")
  const shown = Array.from(raw.slice(0, HEX_BYTES), (one) => one.charCodeAt(0).toString(16).padStart(2, "0")).join(" ")
  return raw.length > HEX_BYTES ? `${shown} … of ${number(raw.length)} bytes` : shown
}

/** Properties or headers, but for those that say nothing. */
export function properties(found) {
  const pairs = Array.isArray(found) ? found : Object.entries(found ?? {})
  return pairs.filter((pair) => pair[1] !== null && pair[1] !== undefined && pair[1] !== "" && pair[1] !== false).map(([name, value]) => h("span", { class: "pair" }, h("b", {}, text(name)), " ", isBody(value) ? body(value) : text(typeof value === "object" ? JSON.stringify(value) : value)))
}

const isBody = (value) => typeof value === "object" && value !== null && ("text" in value || "base64" in value)

/** A message of a queue, as `queues.peek` tells it. */
export function message(one) {
  const { body: content, headers, properties: told, ...rest } = one
  return h(
    "article", { class: "message" }, h("div", { class: "pairs" }, properties(rest)), h("div", { class: "pairs" }, properties(told), properties(headers)),
    h("pre", {}, body(content)),
  )
}
