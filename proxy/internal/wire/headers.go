package wire

import (
	"bytes"
	"net"
	"strings"
)

// OddLines tells whether a line of the head goes on in the next or ends in LF alone. Others may read it
// otherwise. If the head's end is odd, fasthttp reads no header in order, so no check would see one.
func OddLines(head []byte) bool {
	for {
		end := bytes.IndexByte(head, '\n')
		if end < 0 {
			return false
		}
		if end == 0 || head[end-1] != '\r' {
			return true
		}
		head = head[end+1:]
		if len(head) > 0 && (head[0] == ' ' || head[0] == '\t') {
			return true
		}
	}
}

// JoinList is what a header says that is a list, and may be given more than once.
func JoinList(before, value []byte) []byte {
	if before == nil {
		return value
	}
	return bytes.Join([][]byte{before, value}, []byte{','})
}

// HasToken looks for a word in a comma-separated list, whatever its case.
func HasToken(list []byte, token string) bool {
	for len(list) > 0 {
		var item []byte
		item, list, _ = bytes.Cut(list, []byte{','})
		if strings.EqualFold(string(bytes.TrimSpace(item)), token) {
			return true
		}
	}
	return false
}

// IsLoopback tells whether a host's name or address is this machine's own.
func IsLoopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
