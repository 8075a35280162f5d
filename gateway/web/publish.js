// Publish one message, to an exchange or as MQTT does.

import { ask } from "./api.js"
import { form } from "./dialogs.js"
import { note } from "./dom.js"
import { chosenVhost } from "./lists.js"

function told(answer) {
  note(answer && answer.routed === false ? "safe, but nobody gets it: it was not routed" : "published, and safe")
}

/** To an exchange. */
export async function publishing({ exchange = "", routing_key = "", vhost = chosenVhost() } = {}) {
  const done = await form({
    title: "Publish a message", action: "Publish",
    fields: [
      { name: "vhost", label: "Virtual host", value: vhost },
      { name: "exchange", label: "Exchange", value: exchange, help: "empty: the default exchange, whose keys are names of queues" },
      { name: "routing_key", label: "Routing key", value: routing_key },
      { name: "body", label: "Body", kind: "lines" },
      { name: "properties", label: "Properties", kind: "json", help: '{"content_type": "text/plain", "expiration_ms": 60000}' },
      { name: "headers", label: "Headers", kind: "json" },
    ],
    submit: (given) => ask("messages.publish", given),
  })
  if (done) told(done.value)
}

/** To a topic of MQTT. */
export async function publishingMqtt({ mqtt_topic = "" } = {}) {
  const done = await form({
    title: "Publish to MQTT", action: "Publish",
    fields: [
      { name: "mqtt_topic", label: "Topic", value: mqtt_topic, required: true },
      { name: "body", label: "Payload", kind: "lines" },
      { name: "retain", label: "Retain it", kind: "check" },
    ],
    submit: (given) => ask("messages.publish", given),
  })
  if (done) told(done.value)
}
