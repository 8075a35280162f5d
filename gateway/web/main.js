// The page as a whole: who is logged in, which view is seen, and that it is drawn again every few seconds.

import { all, become, known, look } from "./api.js"
import { access } from "./access.js"
import { connections } from "./connections.js"
import { field } from "./dialogs.js"
import { button, h, refusal, text } from "./dom.js"
import { exchanges } from "./exchanges.js"
import { group, groups } from "./groups.js"
import { vhost } from "./lists.js"
import { mqtt } from "./mqtt.js"
import { overview } from "./overview.js"
import { policies } from "./policies.js"
import { queue, queues } from "./queues.js"
import { topic, topics } from "./topics.js"

const REFRESH_MS = 5000

/** By their names in the address: what makes them, under which title, and of which entry of the menu they are. */
const VIEWS = {
  overview: [overview, "Overview"],
  queues: [queues, "Queues"],
  queue: [queue, "Queue", "queues"],
  exchanges: [exchanges, "Exchanges"],
  topics: [topics, "Topics"],
  topic: [topic, "Topic", "topics"],
  groups: [groups, "Groups"],
  group: [group, "Group", "groups"],
  connections: [connections, "Connections"],
  mqtt: [mqtt, "MQTT"],
  access: [access, "Users"],
  policies: [policies, "Policies"],
}

const main = document.getElementById("main")
const top = document.getElementById("top")
let seen = null // the view: {element, refresh}
let timer = 0
let round = 0

function place() {
  const [path, query] = location.hash.replace(/^#\//, "").split("?")
  return [path in VIEWS ? path : "overview", Object.fromEntries(new URLSearchParams(query ?? ""))]
}

async function show() {
  const [name, parameters] = place()
  const [make, title, menu] = VIEWS[name]
  document.title = `${parameters.name ?? title} · Millrace`
  for (const one of document.querySelectorAll("#nav a")) {
    if (one.dataset.view === (menu ?? name)) {
      one.setAttribute("aria-current", "page")
      one.scrollIntoView({ block: "nearest", inline: "nearest" })
    } else one.removeAttribute("aria-current")
  }
  seen = make(parameters)
  seen.state = h("p", { class: "state" })
  delete main.dataset.drawn
  main.replaceChildren(seen.state, seen.element)
  await refresh()
}

/** Draw what is seen once more, and once more later. */
async function refresh() {
  clearTimeout(timer)
  const mine = ++round
  const view = seen
  if (view === null) return
  try {
    await view.refresh()
    view.state.replaceChildren()
    view.well = new Date()
  } catch (error) {
    if (mine !== round) return
    if (error.status === 401) return login(error) // not this user any more
    const since = view.well ? ` (as it was at ${view.well.toLocaleTimeString()})` : ""
    view.state.replaceChildren(refusal(error), since)
    if (!error.code) console.error(error)
  }
  main.dataset.drawn = "" // for who drives the page
  if (mine === round) timer = setTimeout(later, REFRESH_MS)
}

function later() {
  if (document.hidden) return
  if (document.querySelector("dialog[open]") || selecting()) timer = setTimeout(later, 1000)
  else refresh()
}

/** Somebody marks text, to copy it. */
function selecting() {
  const marked = getSelection()
  return marked !== null && !marked.isCollapsed && main.contains(marked.anchorNode)
}

async function vhosts() {
  try {
    vhost.names = (await all("vhosts.list")).map((one) => one.name)
  } catch {
    vhost.names = ["/"] // a list for operators; the others name theirs
  }
  const select = document.getElementById("vhost")
  if (!vhost.names.includes(vhost.chosen)) vhost.chosen = ""
  select.replaceChildren(h("option", { value: "" }, "all"), ...vhost.names.map((name) => h("option", { value: name }, text(name).textContent)))
  select.value = vhost.chosen
  select.parentElement.hidden = vhost.names.length < 2
}

async function enter() {
  const who = await look()
  document.getElementById("who").replaceChildren(text(who.user), h("small", {}, text((who.tags ?? []).join(", ") || "no tags")))
  document.getElementById("nav").replaceChildren(
    ...Object.entries(VIEWS)
      .filter(([, entry]) => entry.length === 2)
      .map(([name, entry]) => h("a", { href: `#/${name}`, "data-view": name }, entry[1])),
  )
  top.hidden = false
  await vhosts()
  await show()
}

/** Ask who it is. `error` is why. */
function login(error = null) {
  seen = null
  clearTimeout(timer)
  top.hidden = true
  const user = field({ name: "user", label: "User", required: true })
  const password = field({ name: "password", label: "Password", kind: "password" })
  user.control.autocomplete = "username"
  password.control.autocomplete = "current-password"
  const failed = h("p", { class: "failed" }, error ? refusal(error) : "")
  const attempt = async (name, secret) => {
    failed.replaceChildren()
    become(name, secret)
    try {
      await enter()
    } catch (refused) {
      become(null)
      failed.replaceChildren(refusal(refused))
    }
  }
  const go = h("button", { type: "submit", class: "primary" }, "Log in")
  const form = h(
    "form", { class: "login" }, h("h1", {}, "Millrace"), user.element, password.element, failed,
    h("div", { class: "actions" }, button("Without a user", () => attempt(null), "quiet"), go),
  )
  form.addEventListener("submit", async (event) => {
    event.preventDefault()
    go.disabled = true
    await attempt(user.read(), password.read())
    go.disabled = false
  })
  main.replaceChildren(form)
  user.control.focus()
}

document.getElementById("leave").addEventListener("click", () => {
  become(null)
  login()
})
document.getElementById("vhost").addEventListener("change", (event) => {
  vhost.chosen = event.target.value
  show()
})
addEventListener("hashchange", () => seen && show())
document.addEventListener("visibilitychange", () => !document.hidden && seen && refresh())
document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.target.closest("input, textarea, select, dialog")) return
  const filter = main.querySelector("input.filter")
  if (filter) event.preventDefault()
  filter?.focus()
})

document.addEventListener("vhosts", vhosts) // there are others now
enter().catch((error) => login(error.status === 401 && !known() ? null : error))
