// A version of sarama through what all versions have: ./conformance HOST:PORT. Prints what it did at the end; any failure
// ends it with an error.
package main

import (
	"bytes"
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/Shopify/sarama"
)

const count = 20

type reader struct {
	wanted int
	found  []*sarama.ConsumerMessage
	done   context.CancelFunc
}

func (r *reader) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (r *reader) Cleanup(sarama.ConsumerGroupSession) error { return nil }
func (r *reader) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		r.found = append(r.found, message)
		session.MarkMessage(message, "")
		if len(r.found) == r.wanted {
			r.done()
		}
	}
	return nil
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func value(n int) []byte { return bytes.Repeat([]byte(fmt.Sprintf("value %d ", n)), 10) }

func read(server, topic string, config *sarama.Config, wanted int) {
	group, err := sarama.NewConsumerGroup([]string{server}, topic, config)
	must(err)
	within, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	one := &reader{wanted: wanted, done: cancel}
	for within.Err() == nil {
		if err := group.Consume(within, []string{topic}, one); err != nil && within.Err() == nil {
			must(err)
		}
	}
	must(group.Close())
	if len(one.found) != wanted {
		log.Fatalf("%s: %d of %d", topic, len(one.found), wanted)
	}
	for n, message := range one.found {
		if !bytes.Equal(message.Value, value(n)) || len(message.Headers) != 1 || string(message.Headers[0].Value) != "x" {
			log.Fatalf("%s: %d is %s", topic, n, message.Value)
		}
	}
}

func main() {
	server := os.Args[1]
	config := sarama.NewConfig()
	config.Version = sarama.V1_0_0_0
	config.Producer.Return.Successes = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	codecs := map[string]sarama.CompressionCodec{
		"plain": sarama.CompressionNone, "gzip": sarama.CompressionGZIP, "snappy": sarama.CompressionSnappy, "lz4": sarama.CompressionLZ4,
	}
	for name, codec := range codecs {
		config.Producer.Compression = codec
		topic := fmt.Sprintf("versions-%s-%d", name, time.Now().UnixNano())
		producer, err := sarama.NewSyncProducer([]string{server}, config)
		must(err)
		for _, wanted := range []int{count, 5} {
			for n := 0; n < wanted; n++ {
				headers := []sarama.RecordHeader{{Key: []byte("h"), Value: []byte("x")}}
				_, _, err := producer.SendMessage(&sarama.ProducerMessage{
					Topic: topic, Key: sarama.StringEncoder("key"), Value: sarama.ByteEncoder(value(n)), Headers: headers,
				})
				must(err)
			}
			read(server, topic, config, wanted)
		}
		must(producer.Close())
	}
	admin, err := sarama.NewClusterAdmin([]string{server}, config)
	must(err)
	topic := fmt.Sprintf("versions-admin-%d", time.Now().UnixNano())
	must(admin.CreateTopic(topic, &sarama.TopicDetail{NumPartitions: 3, ReplicationFactor: 1}, false))
	must(admin.DeleteTopic(topic))
	must(admin.Close())
	fmt.Println("plain, gzip, snappy, lz4, groups, admin")
}
