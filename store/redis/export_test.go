package redis

import (
	"os"
	"regexp"
	"strings"
)

// Rights are those that docs/stores.md names for ACL SETUSER.
func Rights() (rights []any) {
	text, err := os.ReadFile("../../docs/stores.md")
	if err != nil {
		panic(err)
	}
	found := regexp.MustCompile(`(?m)^ACL SETUSER locksidecar on >PASSWORD (.*)$`).FindSubmatch(text)
	if found == nil {
		panic("docs/stores.md names no rights")
	}
	for right := range strings.FieldsSeq(string(found[1])) {
		rights = append(rights, right)
	}
	return rights
}

// Tag is the hash tag of a server's only partition.
func Tag() string { return tags[0] }

// PartitionOf is the prefix of the names of a key's partition, and its slot.
func (b *Backend) PartitionOf(key string) (prefix string, slot int) {
	part := b.of(key)
	return strings.TrimSuffix(b.parts[part].meta, "meta"), slotOf(tags[part])
}

// Function is the name of a function of the library.
func Function(name string) string { return function(name) }
