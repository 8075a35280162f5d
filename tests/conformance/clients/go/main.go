// The Go client (amqp091-go) against a broker: conformance PORT. Prints "ok" at the end.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func check(ok bool, what string) {
	if !ok {
		log.Fatal(what)
	}
}

func take(deliveries <-chan amqp.Delivery) amqp.Delivery {
	select {
	case delivery, open := <-deliveries:
		check(open, "deliveries ended")
		return delivery
	case <-time.After(10 * time.Second):
		log.Fatal("no delivery")
		panic("")
	}
}

func main() {
	background := context.Background()
	url := fmt.Sprintf("amqp://guest:guest@127.0.0.1:%s/", os.Args[1])
	connection, err := amqp.Dial(url)
	must(err)
	channel, err := connection.Channel()
	must(err)
	queue, err := channel.QueueDeclare("", true, false, true, false, amqp.Table{"x-max-priority": int32(5)})
	must(err)

	// Confirms, one by one and in a batch.
	must(channel.Confirm(false))
	for n := 0; n < 100; n++ {
		confirmation, err := channel.PublishWithDeferredConfirmWithContext(background, "", queue.Name, true, false,
			amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte(fmt.Sprint(n)),
				Headers: amqp.Table{"n": int64(n), "t": time.Unix(1700000000, 0), "d": amqp.Decimal{Scale: 2, Value: 314}}})
		must(err)
		if n%10 == 9 {
			check(confirmation.Wait(), "a publish was refused")
		}
	}

	// Prefetch, acknowledgements, redelivery.
	must(channel.Qos(1, 0, false))
	deliveries, err := channel.Consume(queue.Name, "consumer", false, false, false, false, nil)
	must(err)
	for n := 0; n < 100; n++ {
		delivery := take(deliveries)
		check(string(delivery.Body) == fmt.Sprint(n), "out of order")
		check(delivery.Headers["n"] == int64(n), "a header changed")
		check(delivery.Headers["d"] == amqp.Decimal{Scale: 2, Value: 314}, "a decimal changed")
		if n == 50 && !delivery.Redelivered {
			must(delivery.Nack(false, true))
			n--
			continue
		}
		must(delivery.Ack(false))
	}
	must(channel.Cancel("consumer", false))

	// A transaction that is rolled back, and one that is committed.
	transactional, err := connection.Channel()
	must(err)
	must(transactional.Tx())
	for round := 0; round < 2; round++ {
		must(transactional.PublishWithContext(background, "", queue.Name, false, false,
			amqp.Publishing{Body: []byte(fmt.Sprint("tx", round))}))
		if round == 0 {
			must(transactional.TxRollback())
		} else {
			must(transactional.TxCommit())
		}
	}
	delivery, found, err := channel.Get(queue.Name, true)
	must(err)
	check(found && string(delivery.Body) == "tx1", "the transaction")

	// Returns, errors of a channel, and that the connection lives on.
	returns := channel.NotifyReturn(make(chan amqp.Return, 1))
	must(channel.PublishWithContext(background, "", "nowhere", true, false, amqp.Publishing{}))
	check((<-returns).ReplyText == "NO_ROUTE", "the return")
	_, err = channel.QueueDeclarePassive("nowhere", false, false, false, false, nil)
	check(err != nil && err.(*amqp.Error).Code == 404, "the error")
	_, err = connection.Channel()
	must(err)
	must(connection.UpdateSecret("guest", "for the test"))
	must(connection.Close())
	fmt.Println("ok")
}
