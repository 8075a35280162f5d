// Records of a topic, looked at from an offset, a time or the end on, or found by their key; and one produced.

import { ask } from "./api.js"
import { field, form } from "./dialogs.js"
import { button, h, note, number, refusal, route, time } from "./dom.js"
import { body, properties } from "./messages.js"
import { Table } from "./tables.js"

const FROM = [["last", "the last"], ["offset", "from offset"], ["time", "from time"], ["key", "with the key"]]
const LIMITS = [["20", "20"], ["50", "50"], ["100", "100"], ["500", "500"]]
const PREVIEW = 200

/** What is asked for is in the address, so that it can be passed on: partition, from, at, limit. */
export function records(topic, parameters) {
  const partition = field({ name: "partition", label: "Partition", kind: "choice", options: [["0", "0"]], value: "0" })
  const from = field({ name: "from", label: "Show", kind: "choice", options: FROM, value: parameters.from ?? "last" })
  const at = {
    offset: field({ name: "offset", label: "Offset", kind: "number", value: parameters.from === "offset" ? parameters.at : "0" }),
    time: field({ name: "time", label: "Time", kind: "time", value: parameters.from === "time" ? local(Number(parameters.at)) : "" }),
    key: field({ name: "key", label: "Key", value: parameters.from === "key" ? parameters.at : "" }),
  }
  const limit = field({ name: "limit", label: "How many", kind: "choice", options: LIMITS, value: parameters.limit ?? "50" })
  const said = h("p", { class: "count" })
  const around = h("span", { class: "pages" })
  const table = recordTable(topic)
  const choose = () => {
    for (const [name, one] of Object.entries(at)) one.element.hidden = name !== from.control.value
  }
  from.control.addEventListener("change", choose)
  const go = (changed = {}) => {
    const how = from.control.value
    const where = how === "last" ? "" : at[how].read()
    const next = route("topic", { name: topic, tab: "records", partition: partition.control.value, from: how, at: where ?? "", limit: limit.control.value, ...changed })
    if (next === location.hash) refresh().catch(note)
    else location.hash = next
  }
  const bar = h(
    "form", { class: "browse" }, from.element, at.offset.element, at.time.element, at.key.element, partition.element, limit.element,
    h("button", { type: "submit", class: "primary" }, "Show"), around,
  )
  bar.addEventListener("submit", (event) => {
    event.preventDefault()
    try {
      go()
    } catch (error) {
      said.replaceChildren(refusal(error))
    }
  })
  choose()

  async function partitions() {
    if (partition.filled) return
    const told = await ask("topics.describe", { topic })
    partition.control.replaceChildren(...told.partitions.map((one) => h("option", { value: one.partition }, String(one.partition))), h("option", { value: "" }, "all (keys)"))
    partition.control.value = parameters.partition ?? "0"
    partition.filled = true
  }

  async function refresh() {
    await partitions()
    const how = parameters.from ?? "last"
    const most = Number(parameters.limit ?? 50)
    const chosen = parameters.partition ?? "0"
    if (how === "key") return found(chosen === "" ? null : Number(chosen), most)
    const asked = { topic, partition: Number(chosen), limit: most }
    if (how === "last") asked.last = most
    else if (parameters.at !== "" && parameters.at !== undefined) asked[how === "time" ? "time_ms" : "offset"] = Number(parameters.at)
    const told = await ask("records.read", asked)
    table.draw(told.records)
    said.textContent = `${number(told.records.length)} records; partition ${chosen} has offsets ${number(told.start_offset)} to ${number(told.end_offset)}`
    turn(told, Number(chosen), most)
  }

  function turn(told, chosen, most) {
    around.replaceChildren()
    const first = told.records[0]?.offset ?? told.next_offset
    const next = told.next_offset
    const to = (offset) => () => {
      location.hash = route("topic", { name: topic, tab: "records", partition: chosen, from: "offset", at: Math.max(told.start_offset, offset), limit: most })
    }
    if (first > told.start_offset) around.append(button("Earlier", to(first - most)))
    if (next < told.end_offset) around.append(button("Later", to(next)))
  }

  let looked = false
  async function found(chosen, most) {
    if (looked) return // the whole log is looked through: once is enough
    looked = true
    said.textContent = "looking through the log …"
    const { columns, rows } = await ask("topics.find", { topic, key: parameters.at ?? "", partition: chosen, limit: most })
    const places = rows.map((row) => Object.fromEntries(columns.map((name, index) => [name, row[index]])))
    const read = await Promise.all(places.map((one) => ask("records.read", { topic, partition: one.partition, offset: one.offset, limit: 1 })))
    table.draw(places.map((one, index) => read[index].records.find((record) => record.offset === one.offset) ?? { ...one, key: { text: parameters.at }, value: null, headers: [] }))
    said.textContent = `${number(places.length)} records with this key${places.length === most ? ", there may be more" : ""}`
  }
  return { element: h("section", { class: "list" }, bar, said, table.element), refresh }
}

function local(ms) {
  if (!Number.isFinite(ms)) return ""
  const at = new Date(ms - new Date(ms).getTimezoneOffset() * 60000)
  return Number.isNaN(at.getTime()) ? "" : at.toISOString().slice(0, 23)
}

const opened = new Set()

function recordTable(topic) {
  const key = (row) => `${topic}/${row.partition}/${row.offset}`
  return new Table({
    label: "Records", key, empty: "no records there",
    columns: {
      partition: { number: true, unless: (rows) => new Set(rows.map((row) => row.partition)).size < 2 }, offset: {}, timestamp_ms: { title: "time", show: (row) => time(row.timestamp_ms, true) },
      key: { show: (row) => body(row.key, PREVIEW), value: (row) => row.key?.text ?? "", class: "name" },
      value: { show: (row) => value(row, key(row)), value: (row) => row.value?.text ?? "", class: "value" },
      headers: { show: (row) => properties(row.headers), class: "headers" },
    },
    hidden: ["bytes"],
  })
}

/** A value's beginning, and on demand all that came of it, indented if it is JSON. */
function value(row, key) {
  const full = row.value === null ? "" : "text" in row.value ? row.value.text : null
  const short = full !== null && full.length <= PREVIEW / 2 && !full.includes("\n")
  if (row.value === null || short) return body(row.value, PREVIEW)
  const details = h("details", { open: opened.has(key) }, h("summary", {}, body(row.value, PREVIEW / 2)), h("pre", {}, body(pretty(row.value))))
  details.addEventListener("toggle", () => (details.open ? opened.add(key) : opened.delete(key)))
  return details
}

function pretty(found) {
  if (!("text" in found) || found.bytes !== undefined || !/^\s*[[{]/.test(found.text)) return found
  try {
    return /\d{16}/.test(found.text) ? found : { text: JSON.stringify(JSON.parse(found.text), null, 2) } // long numbers would change
  } catch {
    return found
  }
}

/** Produce one record to a topic. */
export async function producing(topic) {
  const done = await form({
    title: "Produce a record", action: "Produce",
    fields: [
      { name: "key", label: "Key", help: "empty: none" },
      { name: "value", label: "Value", kind: "lines" },
      { name: "headers", label: "Headers", kind: "json", help: '{"source": "by hand"}' },
      { name: "partition", label: "Partition", kind: "number", help: "empty: by the key" },
    ],
    submit: ({ key, value: content, headers, partition }) =>
      ask("records.produce", {
        topic, partition, key: key === "" ? null : key, value: content, headers: Object.entries(headers).map(([name, one]) => [name, one === null ? null : String(one)]),
      }),
  })
  if (done) note(`it is safe: partition ${done.value.partition}, offset ${number(done.value.offset)}`)
}

