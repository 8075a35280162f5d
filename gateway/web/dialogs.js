// Questions to whoever looks at the page: forms, and confirmations of what destroys something.

import { parse } from "./api.js"
import { h, refusal } from "./dom.js"

/** A dialog with what `fill` puts into its form; `submit` may throw, which is shown. Its answer, or null: cancelled. */
function open({ title, body, action, danger, submit, wide }) {
  return new Promise((resolve) => {
    const failed = h("p", { class: "failed" })
    const go = h("button", { type: "submit", class: danger ? "danger" : "primary" }, action)
    const cancel = h("button", { type: "button", autofocus: danger }, "Cancel")
    const form = h("form", { method: "dialog" }, h("h2", {}, title), body, failed, h("div", { class: "actions" }, cancel, go))
    const dialog = h("dialog", { class: wide ? "wide" : "" }, form)
    let answer = null
    cancel.addEventListener("click", () => dialog.close())
    dialog.addEventListener("close", () => {
      dialog.remove()
      resolve(answer)
    })
    form.addEventListener("submit", async (event) => {
      event.preventDefault()
      go.disabled = true
      failed.replaceChildren()
      try {
        answer = { value: await submit() }
        dialog.close()
      } catch (error) {
        failed.replaceChildren(refusal(error))
      } finally {
        go.disabled = false
      }
    })
    document.body.append(dialog)
    dialog.showModal()
  })
}

/** Ask before something is destroyed; whether it was done. */
export async function confirm(title, what, action, submit) {
  return (await open({ title, body: h("p", {}, what), action, danger: true, submit })) !== null
}

/** Ask for values. `fields` are {name, label, kind, value, options, required, help}; of kind text, password, number,
 * time, lines, json, words, choice or check; `extra` is more below them. What `submit` makes of {name: value}, as
 * {value}; null: cancelled. */
export function form({ title, intro, fields, extra = [], action, danger, submit, wide }) {
  const inputs = fields.map(field)
  const body = h("div", { class: "fields" }, intro ? h("p", {}, intro) : "", inputs.map((one) => one.element), extra)
  return open({ title, body, action, danger, wide, submit: () => submit(values(inputs)) })
}

/** What was put in, by name. Throws an Error that says what cannot be read. */
export function values(inputs) {
  return Object.fromEntries(inputs.map((one) => [one.name, one.read()]))
}

const CONTROLS = {
  text: () => h("input", { type: "text", autocomplete: "off", spellcheck: "false" }),
  password: () => h("input", { type: "password", autocomplete: "new-password" }),
  number: () => h("input", { type: "text", inputmode: "numeric", autocomplete: "off" }),
  time: () => h("input", { type: "datetime-local", step: "0.001" }),
  lines: () => h("textarea", { rows: "5", spellcheck: "false" }),
  json: () => h("textarea", { rows: "3", spellcheck: "false" }),
  words: () => h("input", { type: "text", autocomplete: "off", spellcheck: "false" }),
  check: () => h("input", { type: "checkbox" }),
}

/** One field of a form: its element, and how to read it. */
export function field({ name, label, kind = "text", value = "", options = [], required = false, help = "" }) {
  const control =
    kind === "choice"
      ? h("select", {}, options.map(([key, title]) => h("option", { value: key }, title)))
      : CONTROLS[kind]()
  control.name = name
  control.required = required
  if (kind === "check") control.checked = Boolean(value)
  else if (value !== "" || kind !== "choice") control.value = value
  const element = h(
    "label", { class: `field ${kind}` }, h("span", {}, label), control, help ? h("small", {}, help) : "",
  )
  return { name, element, control, read: () => reading(control, kind, label) }
}

function reading(control, kind, label) {
  if (kind === "check") return control.checked
  const given = control.value
  if (kind === "number") {
    if (given.trim() === "") return null
    if (!/^-?\d+$/.test(given.trim())) throw new Error(`${label}: a whole number is needed`)
    if (!Number.isSafeInteger(Number(given))) throw new Error(`${label}: a number here is at most 2^53`)
    return Number(given)
  }
  if (kind === "time") return given === "" ? null : new Date(given).getTime()
  if (kind === "words") return given.split(/[\s,]+/).filter(Boolean)
  if (kind === "json") return parsed(given, label)
  return given
}

function parsed(given, label) {
  if (given.trim() === "") return {}
  let found
  try {
    found = parse(given)
  } catch (error) {
    throw new Error(`${label}: ${error.message}`)
  }
  if (found === null || typeof found !== "object" || Array.isArray(found)) throw new Error(`${label}: an object is needed, {"name": value}`)
  return found
}
