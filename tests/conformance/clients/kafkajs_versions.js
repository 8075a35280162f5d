// A version of kafkajs through what all versions have: node kafkajs_versions.js PORT. Prints what it did at the end; any
// failure ends it with an error.
'use strict';
const assert = require('assert');
const { Kafka, CompressionTypes, logLevel } = require('kafkajs');

const began = Date.now();
const nameOf = (what) => `versions-${what}-${began}-${process.pid}`;
const late = (ms) => new Promise((_, reject) => setTimeout(() => reject(new Error(`not after ${ms} ms`)), ms).unref());
const sample = [...Array(20).keys()].map((n) => ({
  key: `key ${n % 3}`, value: `value ${n} `.repeat(10), headers: { n: `${n}` }, timestamp: String(began - 100000 + n * 1000),
}));
const plain = ({ key, value, headers, timestamp }) => ({
  key: key.toString(), value: value.toString(), headers: { n: headers.n.toString() }, timestamp,
});

async function read(kafka, topic, count) {
  const consumer = kafka.consumer({ groupId: topic });
  const found = [];
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  await Promise.race([late(30000), new Promise((resolve) => consumer.run({
    eachMessage: async ({ message }) => {
      found.push(plain(message));
      if (found.length === count) resolve();
    },
  }))]);
  await consumer.disconnect();
  return found;
}

async function main() {
  const kafka = new Kafka({ clientId: 'versions', brokers: [`127.0.0.1:${process.argv[2]}`], logLevel: logLevel.ERROR });
  const admin = kafka.admin();
  await admin.connect();
  for (const [name, compression] of [['plain', CompressionTypes.None], ['gzip', CompressionTypes.GZIP]]) {
    const topic = nameOf(name);
    await admin.createTopics({ topics: [{ topic, numPartitions: 1, replicationFactor: 1 }] });
    const producer = kafka.producer();
    await producer.connect();
    const send = (messages) => producer.send({ topic, compression, messages: messages.map((one) => ({ ...one, partition: 0 })) });
    await send(sample);
    assert.deepStrictEqual(await read(kafka, topic, 20), sample);
    await send(sample.slice(0, 5));
    assert.deepStrictEqual(await read(kafka, topic, 5), sample.slice(0, 5));
    await producer.disconnect();
  }
  const topic = nameOf('transactions');
  await admin.createTopics({ topics: [{ topic, numPartitions: 1, replicationFactor: 1 }] });
  const producer = kafka.producer({ transactionalId: topic, maxInFlightRequests: 1, idempotent: true });
  await producer.connect();
  for (const value of ['aborted', 'committed']) {
    const transaction = await producer.transaction();
    await transaction.send({ topic, messages: [{ key: value, value, headers: { n: '0' } }] });
    await (value === 'committed' ? transaction.commit() : transaction.abort());
  }
  await producer.disconnect();
  assert.deepStrictEqual((await read(kafka, topic, 1)).map((one) => one.value), ['committed']);
  await admin.disconnect();
  console.log('plain, gzip, groups, admin, transactions');
  process.exit(0);
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
