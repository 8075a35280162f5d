// What the page asks the broker for: POST /api/<name> with the user and password of this tab, no cookies.

const KEPT = "millrace.authorization"

let authorization = sessionStorage.getItem(KEPT)
let operations = new Map() // by name, as operations.list tells of them
const rights = { tags: [] }
const here = { cluster: null, broker_id: 0 }

/** What the broker answered instead: its code, its reason as one line, and the status of HTTP. */
export class Refused extends Error {
  constructor(status, code, reason) {
    super(reason)
    this.status = status
    this.code = code
  }
}

/** The header of RFC 7617, in UTF-8. */
function basic(user, password) {
  const bytes = new TextEncoder().encode(`${user}:${password}`)
  return "Basic " + btoa(String.fromCharCode(...bytes))
}

/** Ask as this user from now on; null: as nobody, which this machine may be allowed to. */
export function become(user, password) {
  authorization = user === null ? null : basic(user, password)
  if (authorization === null) sessionStorage.removeItem(KEPT)
  else sessionStorage.setItem(KEPT, authorization)
}

/** Whether somebody has logged in. */
export const known = () => authorization !== null

/** JSON with whole numbers as they are: those of more than 2^53 are what `JSON.stringify` writes as they were read. */
export function parse(source) {
  return JSON.parse(source, (key, value, context) =>
    typeof value === "number" && !Number.isSafeInteger(value) && JSON.rawJSON && /^-?\d+$/.test(context?.source) ? JSON.rawJSON(context.source) : value)
}

/** Run an operation; what it answers. Throws Refused. */
export async function ask(name, given = {}, signal = undefined) {
  const headers = { "Content-Type": "application/json" }
  if (authorization !== null) headers.Authorization = authorization
  let answer, body
  try {
    answer = await fetch(`/api/${name}`, {
      method: "POST", headers, body: JSON.stringify(given), credentials: "omit", cache: "no-store", signal,
    })
    body = await answer.text()
  } catch (error) {
    if (error.name === "AbortError") throw error
    throw new Refused(0, "UNREACHABLE", "the broker does not answer")
  }
  let value
  try {
    value = body === "" ? null : parse(body)
  } catch {
    value = { error: `HTTP ${answer.status}`, reason: body.trim() }
  }
  if (!answer.ok) throw new Refused(answer.status, value?.error ?? `HTTP ${answer.status}`, value?.reason ?? body.trim())
  return value
}

/** The rows of a table as objects. */
export function objects({ columns, rows }) {
  return rows.map((row) => Object.fromEntries(columns.map((name, index) => [name, row[index]])))
}

export const PAGE_ROWS = 1000

/** All rows of a list as objects, page by page; of no more than `most`. */
export async function all(name, given = {}, most = 20 * PAGE_ROWS) {
  const found = []
  while (found.length < most) {
    const page = objects(await ask(name, { ...given, start: found.length }))
    found.push(...page)
    if (page.length < PAGE_ROWS) break
  }
  return found
}

/** Who asks, and what there is to ask for. Throws Refused. */
export async function look() {
  const who = await ask("whoami")
  rights.tags = who.tags ?? []
  Object.assign(here, { cluster: who.cluster, broker_id: who.broker_id })
  operations = new Map((await all("operations.list")).map((one) => [one.name, one]))
  return who
}

/** Whether the broker has an operation, and this user one of the tags that it needs, if it needs one. */
export function can(name) {
  const found = operations.get(name)
  return found !== undefined && (found.tags === null || found.tags.some((tag) => rights.tags.includes(tag)))
}

/** What to say above a list that is of this broker's clients alone; "" without a cluster. */
export const ownAlone = () => (here.cluster === null ? "" : `Clients of broker ${here.broker_id} alone. Those of another broker of the cluster are shown by the page of that one.`)
