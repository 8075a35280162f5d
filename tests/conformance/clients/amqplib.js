// amqplib for Node against a broker: node amqplib.js PORT. Prints "ok" at the end; any failure ends it with an error.
'use strict';
const assert = require('assert');
const amqp = require('amqplib');

const name = 'amqplib.' + process.pid;
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function collect(channel, queue, count, options = { noAck: true }) {
  const found = [];
  let done;
  const all = new Promise((resolve) => (done = resolve));
  const { consumerTag } = await channel.consume(queue, (message) => {
    found.push(message);
    if (found.length === count) done();
  }, options);
  await all;
  await channel.cancel(consumerTag);
  return found;
}

async function main(port) {
  const connection = await amqp.connect(`amqp://guest:guest@127.0.0.1:${port}/?heartbeat=5`);
  const channel = await connection.createConfirmChannel();

  // A work queue with confirms, properties of every type, and prefetch.
  await channel.assertQueue(name, { durable: true });
  const headers = { text: 'a', number: 5, big: 2 ** 40, truth: true, list: [1, 'two', { three: 3 }], nothing: null };
  for (let n = 0; n < 100; n++) {
    channel.publish('', name, Buffer.from(String(n)), {
      persistent: true, headers, messageId: 'm' + n, correlationId: 'c', type: 't', appId: 'a', userId: 'guest',
      priority: 3, timestamp: 1700000000, contentType: 'text/plain', contentEncoding: 'utf-8', expiration: '60000',
    });
  }
  await channel.waitForConfirms();
  assert.strictEqual((await channel.checkQueue(name)).messageCount, 100);
  await channel.prefetch(10);
  const first = await collect(channel, name, 10, {});
  assert.deepStrictEqual(first.map((m) => m.content.toString()), [...Array(10).keys()].map(String));
  assert.deepStrictEqual(first[0].properties.headers, headers);
  assert.strictEqual(first[0].properties.userId, 'guest');
  channel.ack(first[4], true);
  channel.nack(first[9], true, true);
  const again = await channel.get(name);
  assert.ok(again.fields.redelivered);
  assert.strictEqual(again.content.toString(), '5');
  channel.reject(again, false);
  assert.strictEqual((await channel.purgeQueue(name)).messageCount, 94);

  // Topic, fanout and headers exchanges; exchange to exchange; alternate exchange; CC and BCC.
  await channel.assertExchange(name + '.alternate', 'fanout', { autoDelete: true });
  await channel.assertExchange(name + '.topic', 'topic', { alternateExchange: name + '.alternate' });
  await channel.assertExchange(name + '.headers', 'headers', { autoDelete: true });
  const { queue } = await channel.assertQueue('', { exclusive: true });
  await channel.bindQueue(queue, name + '.headers', '', { 'x-match': 'all', colour: 'red' });
  await channel.bindExchange(name + '.headers', name + '.topic', 'paint.*');
  channel.publish(name + '.topic', 'paint.wall', Buffer.from('red'), { headers: { colour: 'red' } });
  channel.publish(name + '.topic', 'paint.wall', Buffer.from('blue'), { headers: { colour: 'blue' } });
  const other = (await channel.assertQueue('', { exclusive: true })).queue;
  await channel.bindQueue(other, name + '.alternate', '');
  channel.publish(name + '.topic', 'nowhere', Buffer.from('lost'));
  channel.publish('', 'nowhere', Buffer.from('copies'), { CC: [queue], BCC: [other] });
  await channel.waitForConfirms();
  assert.deepStrictEqual((await collect(channel, queue, 2)).map((m) => m.content.toString()), ['red', 'copies']);
  const copies = await collect(channel, other, 2);
  assert.deepStrictEqual(copies.map((m) => m.content.toString()), ['lost', 'copies']);
  assert.deepStrictEqual(copies[1].properties.headers, { CC: [queue] });

  // Time to live and dead letters with their history; priorities.
  await channel.assertExchange(name + '.dead', 'direct', { autoDelete: true });
  const dead = (await channel.assertQueue('', { exclusive: true })).queue;
  await channel.bindQueue(dead, name + '.dead', 'gone');
  await channel.assertQueue(name + '.short', {
    autoDelete: false, durable: false, messageTtl: 50, deadLetterExchange: name + '.dead', deadLetterRoutingKey: 'gone',
    maxPriority: 5, expires: 60000,
  });
  channel.publish('', name + '.short', Buffer.from('mortal'));
  const [letter] = await collect(channel, dead, 1);
  assert.strictEqual(letter.properties.headers['x-death'][0].reason, 'expired');
  assert.strictEqual(letter.properties.headers['x-death'][0].queue, name + '.short');
  await channel.deleteQueue(name + '.short');

  // Returns, cancellations, errors.
  let returned = null;
  channel.on('return', (message) => (returned = message));
  channel.publish('', 'nowhere', Buffer.from('back'), { mandatory: true });
  await channel.waitForConfirms();
  assert.strictEqual(returned.fields.replyText, 'NO_ROUTE');
  let cancelled = false;
  await channel.consume(other, (message) => { cancelled = cancelled || message === null; }, { noAck: true });
  await channel.deleteQueue(other);
  for (let n = 0; n < 100 && !cancelled; n++) await sleep(20);
  assert.ok(cancelled);
  const doomed = await connection.createChannel();
  doomed.on('error', () => {});
  await assert.rejects(doomed.checkQueue('nowhere'), /404/);

  // Remote procedure calls by direct reply-to.
  const server = await connection.createChannel();
  await server.assertQueue(name + '.rpc', { exclusive: true });
  await server.consume(name + '.rpc', (message) => {
    server.publish('', message.properties.replyTo, message.content, { correlationId: message.properties.correlationId });
    server.ack(message);
  });
  const client = await connection.createChannel();
  const waiting = new Map();
  await client.consume('amq.rabbitmq.reply-to', (message) => {
    waiting.get(message.properties.correlationId)(message.content.toString());
  }, { noAck: true });
  for (let n = 0; n < 500; n++) {
    const answer = new Promise((resolve) => waiting.set(String(n), resolve));
    client.publish('', name + '.rpc', Buffer.from('q' + n),
      { replyTo: 'amq.rabbitmq.reply-to', correlationId: String(n) });
    assert.strictEqual(await answer, 'q' + n);
  }

  await channel.deleteQueue(name);
  await channel.deleteExchange(name + '.topic');
  await connection.close();
  console.log('ok');
}

main(process.argv[2]).catch((error) => {
  console.error(error);
  process.exit(1);
});
