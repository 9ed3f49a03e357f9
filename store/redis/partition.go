package redis

import (
	"cmp"
	"hash/fnv"
	"slices"
	"strconv"
	"sync"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
)

// KeyPrefix begins all keys and channels. It is also for tools that look at a server.
const KeyPrefix = "locksidecar:"

// Slots are the slots of a cluster that have keys, also for such tools.
func Slots() []int {
	found := make([]int, len(tags))
	for i, tag := range tags {
		found[i] = slotOf(tag)
	}
	return found
}

// tags are hash tags in slots that are spread evenly over a cluster: the n-th is in the n-th sixteenth. One server uses
// the first.
var tags = spread(16)

const slots = 16384

func slotOf(tag string) int { return int(crc16(tag)) % slots }

func spread(parts int) []string {
	found := make([]string, parts)
	for missing, i := parts, 0; missing > 0; i++ {
		tag := strconv.Itoa(i)
		if at := slotOf(tag) * parts / slots; found[at] == "" {
			found[at] = tag
			missing--
		}
	}
	return found
}

// crc16 is CRC-16/XMODEM, by which Redis finds a key's slot.
func crc16(s string) (sum uint16) {
	for i := range len(s) {
		sum ^= uint16(s[i]) << 8
		for range 8 {
			if sum&0x8000 != 0 {
				sum = sum<<1 ^ 0x1021
			} else {
				sum <<= 1
			}
		}
	}
	return sum
}

// partition is one hash tag. All its keys are on one server.
type partition struct {
	meta string
	// absent is a key that never exists. Because calls name it beside meta, a cluster refuses them while the partition's slot moves: see doc.go.
	absent string
}

// Prefix begins the keys of the only partition of one server.
func Prefix() string { return prefixOf(0) }

func prefixOf(partition int) string { return KeyPrefix + "{" + tags[partition] + "}:" }

func partitions(n int) []partition {
	parts := make([]partition, n)
	for i := range parts {
		name := prefixOf(i)
		parts[i] = partition{meta: name + "meta", absent: name + "absent"}
	}
	return parts
}

// of returns the number of a key's partition.
func (b *Server) of(key string) int {
	if len(b.parts) == 1 {
		return 0
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(key))
	return int(h.Sum32() % uint32(len(b.parts)))
}

// group sorts numbers 0 to n-1 by their partition.
func (b *Server) group(n int, key func(int) string) [][]int {
	groups := make([][]int, len(b.parts))
	for i := range n {
		p := b.of(key(i))
		groups[p] = append(groups[p], i)
	}
	return groups
}

// channel is where an instance listens. Channels do not belong to a database, so it contains the number.
func (b *Server) channel(instance string) string {
	return KeyPrefix + strconv.Itoa(b.target.db) + ":m:" + instance
}

// merge returns the first records of pages, each of which is in order.
func merge(pages [][]cas.Record, limit int) []cas.Record {
	all := slices.Concat(pages...)
	if len(pages) > 1 {
		slices.SortFunc(all, func(a, b cas.Record) int { return cmp.Compare(a.Key, b.Key) })
	}
	return all[:min(len(all), limit)]
}

// each calls do for each partition of a group, at the same time, and returns one of the errors. The error is Unknown if that of a partition
// is, or if another partition succeeded.
func each(groups [][]int, op string, changes bool, do func(part int, of []int) error) error {
	var mu sync.Mutex
	var failed error
	unknown, did := false, false
	one := func(part int) {
		err := do(part, groups[part])
		mu.Lock()
		defer mu.Unlock()
		if err == nil {
			did = true
		} else {
			failed, unknown = err, unknown || store.OutcomeUnknown(err)
		}
	}
	var working sync.WaitGroup
	only := -1
	for part := range groups {
		if len(groups[part]) == 0 {
			continue
		}
		if only >= 0 {
			working.Go(func() { one(part) })
		} else {
			only = part
		}
	}
	if only >= 0 {
		one(only) // in the caller's goroutine
	}
	working.Wait()
	return cas.Failed(op, failed, changes && (unknown || did))
}

// all names each partition once.
func (b *Server) all() [][]int {
	groups := make([][]int, len(b.parts))
	for part := range groups {
		groups[part] = []int{part}
	}
	return groups
}
