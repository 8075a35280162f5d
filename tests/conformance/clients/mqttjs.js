// MQTT.js through what applications do with it, on each URL given: node mqttjs.js VERSION URL...
// In a page the same function runs with the browser's WebSocket.
async function scenario(mqtt, url, version, options) {
  const name = "mqttjs/" + Math.random().toString(36).slice(2)
  const open = (more) => mqtt.connectAsync(url, {
    protocolVersion: version, reconnectPeriod: 0, connectTimeout: 10000, keepalive: 5,
    clientId: name.replace("/", "-") + (more.id || ""), ...options, ...more })
  const check = (truth, what) => { if (!truth) throw new Error(url + " version " + version + ": " + what) }

  // Fewer aliases than topics.
  const aliases = version === 5 ? { properties: { topicAliasMaximum: 5 } } : {}
  const subscriber = await open({ id: "-s", ...aliases }), publisher = await open({ id: "-p" })
  const got = []
  let wanted = 0, wake = () => {}
  subscriber.on("message", (topic, payload, packet) => { got.push({ topic, payload, packet }); if (got.length >= wanted) wake() })
  const came = (count) => new Promise((resolve, reject) => {
    wanted = count
    if (got.length >= count) return resolve()
    wake = resolve
    setTimeout(() => reject(new Error(url + ": " + got.length + " of " + count + " messages came")), 20000)
  })
  const qos = options.qos === undefined ? 2 : options.qos
  const granted = await subscriber.subscribeAsync(name + "/#", { qos })
  check(granted[0].qos === qos, "granted " + granted[0].qos)
  const count = 600
  let sent = []
  for (let number = 0; number < count; number++) {
    if (sent.length === 100) { // the library does not count what the broker takes at once (receive maximum)
      await Promise.all(sent)
      sent = []
    }
    const properties = version === 5 ? { properties: { contentType: "text/plain", userProperties: { number: "" + number } } } : {}
    sent.push(publisher.publishAsync(name + "/" + number % 7, "body " + number, { qos: number % (qos + 1), ...properties }))
  }
  await Promise.all(sent)
  const large = "x".repeat(300000)
  await publisher.publishAsync(name + "/large", large, { qos: Math.min(qos, 1) })
  await came(count + 1)
  const bodies = new Set(got.map((one) => one.payload.toString()))
  for (let number = 0; number < count; number++) check(bodies.has("body " + number), "body " + number + " is missing")
  check(bodies.has(large) && got.length === count + 1, "large, or too many: " + got.length)
  for (const { topic, payload, packet } of got) {
    if (payload.length > 100) continue
    if (packet.qos === 2 && packet.properties?.topicAlias) continue // the library forgets whose alias it was by PUBREL
    check(topic === name + "/" + Number(payload.toString().slice(5)) % 7, "topic of " + payload + ": " + topic)
  }
  if (version === 5) {
    check(got.some(({ packet }) => packet.properties.topicAlias === 5), "no topic aliases")
    for (const { payload, packet } of got) {
      if (payload.length > 100) continue
      check(packet.properties.contentType === "text/plain", "content type")
      check("body " + packet.properties.userProperties.number === payload.toString(), "user property")
    }
  }
  await subscriber.unsubscribeAsync(name + "/#")
  await subscriber.endAsync()
  await publisher.endAsync()
  return got.length
}

if (typeof module !== "undefined" && typeof window === "undefined") {
  const mqtt = require("mqtt")
  const [version, qos, ...urls] = process.argv.slice(2)
  ;(async () => {
    let total = 0
    for (const url of urls) total += await scenario(mqtt, url, Number(version), { qos: Number(qos), rejectUnauthorized: false })
    console.log(`${total} messages over ${urls.length} transports`)
    process.exit(0)
  })().catch((error) => { console.error(error); process.exit(1) })
}
