// Groups: how far they have come in topics and queues, who is in them, and where they are to go on.

import { ask, objects } from "./api.js"
import { confirm, field, form, values } from "./dialogs.js"
import { chip, duration, h, link, note, number, refusal, text } from "./dom.js"
import { buttons, list } from "./lists.js"
import { Table, facts } from "./tables.js"

const STATES = { Stable: "good", Empty: "", Dead: "bad" }
const state = (row) => chip(row.state, STATES[row.state] ?? "warn")

export function groups() {
  return list({
    title: "Groups", operation: "groups.list", key: (row) => row.group, empty: "no groups",
    columns: {
      group: { show: (row) => link("group", { name: row.group }, text(row.group)), class: "name" },
      state: { show: state }, members: {}, type: {},
    },
    actions: (row) => [["Delete", "groups.delete", () => remove(row.group), "danger"]],
  })
}

async function remove(group) {
  const sure = await confirm("Delete group?", ["It is forgotten how far ", h("b", {}, text(group)), " has come; whoever comes with this name begins anew."], "Delete", () => ask("groups.delete", { group }))
  if (sure) note(h("span", {}, "deleted group ", text(group)))
  return sure
}

/** One group. */
export function group(parameters) {
  const name = parameters.name ?? ""
  const head = h("div")
  const partitions = new Table({
    label: "Partitions", key: (row) => JSON.stringify([row.topic, row.partition]), empty: "it has come nowhere in topics",
    columns: {
      topic: { show: (row) => link("topic", { name: row.topic }, text(row.topic)), class: "name" },
      partition: { show: (row) => link("topic", { name: row.topic, tab: "records", partition: row.partition, from: "offset", at: row.offset ?? 0 }, String(row.partition)), number: true },
      offset: { title: "stands at", show: (row) => (row.offset === null ? "nowhere" : number(row.offset)), number: true }, end_offset: { title: "end" },
      lag: { show: (row) => lag(row.lag), number: true }, lag_s: { title: "behind", number: true }, member_id: { title: "read by" },
    },
  })
  const queues = new Table({ label: "Queues", key: (row) => JSON.stringify([row.vhost, row.queue]), columns: { queue: { class: "name" }, vhost: {}, mode: {}, offset: {}, lag: { show: (row) => lag(row.lag), number: true } } })
  const members = new Table({
    label: "Members", key: (row) => row.member_id, empty: "no members",
    columns: { member_id: { title: "member", class: "name" }, instance_id: { title: "instance" }, client_name: { title: "client" }, host: {}, assignment: { title: "reads", show: (row) => text((row.assignment ?? []).map(([topic, index]) => `${topic}-${index}`).join(", ")) } },
  })
  const inQueues = h("section", { hidden: true }, h("h3", {}, "In queues"), queues.element)
  const again = (action) => async () => {
    await action()
    await refresh()
  }
  const tools = h("span", { class: "tools" }, buttons([
    ["Reset offsets", "groups.reset", again(() => reset(name)), "primary"],
    ["Delete", "groups.delete", async () => { if (await remove(name)) location.hash = "#/groups" }, "danger"],
  ]))

  async function refresh() {
    const told = await ask("groups.describe", { group: name })
    head.replaceChildren(facts([
      ["state", state(told)], ["lag", h("span", {}, lag(told.lag), " records")], ["behind", duration(told.lag_s)], ["members", told.members.length],
      ["type", text(told.type)], ["divided by", text(told.protocol)], ["generation", told.generation],
    ]))
    partitions.draw(told.partitions)
    inQueues.hidden = !(told.queues ?? []).length
    queues.draw(told.queues ?? [])
    members.draw(told.members)
  }
  const element = h(
    "div", {}, h("div", { class: "bar" }, h("h2", {}, link("groups", {}, "Groups"), " / ", text(name)), tools), head,
    h("h3", {}, "In topics"), partitions.element, inQueues, h("h3", {}, "Members"), members.element,
  )
  return { element, refresh }
}

const lag = (value) => (value ? h("b", { class: "lag" }, number(value)) : number(value))

const TO = [["earliest", "the first record there is"], ["latest", "behind the last record"], ["offset", "an offset"], ["shift", "so many records further, or back"], ["time", "the first record not before a time"]]

/** Have a group go on elsewhere: first what would be, then what is. */
async function reset(name) {
  const to = field({ name: "to", label: "To", kind: "choice", options: TO, value: "earliest" })
  const at = {
    offset: field({ name: "offset", label: "Offset", kind: "number" }),
    shift: field({ name: "shift", label: "Records", kind: "number", help: "below 0: back" }),
    time: field({ name: "time", label: "Time", kind: "time" }),
  }
  const of = field({ name: "topics", label: "Topics", kind: "words", help: "empty: wherever it has come" })
  const would = h("div", { class: "would" })
  const plan = new Table({ label: "Dry run", key: (row) => JSON.stringify([row.topic, row.partition]), columns: { topic: { class: "name" }, partition: { number: true }, before: { title: "stands at", number: true }, offset: { title: "would go on at" }, change: { number: true, show: (row) => signed(row) } } })
  const choose = () => {
    for (const [kind, one] of Object.entries(at)) one.element.hidden = kind !== to.control.value
    would.replaceChildren()
  }
  to.control.addEventListener("change", choose)
  choose()
  const asked = (dry_run) => {
    const kind = to.control.value
    const given = kind in at ? values([at[kind]])[kind] : null
    if (kind in at && given === null) throw new Error(`${at[kind].element.firstChild.textContent} is needed`)
    return { group: name, to: kind in at ? { [kind === "time" ? "time_ms" : kind]: given } : kind, topics: of.read(), dry_run }
  }
  const dry = h("button", { type: "button" }, "Dry run")
  dry.addEventListener("click", async () => {
    dry.disabled = true
    try {
      const [found, now] = await Promise.all([ask("groups.reset", asked(true)), ask("groups.describe", { group: name })])
      const stands = new Map(now.partitions.map((one) => [JSON.stringify([one.topic, one.partition]), one.offset]))
      plan.draw(objects(found).map((one) => ({ ...one, before: stands.get(JSON.stringify([one.topic, one.partition])) ?? null })))
      would.replaceChildren(h("p", {}, "Nothing has changed yet:"), plan.element)
    } catch (error) {
      would.replaceChildren(refusal(error))
    } finally {
      dry.disabled = false
    }
  })
  const done = await form({
    title: "Reset offsets", action: "Reset", danger: true, wide: true,
    intro: ["Where ", h("b", {}, text(name)), " goes on. It must have no members; what is not there is cut to what is."],
    fields: [], extra: [to.element, ...Object.values(at).map((one) => one.element), of.element, h("div", {}, dry), would],
    submit: () => ask("groups.reset", asked(false)),
  })
  if (done) note(`it goes on elsewhere in ${number(done.value.rows.length)} partitions`)
}

function signed(row) {
  if (row.before === null) return ""
  const change = row.offset - row.before
  return change > 0 ? `+${number(change)}` : number(change)
}
