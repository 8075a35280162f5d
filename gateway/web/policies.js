// Policies: arguments for all queues and exchanges whose names match.

import { ask } from "./api.js"
import { confirm, form } from "./dialogs.js"
import { chip, h, note, text } from "./dom.js"
import { chosenVhost, list, vhost } from "./lists.js"

const APPLY_TO = ["all", "queues", "exchanges", "classic_queues", "quorum_queues", "streams"].map((one) => [one, one.replace("_", " ")])

export function policies() {
  return list({
    title: "Policies", operation: "policies.list", byVhost: true, key: (row) => JSON.stringify([row.vhost, row.operator, row.name]), empty: "no policies",
    columns: {
      name: { class: "name" }, vhost: { unless: () => vhost.names.length < 2 }, operator: { title: "of", show: (row) => (row.operator ? chip("operator", "warn") : "users") },
      pattern: { class: "code" }, apply_to: {}, priority: {}, definition: { class: "code" },
    },
    tools: [["Set policy", "policies.set", () => setting({}), "primary"]],
    actions: (row) => [
      ["Change", "policies.set", () => setting(row)],
      ["Delete", "policies.delete", () => remove(row), "danger"],
    ],
  })
}

async function setting({ name = "", vhost: host = chosenVhost(), pattern = "", apply_to = "all", priority = 0, definition = {}, operator = false }) {
  const done = await form({
    title: "Policy", action: "Set", intro: "It applies at once to what is there.",
    fields: [
      { name: "name", label: "Name", value: name, required: true }, { name: "vhost", label: "Virtual host", value: host },
      { name: "pattern", label: "Names that match", value: pattern, required: true, help: "a regular expression" },
      { name: "apply_to", label: "Apply to", kind: "choice", options: APPLY_TO, value: apply_to },
      { name: "priority", label: "Priority", kind: "number", value: priority },
      { name: "definition", label: "Definition", kind: "json", value: JSON.stringify(definition), help: '{"message-ttl": 60000, "max-length": 1000}' },
      { name: "operator", label: "An operator's policy", kind: "check", value: operator },
    ],
    submit: (given) => ask("policies.set", { ...given, priority: given.priority ?? 0 }),
  })
  if (done) note("set")
}

async function remove(row) {
  await confirm("Delete policy?", [h("b", {}, text(row.name)), " applies to nothing any more."], "Delete", () => ask("policies.delete", { name: row.name, operator: row.operator, vhost: row.vhost }))
}
