"""A device over MQTT, and a service that hears all devices of a room.

python examples/mqtt_device.py [port]
"""

import sys
import threading

import paho.mqtt.client as mqtt

port = int(sys.argv[1]) if len(sys.argv) > 1 else 1883
subscribed, heard = threading.Event(), threading.Semaphore(0)


def on_message(client: mqtt.Client, context: object, message: mqtt.MQTTMessage) -> None:
    print(f"{message.topic} says {message.payload.decode()}")
    heard.release()


service = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id="example-service")
service.on_message = on_message
service.on_subscribe = lambda *_: subscribed.set()
service.connect("127.0.0.1", port)
service.loop_start()
service.subscribe("home/kitchen/+/temperature", qos=1)
subscribed.wait(10)

device = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id="example-thermometer")
device.connect("127.0.0.1", port)
device.loop_start()
for degrees in ("20.5", "20.7", "21.0"):
    device.publish("home/kitchen/window/temperature", degrees, qos=1).wait_for_publish(10)  # it is on disk now

for _ in range(3):
    heard.acquire(timeout=10)
for client in (device, service):
    client.disconnect()
    client.loop_stop()
