// Topics: how they are configured, where their partitions stand, and what is in them.

import { ask } from "./api.js"
import { confirm, form } from "./dialogs.js"
import { chip, h, link, note, number, text } from "./dom.js"
import { buttons, list, tabs } from "./lists.js"
import { producing, records } from "./records.js"
import { Table, facts } from "./tables.js"

export function topics() {
  return list({
    title: "Topics", operation: "topics.list", key: (row) => row.name, empty: "no topics",
    columns: { name: { show: (row) => link("topic", { name: row.name }, text(row.name)), class: "name" } },
    tools: [["Create topic", "topics.create", create, "primary"]],
    actions: (row) => [
      ["Produce", "records.produce", () => producing(row.name)],
      ["Delete", "topics.delete", () => remove(row.name), "danger"],
    ],
  })
}

async function create() {
  const done = await form({
    title: "Create a topic", action: "Create",
    fields: [
      { name: "topic", label: "Name", required: true },
      { name: "partitions", label: "Partitions", kind: "number", value: 1, required: true },
      { name: "config", label: "Settings", kind: "json", help: '{"retention.ms": "86400000", "cleanup.policy": "compact"}' },
    ],
    submit: async (given) => {
      const config = Object.fromEntries(Object.entries(given.config).map(([name, value]) => [name, String(value)]))
      await ask("topics.create", { ...given, config })
      return given.topic
    },
  })
  if (done) note(h("span", {}, "created topic ", text(done.value)))
}

async function remove(name) {
  const sure = await confirm("Delete topic?", [h("b", {}, text(name)), " goes with all its records, in all partitions."], "Delete", () => ask("topics.delete", { topic: name }))
  if (sure) note(h("span", {}, "deleted topic ", text(name)))
  return sure
}

/** One topic. */
export function topic(parameters) {
  const name = parameters.name ?? ""
  const head = h("div")
  const again = (action) => async () => {
    await action()
    await refresh()
  }
  const tools = h("span", { class: "tools" }, buttons([
    ["Produce", "records.produce", again(() => producing(name)), "primary"],
    ["More partitions", "topics.partitions", again(() => grow(name))],
    ["Delete records", "topics.delete_records", again(() => forget(name))],
    ["Delete", "topics.delete", async () => { if (await remove(name)) location.hash = "#/topics" }, "danger"],
  ]))
  const parts = tabs("topic", { ...parameters, kept: { name } }, {
    partitions: ["Partitions", () => partitions(name, head)],
    records: ["Records", () => records(name, parameters)],
    settings: ["Settings", () => settings(name)],
  })
  const refresh = () => parts.refresh()
  return { element: h("div", {}, h("div", { class: "bar" }, h("h2", {}, link("topics", {}, "Topics"), " / ", text(name)), tools), head, parts.element), refresh }
}

function partitions(name, head) {
  const table = new Table({
    label: "Partitions", key: (row) => row.partition,
    columns: {
      partition: { show: (row) => link("topic", { name, tab: "records", partition: row.partition }, String(row.partition)), number: false },
      leader: {}, size_bytes: { title: "size" },
      log_start_offset: { title: "first offset" }, high_watermark: { title: "end offset" },
      count: { title: "offsets", show: (row) => number(ends(row) - starts(row)), value: (row) => ends(row) - starts(row), number: true },
      replicas: {}, isr: { title: "in sync" },
      single_copy: { title: "copies", show: (row) => (row.single_copy ? chip("single copy", "warn") : "") },
    },
    hidden: ["leader_epoch", "log_end_offset"],
  })
  async function refresh() {
    const told = await ask("topics.describe", { topic: name })
    const own = Object.entries(told.config ?? {}).sort()
    const total = told.partitions.reduce((sum, one) => sum + ends(one) - starts(one), 0)
    head.replaceChildren(facts([["partitions", told.partitions.length], ["offsets", total], ...own.map(([setting, value]) => [setting, text(value)])]))
    table.draw(told.partitions)
  }
  return { element: table.element, refresh }
}

const starts = (row) => row.log_start_offset ?? row.start_offset ?? 0
const ends = (row) => row.high_watermark ?? row.end_offset ?? 0

function settings(name) {
  const all = list({
    title: "Settings", operation: "topics.settings", given: () => ({ name }), key: (row) => row.name,
    columns: { name: { class: "name" }, value: {}, source: {}, type: {}, documentation: { class: "dim wide" } },
    actions: (row) => [
      ["Change", "topics.alter", () => alter(name, row)],
      /topic/i.test(row.source) && ["Unset", "topics.alter", () => unset(name, row)],
    ],
  })
  return all
}

async function alter(name, row) {
  const done = await form({
    title: "Change a setting", action: "Change",
    intro: row.documentation ? text(row.documentation) : "",
    fields: [{ name: "value", label: row.name, value: row.value ?? "" }],
    submit: ({ value }) => ask("topics.alter", { name, config: { [row.name]: value } }),
  })
  if (done) note(h("span", {}, "changed ", text(row.name)))
}

async function unset(name, row) {
  await confirm("Unset?", [h("b", {}, text(row.name)), " is what the broker's configuration says from then on."], "Unset", () => ask("topics.alter", { name, unset: [row.name] }))
}

async function grow(name) {
  const done = await form({
    title: "More partitions", action: "Make them",
    intro: "Never fewer. Records with a key go by the new number from then on.",
    fields: [{ name: "partitions", label: "So many in all", kind: "number", required: true }],
    submit: ({ partitions }) => ask("topics.partitions", { topic: name, partitions }),
  })
  if (done) note("made")
}

async function forget(name) {
  const done = await form({
    title: "Delete records", action: "Delete", danger: true,
    intro: "From the beginning of a partition; they are gone for all readers.",
    fields: [
      { name: "partition", label: "Partition", kind: "number", value: 0, required: true },
      { name: "before", label: "Before offset", kind: "number", help: "empty: all that is committed" },
    ],
    submit: ({ partition, before }) => ask("topics.delete_records", { name, partition, ...(before === null ? {} : { before }) }),
  })
  if (done) note(`it begins at ${number(done.value)} now`)
}

