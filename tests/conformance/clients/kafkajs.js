// kafkajs for Node against a broker: node kafkajs.js PORT. Prints what it did at the end; any failure ends it with an error.
'use strict';
const assert = require('assert');
const { Kafka, CompressionTypes, CompressionCodecs, ConfigResourceTypes, logLevel } = require('kafkajs');
const lz4 = require('lz4-napi');

CompressionCodecs[CompressionTypes.Snappy] = require('kafkajs-snappy');
CompressionCodecs[CompressionTypes.LZ4] = () => ({
  compress: (encoder) => lz4.compressFrame(encoder.buffer),
  decompress: (buffer) => lz4.decompressFrame(buffer),
});
const zstd = new Promise((resolve) => require('zstd-codec').ZstdCodec.run((found) => resolve(new found.Simple())));
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  compress: async (encoder) => Buffer.from((await zstd).compress(encoder.buffer)),
  decompress: async (buffer) => Buffer.from((await zstd).decompress(buffer)),
});

const began = Date.now();
let number = 0;
const nameOf = (what) => `kafkajs-${what}-${began}-${process.pid}-${number++}`;
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
async function until(what, said = () => '') {
  for (const end = Date.now() + 30000; !(await what()); await sleep(50)) {
    if (Date.now() > end) throw new Error(`still not after 30 s: ${JSON.stringify(said())}`);
  }
}

function sample(count) {
  return [...Array(count).keys()].map((n) => ({
    key: [null, Buffer.from(''), Buffer.from('key'), Buffer.from([255, 0])][n % 4],
    value: n % 7 === 3 ? null : Buffer.from(n % 7 === 5 ? '' : `value ${n} `.repeat(10)),
    headers: n % 3 ? { h: [Buffer.from([255]), Buffer.from('again')], empty: Buffer.from('') } : {},
    timestamp: String(began - 3600000 + n * 1000),
  }));
}
const plain = ({ key, value, headers, timestamp }) => ({ key, value, headers, timestamp });

class Member {
  constructor(kafka, group, topic, options = {}) {
    this.seen = [];
    this.has = [];
    this.consumer = kafka.consumer({ groupId: group, heartbeatInterval: 300, maxWaitTimeInMs: 200, ...options });
    this.consumer.on(this.consumer.events.GROUP_JOIN, ({ payload }) => (this.has = payload.memberAssignment[topic] || []));
    this.topic = topic;
  }

  async start(run = {}) {
    await this.consumer.connect();
    await this.consumer.subscribe({ topics: [this.topic], fromBeginning: true });
    await this.consumer.run({
      eachMessage: async ({ partition, message }) => void this.seen.push({ partition, ...message }), ...run,
    });
    return this;
  }

  async stop() {
    await this.consumer.disconnect();
    this.has = [];
  }
}

async function records(kafka, admin, producer) {
  const codecs = ['None', 'GZIP', 'Snappy', 'LZ4', 'ZSTD'];
  for (const codec of codecs) {
    const topic = nameOf(codec), sent = sample(200);
    await admin.createTopics({ topics: [{ topic, numPartitions: 1 }], waitForLeaders: true });
    const [done] = await producer.send({ topic, messages: sent, compression: CompressionTypes[codec], acks: -1 });
    assert.strictEqual(done.baseOffset, '0');
    const member = await new Member(kafka, nameOf('reader'), topic).start();
    await until(() => member.seen.length === 200, () => [codec, member.seen.length]);
    assert.deepStrictEqual(member.seen.map(plain), sent, codec);
    // From another place on.
    member.consumer.seek({ topic, partition: 0, offset: '137' });
    await until(() => member.seen.length === 263, () => [codec, member.seen.length]);
    assert.strictEqual(member.seen[200].offset, '137');
    await member.stop();
  }
  return `codecs ${codecs.join(' ').toLowerCase()}`;
}

async function places(kafka, admin, producer) {
  const topic = nameOf('times'), sent = sample(100);
  await admin.createTopics({ topics: [{ topic, numPartitions: 1 }], waitForLeaders: true });
  for (const message of sent.slice(0, 20)) await producer.send({ topic, messages: [message] });
  await producer.send({ topic, messages: sent.slice(20) });
  const at = async (time) => (await admin.fetchTopicOffsetsByTimestamp(topic, time))[0].offset;
  const [ends] = await admin.fetchTopicOffsets(topic);
  assert.deepStrictEqual([ends.low, ends.high], ['0', '100']);
  assert.strictEqual(await at(0), '0');
  assert.strictEqual(await at(Number(sent[12].timestamp)), '12');
  assert.strictEqual(await at(Number(sent[12].timestamp) + 1), '13');
  assert.strictEqual(await at(Number(sent[42].timestamp)), '42');
  assert.strictEqual(await at(Number(sent[99].timestamp) + 1), '100', 'kafkajs asks for the end then');
}

async function groups(kafka, admin, producer) {
  const topic = nameOf('shared'), group = nameOf('group');
  await admin.createTopics({ topics: [{ topic, numPartitions: 4 }], waitForLeaders: true });
  let sent = 0;
  const members = [];
  const more = async (count) => {
    const messages = [...Array(count).keys()].map((n) => ({ value: String(sent + n), partition: n % 4 }));
    await producer.send({ topic, messages });
    sent += count;
  };
  const values = () => members.flatMap((one) => one.seen.map((message) => Number(message.value)));
  const read = () => until(() => new Set(values()).size === sent, () => [values().length, sent]);
  await more(40);
  members.push(await new Member(kafka, group, topic).start());
  await read();
  members.push(await new Member(kafka, group, topic).start());
  await until(() => members.every((one) => one.has.length === 2), () => members.map((one) => one.has));
  assert.strictEqual(new Set(members.flatMap((one) => one.has)).size, 4);
  await more(40);
  await read();
  assert.ok(members[1].seen.length);
  await members[0].stop();
  await until(() => members[1].has.length === 4, () => members[1].has);
  await more(40);
  await read();
  const { groups: [described] } = await admin.describeGroups([group]);
  assert.deepStrictEqual([described.state, described.members.length, described.protocol], ['Stable', 1, 'RoundRobinAssigner']);
  await members[1].stop();
  await more(4);
  members.push(await new Member(kafka, group, topic).start());
  await read();
  assert.strictEqual(members[2].seen.length, 4, 'from where the group had come');
  await members[2].stop();
  const listed = async () => (await admin.listGroups()).groups.map((one) => one.groupId);
  assert.ok((await listed()).includes(group));
  await admin.deleteGroups([group]);
  assert.ok(!(await listed()).includes(group));
}

async function commits(kafka, admin, producer) {
  const topic = nameOf('commits'), group = nameOf('group');
  await admin.createTopics({ topics: [{ topic, numPartitions: 1 }], waitForLeaders: true });
  await producer.send({ topic, messages: sample(50) });
  const committed = async () => (await admin.fetchOffsets({ groupId: group, topics: [topic] }))[0].partitions[0].offset;
  assert.strictEqual(await committed(), '-1');
  const member = await new Member(kafka, group, topic).start({ autoCommit: false });
  await until(() => member.seen.length === 50);
  await member.consumer.commitOffsets([{ topic, partition: 0, offset: '42', metadata: 'so far' }]);
  assert.strictEqual(await committed(), '42');
  await member.stop();
  const next = await new Member(kafka, group, topic).start({ autoCommit: false });
  await until(() => next.seen.length === 8);
  assert.strictEqual(next.seen[0].offset, '42');
  await next.stop();
  await admin.setOffsets({ groupId: group, topic, partitions: [{ partition: 0, offset: '7' }] });
  assert.strictEqual(await committed(), '7');
  await admin.resetOffsets({ groupId: group, topic, earliest: false });
  assert.strictEqual(await committed(), '-1', 'kafkajs sets it so');
}

async function transactions(kafka, admin) {
  const topic = nameOf('copy'), source = nameOf('source'), group = nameOf('group');
  await admin.createTopics({ topics: [topic, source].map((one) => ({ topic: one, numPartitions: 1 })), waitForLeaders: true });
  const producer = kafka.producer({ transactionalId: nameOf('transactions'), idempotent: true, maxInFlightRequests: 1 });
  await producer.connect();
  const copy = async (values, offset, end) => {
    const transaction = await producer.transaction();
    await transaction.send({ topic, messages: values.map((value) => ({ value })) });
    await transaction.sendOffsets({ consumerGroupId: group, topics: [{ topic: source, partitions: [{ partition: 0, offset }] }] });
    await transaction[end]();
  };
  const committed = async () => (await admin.fetchOffsets({ groupId: group, topics: [source] }))[0].partitions[0].offset;
  await copy(['a', 'b'], '10', 'commit');
  await copy(['x', 'y'], '20', 'abort');
  assert.strictEqual(await committed(), '10');
  await copy(['c'], '30', 'commit');
  assert.strictEqual(await committed(), '30');
  await producer.disconnect();
  const member = await new Member(kafka, nameOf('reader'), topic, { readUncommitted: false }).start();
  await until(() => member.seen.length >= 3, () => member.seen.length);
  assert.deepStrictEqual(member.seen.map((one) => one.value.toString()), ['a', 'b', 'c']);
  await member.stop();
}

async function administration(kafka, admin, producer) {
  const topic = nameOf('admin');
  const configEntries = [{ name: 'retention.ms', value: '12345678' }];
  assert.ok(await admin.createTopics({ topics: [{ topic, numPartitions: 2, configEntries }], waitForLeaders: true }));
  assert.ok(!(await admin.createTopics({ topics: [{ topic, numPartitions: 2 }] })), 'it is there already');
  assert.ok((await admin.listTopics()).includes(topic));
  await admin.createPartitions({ topicPartitions: [{ topic, count: 5 }] });
  const count = async () => (await admin.fetchTopicMetadata({ topics: [topic] })).topics[0].partitions.length;
  await until(async () => (await count()) === 5);
  const resource = { type: ConfigResourceTypes.TOPIC, name: topic };
  const config = async (name) => {
    const { resources } = await admin.describeConfigs({ includeSynonyms: false, resources: [resource] });
    return resources[0].configEntries.find((one) => one.configName === name).configValue;
  };
  assert.strictEqual(await config('retention.ms'), '12345678');
  await admin.alterConfigs({ validateOnly: false, resources: [{ ...resource, configEntries: [{ name: 'max.message.bytes', value: '20000' }] }] });
  await until(async () => (await config('max.message.bytes')) === '20000');
  await producer.send({ topic, messages: sample(10).map((one) => ({ ...one, partition: 0 })) });
  await admin.fetchTopicOffsets(topic); // else it knows no leaders
  await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: '4' }] });
  assert.strictEqual((await admin.fetchTopicOffsets(topic)).find((one) => one.partition === 0).low, '4');
  const cluster = await admin.describeCluster();
  assert.strictEqual(cluster.brokers.length, 1);
  await assert.rejects(producer.send({ topic, messages: [{ value: Buffer.alloc(30000) }] }), /MESSAGE_TOO_LARGE|larger/i);
  await admin.deleteTopics({ topics: [topic] });
  await until(async () => !(await admin.listTopics()).includes(topic));
}

async function main(port) {
  const kafka = new Kafka({ clientId: 'conformance', brokers: [`127.0.0.1:${port}`], logLevel: logLevel.NOTHING });
  const admin = kafka.admin(), producer = kafka.producer();
  await admin.connect();
  await producer.connect();
  const parts = { records, places, groups, commits, transactions, administration };
  const told = [];
  for (const [name, part] of Object.entries(parts)) {
    try {
      const said = await part(kafka, admin, producer);
      told.push(said ? `${name} (${said})` : name);
    } catch (error) {
      error.message = `${name}: ${error.message}`;
      throw error;
    }
  }
  await producer.disconnect();
  await admin.disconnect();
  console.log(told.join(', '));
}

main(Number(process.argv[2])).then(() => process.exit(0), (error) => {
  console.error(error);
  process.exit(1);
});
