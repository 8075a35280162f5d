#!/bin/sh
# The command line tools of librabbitmq against a broker: amqp_tools.sh PORT. Prints "ok" at the end.
set -eu
server="--server=127.0.0.1 --port=$1"
queue="amqp-tools.$$"
test "$(amqp-declare-queue $server -d -q "$queue")" = "$queue"
amqp-publish $server -r "$queue" -p -b "first"
printf 'one\ntwo\n' | amqp-publish $server -r "$queue" -l
test "$(amqp-get $server -q "$queue")" = "first"
test "$(amqp-consume $server -q "$queue" -c 2 cat | sort | tr -d '\n')" = "onetwo"
if amqp-get $server -q "$queue"; then echo "the queue is not empty" >&2; exit 1; fi
amqp-publish $server -e amq.topic -r "a.b" -b "nobody listens"
amqp-delete-queue $server -q "$queue" > /dev/null
if amqp-get $server -q "$queue" 2> /dev/null; then echo "the queue is still there" >&2; exit 1; fi
echo ok
