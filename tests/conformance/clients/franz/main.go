// A version of franz-go through what all versions have: ./conformance HOST:PORT. Prints what it did at the end; any
// failure ends it with an error.
package main

import (
	"bytes"
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const count = 20

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func value(n int) []byte { return bytes.Repeat([]byte(fmt.Sprintf("value %d ", n)), 10) }

func read(within context.Context, server, topic string, wanted int) {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(server), kgo.ConsumerGroup(topic), kgo.ConsumeTopics(topic), kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
	)
	must(err)
	n := 0
	for n < wanted {
		fetches := client.PollFetches(within)
		must(within.Err())
		fetches.EachRecord(func(record *kgo.Record) {
			if !bytes.Equal(record.Value, value(n)) || string(record.Headers[0].Value) != "x" {
				log.Fatalf("%s: %d is %s", topic, n, record.Value)
			}
			n++
		})
	}
	if n != wanted {
		log.Fatalf("%s: %d of %d", topic, n, wanted)
	}
	must(client.CommitUncommittedOffsets(within))
	client.Close()
}

func records(topic string, wanted int) (found []*kgo.Record) {
	for n := 0; n < wanted; n++ {
		headers := []kgo.RecordHeader{{Key: "h", Value: []byte("x")}}
		found = append(found, &kgo.Record{Topic: topic, Key: []byte("key"), Value: value(n), Headers: headers})
	}
	return
}

func main() {
	server := os.Args[1]
	within, cancel := context.WithTimeout(context.Background(), 120*time.Second)
	defer cancel()
	codecs := map[string]kgo.CompressionCodec{
		"plain": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
	for name, codec := range codecs {
		topic := fmt.Sprintf("versions-%s-%d", name, time.Now().UnixNano())
		client, err := kgo.NewClient(kgo.SeedBrokers(server), kgo.ProducerBatchCompression(codec), kgo.AllowAutoTopicCreation())
		must(err)
		for _, wanted := range []int{count, 5} {
			must(client.ProduceSync(within, records(topic, wanted)...).FirstErr())
			read(within, server, topic, wanted)
		}
		client.Close()
	}
	topic := fmt.Sprintf("versions-transactions-%d", time.Now().UnixNano())
	client, err := kgo.NewClient(kgo.SeedBrokers(server), kgo.TransactionalID(topic), kgo.AllowAutoTopicCreation())
	must(err)
	for _, end := range []kgo.TransactionEndTry{kgo.TryAbort, kgo.TryCommit} {
		must(client.BeginTransaction())
		must(client.ProduceSync(within, records(topic, 3)...).FirstErr())
		must(client.EndTransaction(within, end))
	}
	client.Close()
	read(within, server, topic, 3)
	fmt.Println("plain, gzip, snappy, lz4, zstd, groups, transactions")
}
