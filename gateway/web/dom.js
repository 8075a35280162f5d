// Elements and text. Whatever a client chose as a name becomes text: nothing here makes elements of a string.

/** An element with properties (`onclick` and the like are listeners) and children. */
export function h(tag, properties = {}, ...children) {
  const made = document.createElement(tag)
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value)
    else if (value === true) made.setAttribute(name, "")
    else made.setAttribute(name, value)
  }
  made.append(...children.flat(Infinity).filter((one) => one !== null && one !== undefined && one !== false))
  return made
}

/** So many characters are not broken into lines. */
const SHORT = 24
const UNSEEN = /[\p{C}\p{Zl}\p{Zp}]/u
const UNSEEN_OR_NOT = /([\p{C}\p{Zl}\p{Zp}]+)/u

/** What a client sent, with characters that nobody sees, or that turn around what follows, by their number. */
export function text(value, kept = "") {
  const whole = String(value)
  const made = h("bdi", { class: whole.length <= SHORT ? "text short" : "text" })
  if (!UNSEEN.test(whole)) {
    made.append(whole)
    return made
  }
  for (const part of whole.split(UNSEEN_OR_NOT)) {
    if (!UNSEEN.test(part)) made.append(part)
    else
      for (const one of part)
        made.append(
          kept.includes(one) ? one : h("span", { class: "unseen" }, "U+" + one.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")),
        )
  }
  return made
}

const numbers = new Intl.NumberFormat("en-US")

export const number = (value) => (value === null || value === undefined ? "?" : typeof value === "object" ? JSON.stringify(value) : numbers.format(value))

const two = (value) => String(value).padStart(2, "0")

/** A time of ms since 1970, in this browser's zone. */
export function time(ms, exact = false) {
  if (ms === null || ms === undefined || ms < 0) return ""
  const at = new Date(ms)
  if (Number.isNaN(at.getTime())) return number(ms) + " ms"
  const shown =
    `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ` +
    `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}` +
    (exact ? "." + String(at.getMilliseconds()).padStart(3, "0") : "")
  return h("time", { datetime: at.toISOString(), title: at.toISOString() }, shown)
}

/** Seconds as a person reads them. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return ""
  if (seconds < 60) return `${Math.round(seconds * 10) / 10} s`
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`
  return `${numbers.format(Math.floor(seconds / 86400))} d ${Math.floor((seconds % 86400) / 3600)} h`
}

/** Bytes as a person reads them. */
export function bytes(count) {
  if (count === null || count === undefined) return ""
  const units = ["B", "KiB", "MiB", "GiB", "TiB"]
  let index = 0
  while (count >= 1024 && index < units.length - 1) {
    count /= 1024
    index += 1
  }
  return `${index ? count.toFixed(1) : count} ${units[index]}`
}

/** Any value as text. */
export function shown(value) {
  if (value === null || value === undefined) return ""
  if (typeof value === "boolean") return value ? "yes" : ""
  if (typeof value === "number") return number(value)
  if (Array.isArray(value) && value.every((one) => typeof one !== "object")) return text(value.join(", "))
  if (typeof value === "object") return Object.keys(value).length === 0 ? "" : text(JSON.stringify(value))
  return text(value)
}

/** A small word in a frame: `kind` is "", "good", "bad" or "warn". */
export const chip = (word, kind = "") => h("span", { class: `chip ${kind}` }, word)

/** Where a view is. */
export const route = (view, parameters = {}) => `#/${view}?${new URLSearchParams(parameters)}`

export const link = (view, parameters, ...children) => h("a", { href: route(view, parameters) }, ...children)

/** A button that does one thing at a time; what goes wrong is a note. */
export function button(label, action, kind = "") {
  const made = h("button", { type: "button", class: kind }, label)
  made.addEventListener("click", async () => {
    made.disabled = true
    try {
      await action()
    } catch (error) {
      note(error)
    } finally {
      made.disabled = false
    }
  })
  return made
}

const NOTES = 4

/** Say something at the edge of the page: what was done goes by itself, an error stays until it is closed. */
export function note(what) {
  if (what?.name === "AbortError") return
  const failed = what instanceof Error
  const made = h("div", { class: failed ? "note bad" : "note" }, failed ? refusal(what) : what)
  made.append(h("button", { type: "button", "aria-label": "Close", onclick: () => made.remove() }, "×"))
  const notes = document.getElementById("notes")
  notes.append(made)
  if (notes.children.length > NOTES) notes.firstChild.remove()
  if (!failed) setTimeout(() => made.remove(), 6000)
}

/** An error in the broker's words. */
export function refusal(error) {
  return h("span", { class: "refusal", role: "alert" }, error.code ? [h("b", {}, text(error.code)), " "] : "", text(error.message))
}
