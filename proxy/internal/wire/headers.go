package wire

import (
	"bytes"
	"net"
	"strings"
)

// OddLines reports whether a line of the head continues in the next or ends in LF alone. Other servers may
// read such a line differently. If the head's end is odd, fasthttp returns no header in order, so the other
// checks would not see one.
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

// JoinList joins the values of a header that is a list and may be repeated.
func JoinList(before, value []byte) []byte {
	if before == nil {
		return value
	}
	return bytes.Join([][]byte{before, value}, []byte{','})
}

// HasToken searches a comma-separated list for a word, ignoring case.
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

// IsLoopback reports whether a host's name or address is this machine's own.
func IsLoopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
